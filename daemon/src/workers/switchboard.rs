//! What answers the operator: each command goes to the worker that it is about, or to all.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::thread;
use std::thread::ThreadId;
use std::time::Duration;

use campanile_host_gpu::node::clock;
use serde_json::Value;
use serde_json::json;

use super::board::Board;
use super::board::Seen;
use super::desk::Answer;
use super::desk::Desk;
use super::desk::Question;
use super::folder::Folder;
use super::merge;
use super::merge::Answered;
use super::orders::Order;
use super::orders::Orders;
use super::scrape;
use crate::confine::confiner::Confiner;
use crate::confine::status;
use crate::host::check::objections;
use crate::host::options::HostOptions;
use crate::host::options::VgpuOptions;
use crate::host::source::Source;
use crate::intake::DRAINED;
use crate::operator::client;
use crate::operator::console::API;
use crate::operator::console::Console;
use crate::operator::console::HandlerError;
use crate::operator::estate::Objected;
use crate::operator::metrics::family::Families;
use crate::operator::metrics::family::Kind;
use crate::operator::metrics::family::Value as Number;
use crate::operator::metrics::scrapes::Texts;
use crate::operator::verb::Verb;
use crate::operator::verb::VgpuVerb;

/// How long a worker may take for its part of an overview.
const LOOK: Duration = Duration::from_secs(3);
/// How long it may take for its part of a change: its own threads have 20 s for theirs.
const CHANGE: Duration = Duration::from_secs(25);

/// A vGPU, and where it comes from.
#[derive(Debug, Clone)]
pub struct Known {
    /// As it was configured, or made.
    pub options: VgpuOptions,
    /// The operator has made it.
    pub is_made: bool,
}

/// It.
#[derive(Debug)]
pub struct Switchboard {
    folder: Folder,
    board: Arc<Board>,
    desk: Desk,
    orders: Orders,
    /// The options that all workers have, and no vGPU.
    options: HostOptions,
    source: Arc<dyn Source>,
    confiner: Arc<Confiner>,
    /// The program that workers are, by its path.
    program: PathBuf,
    /// One change at a time.
    vgpus: Mutex<Vec<Known>>,
    /// The thread that has an upgrade answered: another program takes the place of this one then.
    replaces: Mutex<Option<ThreadId>>,
}

/// What a switchboard has to do with.
#[derive(Debug)]
pub struct Wiring {
    /// Where workers are found.
    pub folder: Folder,
    /// What is known of them.
    pub board: Arc<Board>,
    /// What asks them.
    pub desk: Desk,
    /// What starts and ends them.
    pub orders: Orders,
    /// The configuration.
    pub source: Arc<dyn Source>,
    /// What confines the threads of this process.
    pub confiner: Arc<Confiner>,
    /// The program that workers are.
    pub program: PathBuf,
}

impl Switchboard {
    /// Between the operator and the workers of these vGPUs, with these options.
    pub fn new(wiring: Wiring, options: HostOptions, vgpus: Vec<Known>) -> Self {
        let Wiring { folder, board, desk, orders, source, confiner, program } = wiring;
        let options = HostOptions { vgpus: Vec::new(), ..options };
        Self {
            folder,
            board,
            desk,
            orders,
            options,
            source,
            confiner,
            program,
            vgpus: Mutex::new(vgpus),
            replaces: Mutex::new(None),
        }
    }

    /// Answers of all workers; those that are not there in time are errors.
    fn ask_all(&self, verb: &Verb, limit: Duration) -> Vec<Answered> {
        let all: Vec<String> = self.board.all().into_iter().map(|seen| seen.vgpu).collect();
        let question = |vgpu: &String| Question::Verb(self.folder.control(vgpu), verb.clone(), limit);
        let outcomes = self.desk.ask(all.iter().map(question).collect(), limit).into_iter().map(value);
        all.into_iter().zip(outcomes).map(|(vgpu, outcome)| Answered { vgpu, outcome }).collect()
    }

