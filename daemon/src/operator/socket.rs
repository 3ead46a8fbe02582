//! The control socket: an accepting thread, and one thread a client.

use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::io;
use std::io::Read;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use campanile_host_gpu::essential_thread;
use campanile_host_gpu::event::Event;
use campanile_host_gpu::log_limit::LogLimit;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::process::geteuid;
use serde::Serialize;

use super::client::Reply;
use super::console::Console;
use super::line::Found;
use super::line::Lines;
use super::line::MAX_LINE;
use super::verb::Verb;
use crate::caller::Caller;
use crate::file_lock::holder;
use crate::listener::Listener;
use crate::listener::SocketError;
use crate::vgpu::objects::spans::TARGET;

/// Clients served at one time.
const MAX_CLIENTS: usize = 8;
/// How long a client may say nothing, or not read its answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept: the host is out of descriptors, and asking at once would not help.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Characters of a command in the log.
const LOGGED: usize = 1024;

/// What may be asked through a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Everything, by those.
    Control(Answered),
    /// What changes nothing, by all that the mode of its file lets in.
    Status,
}

/// The processes whose connections a control socket answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answered {
    /// Root, the daemon's own user, and these.
    Users(BTreeSet<u32>),
    /// The process that has locked this file, and no other of any user: what has started this daemon, as one of several.
    HolderOf(PathBuf),
}

impl Default for Answered {
    fn default() -> Self {
        Self::Users(BTreeSet::new())
    }
}

impl Answered {
    /// Whether users are answered that could not open a file of this one's.
    pub fn has_others(&self) -> bool {
        matches!(self, Self::Users(users) if !users.is_empty())
    }

    fn objection(&self, caller: Caller) -> Option<String> {
        match self {
            Self::Users(users) => {
                let answered: BTreeSet<u32> = users.iter().copied().chain([0, geteuid().as_raw()]).collect();
                if answered.contains(&caller.user) {
                    return None;
                }
                let answered: Vec<String> = answered.iter().map(u32::to_string).collect();
                Some(format!("this socket answers the users {}, and not {caller}", answered.join(", ")))
            }
            Self::HolderOf(file) => {
                let holder = holder(file).ok().flatten().map(|pid| pid.as_raw_nonzero().get());
                if holder.is_some_and(|pid| pid == caller.process) {
                    return None;
                }
                let file = file.display();
                Some(format!("this socket answers the process that has locked {file}, and not {caller}"))
            }
        }
    }
}

impl Access {
    /// What such a socket is called.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Control(_) => "control",
            Self::Status => "status",
        }
    }

    /// Why it does not answer this process, if it does not.
    fn objection(&self, caller: Caller) -> Option<String> {
        match self {
            Self::Control(answered) => answered.objection(caller),
            Self::Status => None,
        }
    }
}

/// What answers the clients of a socket.
#[derive(Debug, Clone)]
struct Acceptor {
    handler: Arc<dyn Console>,
    access: Access,
    /// What those cause in the log that are not answered.
    strangers: Arc<LogLimit>,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    thread: JoinHandle<()>,
}

/// The socket, served until this is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    bell: Event,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    /// Listens at `path`, where only this user can connect.
    ///
    /// # Errors
    /// The name is taken, or a thread or descriptor cannot be had.
    pub fn spawn(path: &Path, handler: impl Console + 'static) -> Result<Self, SocketError> {
        Self::serve(Listener::bind_private(path)?, Arc::new(handler), Access::Control(Answered::default()))
    }

    /// As [`Self::spawn`], on a socket that is there.
    ///
    /// # Errors
    /// A thread or descriptor cannot be had.
    pub fn serve(listener: Listener, handler: Arc<dyn Console>, access: Access) -> Result<Self, SocketError> {
        let path = listener.path().to_owned();
        let no_thread = |source| SocketError::Thread { path: path.clone(), source };
        let bell = Event::new().map_err(no_thread)?;
        let its_bell = bell.try_clone().map_err(no_thread)?;
        let stop = Arc::new(AtomicBool::new(false));
        let its_stop = Arc::clone(&stop);
        let strangers = LogLimit::new(&format!("{} socket", access.name()));
        let acceptor = Acceptor { handler, access, strangers };
        let run = move || accept(&listener, &acceptor, &its_bell, &its_stop);
        let thread = essential_thread::spawn("control", run).map_err(no_thread)?;
        Ok(Self { path, stop, bell, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.bell.signal();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("{}: the control thread panicked", self.path.display());
        }
    }
}

