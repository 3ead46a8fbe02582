//! Asking workers: each answer by a thread of its own, which those that hear the operator may not begin, confined as they are.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use super::scrape;
use crate::operator::client;
use crate::operator::client::ClientError;
use crate::operator::verb::Verb;

/// Bytes of the longest answer: all that engines remember of what they ran.
const LONGEST: usize = 8 << 20;

/// What a worker is asked.
#[derive(Debug, Clone)]
pub enum Question {
    /// A command of the operator's, at its control socket, which it has so long to carry out.
    Verb(PathBuf, Verb, Duration),
    /// Its metrics, at this socket.
    Metrics(PathBuf),
}

/// What it has answered.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// To a command.
    Value(serde_json::Value),
    /// Its metrics.
    Text(String),
}

/// A question, and where its answer goes.
#[derive(Debug)]
struct Job {
    question: Question,
    answer: Sender<Result<Answer, String>>,
}

/// Where questions are put. Its thread ends when this is dropped; answers that are on their way come all the same.
#[derive(Debug)]
pub struct Desk(Sender<Job>);

impl Desk {
    /// Starts the thread. Call it before the calling thread is confined.
    ///
    /// # Errors
    /// No thread could be had.
    pub fn start() -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel::<Job>();
        let work = move || {
            for Job { question, answer } in waiting {
                let failed = answer.clone();
                let ask = move || {
                    // Those that asked may have gone.
                    let _late = answer.send(answer_of(&question));
                };
                if let Err(error) = thread::Builder::new().name("ask".to_owned()).spawn(ask) {
                    let _late = failed.send(Err(error.to_string()));
                }
            }
        };
        thread::Builder::new().name("desk".to_owned()).spawn(work)?;
        Ok(Self(jobs))
    }

    /// Asks all at once. Each answer, in the order of the questions; what a worker has not said in time is an error.
    pub fn ask(&self, questions: Vec<Question>, limit: Duration) -> Vec<Result<Answer, String>> {
        let ends = Instant::now() + limit;
        let put = |question| {
            let (answer, answers) = mpsc::channel();
            let _over = self.0.send(Job { question, answer });
            answers
        };
        let asked: Vec<_> = questions.into_iter().map(put).collect();
        asked.into_iter().map(|answers| next(&answers, ends)).collect()
    }
}

fn next(answers: &Receiver<Result<Answer, String>>, ends: Instant) -> Result<Answer, String> {
    let left = ends.saturating_duration_since(Instant::now());
    answers.recv_timeout(left).unwrap_or_else(|_late| Err("its process does not answer".to_owned()))
}

fn answer_of(question: &Question) -> Result<Answer, String> {
    match question {
        Question::Verb(path, verb, limit) => {
            client::ask_within(path, verb, *limit, LONGEST).map(Answer::Value).map_err(|error| match error {
                ClientError::Refused(why) => why,
                ClientError::Connect { source, .. } => format!("its process does not answer: {source}"),
                ClientError::Exchange(source) => format!("its process does not answer: {source}"),
                error @ ClientError::Answer(_) => error.to_string(),
            })
        }
        Question::Metrics(path) => scrape::scrape(path).map(Answer::Text).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;
    use std::io::BufReader;
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::thread;
    use std::time::Duration;

    use serde_json::json;

    use super::Answer;
    use super::Desk;
    use super::Question;
    use crate::operator::verb::Verb;

    const NEVER: Duration = Duration::from_secs(60);

    /// Answers one command with these words.
    fn worker(path: &Path, words: &'static str) {
        let listener = UnixListener::bind(path).unwrap();
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            (&stream).write_all(words.as_bytes()).unwrap();
        });
    }

    #[test]
    fn answers_come_in_the_order_of_questions_and_one_that_does_not_answer_keeps_no_other_back() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let _silent = UnixListener::bind(at("silent")).unwrap();
        worker(&at("well"), "{\"ok\":true,\"result\":{\"a\":1}}\n");
        worker(&at("refuses"), "{\"ok\":false,\"error\":\"no such thing\"}\n");
        worker(&at("wrong"), "[]\n");
        let names = ["silent", "gone", "well", "refuses", "wrong"];
        let questions = names.map(|name| Question::Verb(at(name), Verb::Status, NEVER)).into();
        let mut answers = Desk::start().unwrap().ask(questions, Duration::from_secs(2)).into_iter();
        assert_eq!(answers.next().unwrap(), Err("its process does not answer".to_owned()));
        assert!(answers.next().unwrap().unwrap_err().contains("No such file"));
        assert_eq!(answers.next().unwrap(), Ok(Answer::Value(json!({ "a": 1 }))));
        assert_eq!(answers.next().unwrap(), Err("no such thing".to_owned()));
        assert!(answers.next().unwrap().unwrap_err().contains("makes no sense"));
    }
}