    fn ask_one(&self, vgpu: &str, verb: &Verb, limit: Duration) -> Result<Value, HandlerError> {
        if !self.board.has(vgpu) {
            let known: Vec<String> = self.board.all().into_iter().map(|seen| seen.vgpu).collect();
            return Err(HandlerError::NoSuchVgpu { name: vgpu.to_owned(), known: known.join(", ") });
        }
        let question = Question::Verb(self.folder.control(vgpu), verb.clone(), limit);
        let outcome = self.desk.ask(vec![question], limit).pop().map_or_else(|| Ok(Value::Null), value);
        outcome.map_err(|why| {
            // Most workers' words begin so already.
            let whole = if why.starts_with("vGPU ") { why } else { format!("vGPU {vgpu}: {why}") };
            Objected(whole).into()
        })
    }

    fn look(&self, verb: &Verb) -> Vec<Answered> {
        self.ask_all(verb, LOOK)
    }

    fn status(&self) -> Result<Value, HandlerError> {
        let daemon = status::describe(&self.confiner).map_err(HandlerError::Status)?;
        let answers = self.look(&Verb::Status);
        let pid = |vgpu: &str| {
            let of = answers.iter().find(|answered| answered.vgpu == vgpu);
            of.and_then(|answered| answered.outcome.as_ref().ok())
                .map_or(Value::Null, |answer| answer["daemon"]["pid"].clone())
        };
        let workers: Vec<Value> =
            self.board.all().iter().map(|seen| seen.describe(&pid(&seen.vgpu))).collect();
        Ok(json!({
            "api": API, "daemon": daemon, "drained": self.folder.is_drained(), "workers": workers, "vgpus": merge::vgpus(&answers),
        }))
    }