fn accept(listener: &Listener, acceptor: &Acceptor, bell: &Event, stop: &AtomicBool) {
    let mut clients: VecDeque<Client> = VecDeque::new();
    while !stop.load(Ordering::Acquire) {
        clients.retain(|client| !client.thread.is_finished());
        match listener.socket.accept() {
            Ok((stream, _)) => {
                let Some(caller) = admit(&stream, acceptor) else { continue };
                // The oldest makes room, so that idle clients never keep the operator out. Its thread ends by itself,
                // after the control command that it waits for at the latest; those are bounded too.
                while clients.len() >= MAX_CLIENTS {
                    if let Some(oldest) = clients.pop_front() {
                        let _gone = oldest.stream.shutdown(Shutdown::Both);
                    }
                }
                match begin(stream, caller, acceptor) {
                    Ok(client) => clients.push_back(client),
                    Err(error) => log::error!("control socket: a client cannot be served: {error}"),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut fds =
                    [PollFd::new(&listener.socket, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
                let _interrupted = poll(&mut fds, None);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                log::error!("control socket: cannot accept a connection: {error}");
                let mut fds = [PollFd::new(bell, PollFlags::IN)];
                let _interrupted = poll(&mut fds, Some(&PAUSE));
            }
        }
    }
    clients.into_iter().for_each(end);
}

/// The process of a connection that is to be answered. Any other is told why not, and takes no place of a client.
fn admit(stream: &UnixStream, acceptor: &Acceptor) -> Option<Caller> {
    let name = acceptor.access.name();
    let caller = match Caller::of(stream) {
        Ok(caller) => caller,
        Err(error) => {
            log::error!("{name} socket: the kernel does not say what connected: {error}");
            return None;
        }
    };
    let Some(objection) = acceptor.access.objection(caller) else { return Some(caller) };
    acceptor.strangers.within(|| log::warn!("{name} socket: {objection}"));
    // A line finds room in a new socket; where it does not, it is not waited for.
    let said = stream.set_nonblocking(true).and_then(|()| line_of(&refusal(objection)));
    let mut stream = stream;
    let _gone = said.and_then(|line| stream.write_all(line.as_bytes()));
    None
}

fn begin(stream: UnixStream, caller: Caller, acceptor: &Acceptor) -> io::Result<Client> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let its_stream = stream.try_clone()?;
    let acceptor = acceptor.clone();
    let thread = thread::Builder::new().name("control-client".to_owned()).spawn(move || {
        if let Err(error) =
            serve_for((&acceptor.access, caller), &its_stream, &its_stream, &*acceptor.handler)
        {
            log::debug!("control socket: a client is dropped: {error}");
        }
        let _gone = its_stream.shutdown(Shutdown::Both);
    })?;
    Ok(Client { stream, thread })
}

/// Ends a client whatever it does: its reads and writes fail from here on.
fn end(client: Client) {
    let _gone = client.stream.shutdown(Shutdown::Both);
    if client.thread.join().is_err() {
        log::error!("control socket: a client's thread panicked");
    }
}

/// Answers each line of `input` by one of `output`, until the input ends or a line is too long, as to root.
///
/// # Errors
/// What the streams say.
pub fn serve(input: impl Read, output: impl Write, handler: &dyn Console) -> io::Result<()> {
    let root = Caller { user: 0, process: 0 };
    serve_for((&Access::Control(Answered::default()), root), input, output, handler)
}

fn serve_for(
    asked: (&Access, Caller),
    input: impl Read,
    mut output: impl Write,
    handler: &dyn Console,
) -> io::Result<()> {
    let mut lines = Lines::new(input, MAX_LINE);
    loop {
        let (reply, is_last) = match lines.next_line()? {
            Found::End => return Ok(()),
            Found::TooLong => (refusal(format!("a line has at most {MAX_LINE} bytes")), true),
            Found::Line(line) => (answer(&line, asked, handler), false),
        };
        let written = output.write_all(line_of(&reply)?.as_bytes());
        handler.answered();
        written?;
        if is_last {
            return Ok(());
        }
    }
}

/// A reply as a line of JSON. Every control character of its text is escaped, also those that JSON allows as they are (DEL, C1): replies
/// quote what guests and operators sent, and end on terminals.
fn line_of(reply: &Reply) -> io::Result<String> {
    let mut line = text_of(reply)?;
    line.push('\n');
    Ok(line)
}

fn text_of(value: &impl Serialize) -> io::Result<String> {
    let json = serde_json::to_string(value).map_err(io::Error::other)?;
    let mut text = String::with_capacity(json.len() + 1);
    for character in json.chars() {
        if character.is_control() {
            text.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            text.push(character);
        }
    }
    Ok(text)
}

/// A command as the log has it.
fn logged(verb: &Verb) -> String {
    let text = text_of(verb).unwrap_or_default();
    match text.char_indices().nth(LOGGED) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

fn refusal(error: String) -> Reply {
    Reply { ok: false, result: None, error: Some(error) }
}

fn answer(line: &[u8], (access, caller): (&Access, Caller), handler: &dyn Console) -> Reply {
    let verb: Verb = match serde_json::from_slice(line) {
        Ok(verb) => verb,
        Err(error) => return refusal(format!("this is no command: {error}")),
    };
    if *access == Access::Status && !verb.only_looks() {
        let looks = "status, vram, metrics, migration, reports and timeline";
        return refusal(format!("this socket is for looking only: {looks}; asked by {caller}"));
    }
    if verb.names_a_program() && ![0, geteuid().as_raw()].contains(&caller.user) {
        let only = "only root and the daemon's own user may name the program that goes on";
        return refusal(format!("{only}; asked by {caller}"));
    }
    let changes = verb.changes().then(|| logged(&verb));
    let _span = changes.is_some().then(|| {
        let Caller { user, process } = caller;
        tracing::info_span!(target: TARGET, "control", uid = user, pid = process).entered()
    });
    if let Some(command) = &changes {
        log::info!("control socket: {caller} asks: {command}");
    }
    match handler.serve(&verb) {
        Ok(result) => Reply { ok: true, result: Some(result), error: None },
        Err(error) => {
            if let Some(command) = &changes {
                log::warn!("control socket: not done for {caller}: {command}: {error}");
            }
            refusal(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rustix::process::geteuid;

    use super::Access;
    use super::Answered;
    use super::Caller;
    use super::LOGGED;
    use super::Reply;
    use super::Verb;
    use super::line_of;
    use super::logged;
    use super::refusal;

    #[test]
    fn a_control_socket_answers_root_its_own_user_and_those_that_are_listed() {
        let own = geteuid().as_raw();
        let access = Access::Control(Answered::Users(BTreeSet::from([own + 7, 0])));
        let objection = |user| access.objection(Caller { user, process: 9 });
        assert_eq!([0, own, own + 7].map(objection), [None, None, None]);
        let why = objection(own + 8).unwrap();
        let others = if own == 0 { String::new() } else { format!("{own}, ") };
        let expected = format!("the users 0, {others}{}, and not uid {}, pid 9", own + 7, own + 8);
        assert_eq!(why, format!("this socket answers {expected}"));
        assert_eq!(Access::Status.objection(Caller { user: own + 8, process: 9 }), None);
    }

    #[test]
    fn one_of_several_daemons_answers_the_process_that_has_the_lock_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let access = Access::Control(Answered::HolderOf(path.clone()));
        let objects = |process| access.objection(Caller { user: 0, process }).is_some();
        assert!(objects(1) && objects(0), "there is no such file");
        // Of a lock of one's own the kernel says that there is none.
        let _own = crate::file_lock::FileLock::take(&path).unwrap();
        assert!(objects(i32::try_from(std::process::id()).unwrap()));
    }

    #[test]
    fn a_command_is_logged_in_one_line_of_bounded_length() {
        let verb = Verb::Allow { vgpu: "a\n\u{9b}31m".to_owned() };
        assert_eq!(logged(&verb), r#"{"verb":"allow","vgpu":"a\n\u009b31m"}"#);
        let long = Verb::Allow { vgpu: "ä".repeat(2 * LOGGED) };
        assert_eq!(logged(&long).chars().count(), LOGGED + 1);
    }

    #[test]
    fn a_line_has_no_control_character_but_its_end_and_says_the_same() {
        let text = "quoted: \u{1} \u{7f} \u{9b}31m \n end";
        let line = line_of(&refusal(text.to_owned())).unwrap();
        assert_eq!(line.find(char::is_control), Some(line.len() - 1), "{line:?}");
        let reply: Reply = serde_json::from_str(&line).unwrap();
        assert_eq!(reply.error.as_deref(), Some(text));
    }
}