    fn drain(&self, verb: &Verb, off: bool) -> Result<Value, String> {
        let _one_at_a_time = self.known();
        let noted = self.folder.set_drained(!off);
        noted.map_err(|error| format!("{}: {error}", self.folder.path().display()))?;
        let answers = self.ask_all(verb, CHANGE);
        let mut merged = merge::lists(&answers, &["vms"]);
        if let Some(Value::Array(vms)) = merged.get_mut("vms") {
            let silent =
                answers.iter().filter_map(|answered| Some((answered, answered.outcome.as_ref().err()?)));
            vms.extend(silent.map(|(of, why)| json!({ "vgpu": of.vgpu, "moves": false, "why": why })));
        }
        merged.insert("drained".to_owned(), json!(!off));
        Ok(Value::Object(merged))
    }

    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.vgpus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, order: Order) -> Result<(), String> {
        self.orders.carry_out(order)
    }

    /// Why a vGPU cannot be there beside the others, if it cannot.
    fn objection(&self, known: &[Known], new: &VgpuOptions) -> Option<String> {
        let vgpus = known.iter().map(|known| &known.options).chain([new]).cloned().collect();
        let options = HostOptions { vgpus, ..self.options.clone() };
        let of = objections(&options).into_iter().find(|found| found.vgpu.as_ref() == Some(&new.name));
        of.map(|found| found.text).or_else(|| self.folder.objection(&new.name))
    }

    fn add(&self, spec: &str) -> Result<Value, String> {
        let mut known = self.known();
        if self.folder.is_drained() {
            return Err(DRAINED.to_owned());
        }
        let vgpu = self.source.parse(spec)?;
        if let Some(why) = self.objection(&known, &vgpu) {
            return Err(why);
        }
        let begun = self.order(Order::Begin { vgpu: vgpu.name.clone(), made: Some(spec.to_owned()) });
        let added = json!({ "vgpu": vgpu.name, "socket": vgpu.socket, "vram_bytes": vgpu.vram_bytes, "needs_restart": [] });
        // One that takes too long may begin later.
        if begun.is_ok() || self.board.has(&vgpu.name) {
            log::info!("vGPU {}: the operator has made it", vgpu.name);
            known.push(Known { options: vgpu, is_made: true });
        }
        begun.map(|()| added)
    }

    fn remove(&self, vgpu: &str, verb: &Verb, is_forced: bool) -> Result<Value, HandlerError> {
        let mut known = self.known();
        let removed = match self.ask_one(vgpu, verb, CHANGE) {
            Err(error) if is_forced && self.board.has(vgpu) => {
                log::warn!("{error}; its worker is ended all the same");
                json!({ "vgpu": vgpu, "vm_was_connected": true })
            }
            removed => removed?,
        };
        let ended = self.order(Order::End { vgpu: vgpu.to_owned() });
        if !self.board.has(vgpu) {
            known.retain(|known| known.options.name != vgpu);
        }
        ended.map_err(Objected)?;
        Ok(removed)
    }

    /// Has all workers read the configuration again, ends those whose vGPU is not in it any more, and starts those of new ones.
    fn reload(&self) -> Result<Value, String> {
        let mut known = self.known();
        let wanted = self.source.read().map_err(|why| format!("nothing was changed:\n{why}"))?.options.vgpus;
        let answers = self.ask_all(&Verb::Reload, CHANGE);
        let mut merged = merge::changes(&answers);
        let (mut changed, mut failed) = (Vec::new(), Vec::new());
        let stays = |name: &str| {
            let is_wanted = wanted.iter().any(|vgpu| vgpu.name == name);
            is_wanted || known.iter().any(|known| known.is_made && known.options.name == name)
        };
        let here: Vec<String> = self.board.all().into_iter().map(|seen| seen.vgpu).collect();
        let gone: Vec<String> = here.into_iter().filter(|name| !stays(name)).collect();
        for name in gone.into_iter().filter(|name| merge::has_let_go(&answers, name)) {
            let ended = self.order(Order::End { vgpu: name.clone() });
            failed.extend(ended.err().map(|why| format!("vGPU {name}: {why}")));
            if !self.board.has(&name) {
                known.retain(|known| known.options.name != name);
            }
        }
        let is_drained = self.folder.is_drained();
        for vgpu in wanted {
            let name = vgpu.name.clone();
            if let Some(is) = known.iter_mut().find(|known| known.options.name == name) {
                (is.options, is.is_made) = (vgpu.clone(), false);
            }
            if self.board.has(&name) {
                continue;
            }
            known.retain(|known| known.options.name != name);
            let begun = match self.objection(&known, &vgpu) {
                _ if is_drained => Err(format!("vGPU {name}: {DRAINED}")),
                Some(why) => Err(why),
                None => self.order(Order::Begin { vgpu: name.clone(), made: None }),
            };
            if begun.is_ok() || self.board.has(&name) {
                known.push(Known { options: vgpu, is_made: false });
            }
            match begun {
                Ok(()) => changed.push(format!("vGPU {name}: it is new")),
                Err(why) => failed.push(why),
            }
        }
        for (field, more) in [("changed", changed), ("failed", failed)] {
            if let Some(Value::Array(list)) = merged.get_mut(field) {
                list.extend(more.into_iter().map(Value::String));
            }
        }
        Ok(Value::Object(merged))
    }

    /// Upgrades one worker after the other, and then this process.
    fn upgrade(&self, binary: Option<&Path>) -> Result<Value, String> {
        let _one_at_a_time = self.known();
        let verb = Verb::Upgrade { binary: binary.map(Path::to_owned) };
        let (mut answers, mut failed): (Vec<Answered>, Vec<String>) = (Vec::new(), Vec::new());
        for Seen { vgpu, .. } in self.board.all() {
            match self.ask_one(&vgpu, &verb, client::timeout(&verb)) {
                Ok(done) => answers.push(Answered { vgpu, outcome: Ok(done) }),
                Err(why) => failed.push(why.to_string()),
            }
        }
        if !failed.is_empty() {
            let done: Vec<&str> = answers.iter().map(|answered| answered.vgpu.as_str()).collect();
            let done = if done.is_empty() { "none".to_owned() } else { done.join(", ") };
            let failed = failed.join("; ");
            return Err(format!("{failed}; upgraded: {done}; all else goes on as it was"));
        }
        let program = binary.map_or_else(|| self.program.clone(), Path::to_owned);
        self.order(Order::Replace { program })?;
        *self.replaces.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current().id());
        Ok(merge::upgrades(&answers, std::process::id()))
    }
}

impl Console for Switchboard {
    fn serve(&self, verb: &Verb) -> Result<Value, HandlerError> {
        let objected = |why| HandlerError::from(Objected(why));
        if let Verb::Vgpu(VgpuVerb::Remove { vgpu, force }) = verb {
            return self.remove(vgpu, verb, *force);
        }
        if let Some(vgpu) = verb.vgpu() {
            let limit = if verb.only_looks() { LOOK } else { client::timeout(verb) };
            return self.ask_one(vgpu, verb, limit);
        }
        match verb {
            Verb::Status => self.status(),
            Verb::Migration => {
                let answers = self.look(verb);
                let merged = merge::lists(&answers, &["departures"]);
                Ok(json!({ "departures": merged["departures"], "arrivals": merge::arrivals(&answers) }))
            }
            Verb::Trace { .. } => {
                let now = clock::nanoseconds(clock::monotonic());
                Ok(json!({ "now_ns": now, "vgpus": merge::vgpus(&self.look(verb)) }))
            }
            Verb::ResetAdapter { .. } => Ok(merge::by_vgpu(self.ask_all(verb, CHANGE))),
            Verb::Reload => self.reload().map_err(objected),
            Verb::Upgrade { binary } => self.upgrade(binary.as_deref()).map_err(objected),
            Verb::Drain { off, .. } => self.drain(verb, *off).map_err(objected),
            Verb::Vgpu(VgpuVerb::Add { spec }) => self.add(spec).map_err(objected),
            _ => Ok(json!({ "vgpus": merge::vgpus(&self.look(verb)) })),
        }
    }

    fn answered(&self) {
        let mut replaces = self.replaces.lock().unwrap_or_else(PoisonError::into_inner);
        if replaces.take_if(|replaces| *replaces == thread::current().id()).is_some() {
            drop(replaces);
            // Where this process ends, nothing comes of it.
            let _over = self.order(Order::Answered);
        }
    }
}

/// The metrics of all workers.
#[derive(Debug)]
pub struct AllMetrics(pub Arc<Switchboard>);

impl Texts for AllMetrics {
    fn text(&self) -> String {
        let Self(switchboard) = self;
        let all = switchboard.board.all();
        let questions = all.iter().map(|seen| Question::Metrics(switchboard.folder.metrics(&seen.vgpu)));
        let answers = switchboard.desk.ask(questions.collect(), LOOK);
        let (mut texts, mut families) = (Vec::new(), Families::default());
        for (seen, answer) in all.iter().zip(&answers) {
            let labels = || vec![("vgpu", seen.vgpu.clone())];
            match answer {
                Ok(Answer::Text(text)) => texts.push((Some(seen.vgpu.as_str()), text.as_str())),
                _ => {
                    let help = "Whether the thread of the vGPU answers";
                    families.family("responds", help, Kind::Gauge).add(labels(), Number::Whole(0));
                }
            }
            let help = "Keepers of the worker of the vGPU that have ended, and were started again";
            families.family("worker_ends", help, Kind::Counter).add(labels(), Number::Whole(seen.ended));
        }
        let own = families.text().unwrap_or_default();
        texts.push((None, &own));
        scrape::join(&texts)
    }
}

fn value(answered: Result<Answer, String>) -> Result<Value, String> {
    match answered? {
        Answer::Value(value) => Ok(value),
        Answer::Text(_) => Err("its answer makes no sense".to_owned()),
    }
}
