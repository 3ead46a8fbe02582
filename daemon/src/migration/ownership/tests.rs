//! All orders in which two sides, their VMMs and a line can act.

use std::collections::HashSet;
use std::collections::VecDeque;

use super::claimant::Claimant;
use super::claimant::Step;
use super::holder::Duty;
use super::holder::Holder;
use crate::migration::channel::message::Message;

/// Messages by number, so that worlds can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Word {
    MayIRun,
    Granted,
    Declined,
    Revoke,
    Revoked,
    Committed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    holder: Holder,
    claimant: Claimant,
    to_target: VecDeque<Word>,
    to_source: VecDeque<Word>,
    /// Whether the line is up.
    line: bool,
    /// Whether each daemon lives.
    source: bool,
    target: bool,
    /// Whether the source's front-end is there.
    front_end: bool,
    /// Whether guest work runs there: since its rings began and the machine let it.
    source_runs: bool,
    target_runs: bool,
    /// How often it was thawed, so that there are finitely many worlds.
    thaws: u8,
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Thaw,
    CloseFrontEnd,
    Load,
    Start,
    LoseTarget,
    KillSource,
    KillTarget,
    CutLine,
    AtSource,
    AtTarget,
    SourceTimeOut,
    TargetTimeOut,
}

const ACTS: [Act; 12] = [
    Act::Thaw,
    Act::CloseFrontEnd,
    Act::Load,
    Act::Start,
    Act::LoseTarget,
    Act::KillSource,
    Act::KillTarget,
    Act::CutLine,
    Act::AtSource,
    Act::AtTarget,
    Act::SourceTimeOut,
    Act::TargetTimeOut,
];

impl World {
    fn begin() -> Self {
        let mut holder = Holder::default();
        assert_eq!(holder.complete(), Duty::Nothing);
        Self {
            holder,
            claimant: Claimant::stored(),
            to_target: VecDeque::new(),
            to_source: VecDeque::new(),
            line: true,
            source: true,
            target: true,
            front_end: true,
            source_runs: false,
            target_runs: false,
            thaws: 0,
        }
    }

    fn source_says(&mut self, word: Word) {
        if self.line {
            self.to_target.push_back(word);
        }
    }

    fn target_says(&mut self, word: Word) {
        if self.line {
            self.to_source.push_back(word);
        }
    }

    fn at_source(&mut self, duty: Duty) {
        match duty {
            Duty::Nothing | Duty::Lose => {}
            Duty::Grant => self.source_says(Word::Granted),
            Duty::Decline => self.source_says(Word::Declined),
            Duty::Recall => {
                self.source_says(Word::Revoke);
                if !self.line {
                    let duty = self.holder.unreachable();
                    self.at_source(duty);
                }
            }
            Duty::Run => self.source_runs = true,
            Duty::RunAndRevoke => {
                self.source_runs = true;
                self.source_says(Word::Revoke);
            }
        }
    }

    fn at_target(&mut self, step: Step) {
        match step {
            Step::Nothing | Step::Refuse | Step::Drop => {}
            Step::Ask => {
                self.target_says(Word::MayIRun);
                if !self.line {
                    let step = self.claimant.unreachable();
                    self.at_target(step);
                }
            }
            Step::Run => self.target_runs = true,
            Step::DropAndConfirm | Step::Confirm => self.target_says(Word::Revoked),
            Step::Insist => self.target_says(Word::Committed),
        }
    }

    fn cut(&mut self) {
        self.line = false;
        if self.source {
            let duty = self.holder.unreachable();
            self.at_source(duty);
        }
        if self.target {
            let step = self.claimant.unreachable();
            self.at_target(step);
        }
    }

    /// The world after an act, or none where it cannot be.
    fn after(&self, act: Act) -> Option<Self> {
        let mut next = self.clone();
        let possible = match act {
            Act::Thaw => self.source && self.front_end && self.thaws < 3,
            Act::CloseFrontEnd => self.source && self.front_end,
            Act::Load | Act::Start | Act::LoseTarget | Act::KillTarget | Act::TargetTimeOut => self.target,
            Act::KillSource => self.source,
            Act::SourceTimeOut => self.source && self.holder == Holder::Recalls,
            Act::CutLine => self.line,
            // What was sent before the line failed may still come.
            Act::AtSource => self.source && !self.to_source.is_empty(),
            Act::AtTarget => self.target && !self.to_target.is_empty(),
        };
        if !possible {
            return None;
        }
        match act {
            Act::Thaw => {
                next.thaws += 1;
                let duty = next.holder.thaw();
                next.at_source(duty);
            }
            Act::CloseFrontEnd => {
                next.front_end = false;
                next.source_runs = false;
                let duty = next.holder.closed();
                next.at_source(duty);
            }
            Act::Load => {
                let step = next.claimant.load();
                next.at_target(step);
            }
            Act::Start => {
                let step = next.claimant.started();
                next.at_target(step);
            }
            Act::LoseTarget => {
                // Its session is gone with its front-end: nothing runs there.
                let step = next.claimant.forget();
                next.at_target(step);
                next.target_runs = false;
            }
            Act::KillSource => {
                next.source = false;
                next.source_runs = false;
                next.cut();
            }
            Act::KillTarget => {
                next.target = false;
                next.target_runs = false;
                next.cut();
            }
            Act::CutLine => next.cut(),
            Act::AtSource => {
                let duty = match next.to_source.pop_front()? {
                    Word::MayIRun => next.holder.asked(),
                    Word::Revoked => next.holder.revoked(),
                    Word::Committed => next.holder.committed(),
                    _ => Duty::Nothing,
                };
                next.at_source(duty);
            }
            Act::AtTarget => {
                let step = match next.to_target.pop_front()? {
                    Word::Granted => next.claimant.granted(),
                    Word::Declined => next.claimant.declined(),
                    Word::Revoke => next.claimant.revoke(),
                    _ => Step::Nothing,
                };
                next.at_target(step);
            }
            Act::SourceTimeOut => {
                let duty = next.holder.unreachable();
                next.at_source(duty);
            }
            Act::TargetTimeOut => {
                let step = next.claimant.forget();
                next.at_target(step);
            }
        }
        Some(next)
    }
}

fn worlds() -> HashSet<World> {
    let mut seen = HashSet::from([World::begin()]);
    let mut left = vec![World::begin()];
    while let Some(world) = left.pop() {
        for next in ACTS.into_iter().filter_map(|act| world.after(act)) {
            if seen.insert(next.clone()) {
                left.push(next);
            }
        }
    }
    seen
}

#[test]
fn lm_65_in_no_order_of_deaths_messages_and_orders_are_there_two_runners() {
    let worlds = worlds();
    assert!(worlds.len() > 500, "{} worlds", worlds.len());
    for world in &worlds {
        assert!(!(world.source_runs && world.target_runs), "{world:?}");
    }
    // None of this is by never running at all.
    assert!(worlds.iter().any(|world| world.target_runs));
    assert!(worlds.iter().any(|world| world.source_runs && world.thaws > 0));
}

/// Does these acts one after the other; those that cannot be are skipped.
fn play(acts: &[Act]) -> World {
    acts.iter().fold(World::begin(), |world, act| world.after(*act).unwrap_or(world))
}

#[test]
fn lm_65_whoever_dies_when_has_the_outcome_of_the_table() {
    use Act::AtSource;
    use Act::AtTarget;
    use Act::CloseFrontEnd;
    use Act::KillSource;
    use Act::KillTarget;
    use Act::Load;
    use Act::LoseTarget;
    use Act::Start;
    use Act::Thaw;
    let granted = [Load, Start, AtSource, AtTarget];
    let runners = |before: &[Act], acts: &[Act]| {
        let world = play(&[before, acts].concat());
        (world.source_runs, world.target_runs)
    };
    // Source daemon.
    assert_eq!(runners(&[], &[KillSource, Load, Start]), (false, false), "a clean device-lost");
    assert_eq!(runners(&granted, &[KillSource]), (false, true));
    // Target daemon.
    assert_eq!(runners(&[], &[KillTarget, Thaw]), (true, false), "the source goes on");
    assert_eq!(runners(&[Load], &[KillTarget, Thaw]), (true, false), "the source goes on");
    assert_eq!(runners(&granted, &[KillTarget, Thaw]), (false, false), "a clean device-lost");
    // Source VMM.
    assert_eq!(runners(&[], &[CloseFrontEnd, AtTarget, Load, Start]), (false, true));
    assert_eq!(runners(&[], &[CloseFrontEnd, AtTarget, KillSource, Load, Start]), (false, true));
    assert_eq!(runners(&granted, &[CloseFrontEnd]), (false, true));
    // Target VMM.
    assert_eq!(runners(&[Load], &[LoseTarget, Thaw]), (true, false), "the source goes on");
    assert_eq!(
        runners(&[Load, Start, AtSource], &[LoseTarget, Thaw, AtTarget, AtTarget, AtSource]),
        (true, false)
    );
    assert_eq!(runners(&granted, &[LoseTarget, Thaw, AtTarget, AtSource]), (false, false));
    // Nobody dies: the VMM changes its mind, and what comes late is refused.
    assert_eq!(runners(&[Load, Start], &[Thaw, AtTarget, AtSource, AtTarget, AtSource]), (true, false));
    assert_eq!(runners(&granted, &[Thaw, AtTarget, AtSource]), (false, true), "the target insists");
}

#[test]
fn a_bundle_is_loaded_once_and_started_once() {
    let mut claimant = Claimant::stored();
    assert_eq!(claimant.started(), Step::Refuse, "it was not loaded");
    assert_eq!(claimant.load(), Step::Nothing);
    assert_eq!(claimant.load(), Step::Refuse);
    assert_eq!(claimant.granted(), Step::Nothing);
    assert_eq!(claimant.started(), Step::Run);
    assert_eq!(claimant.started(), Step::Refuse);
    assert_eq!(claimant.forget(), Step::Nothing, "it runs");
}

#[test]
fn words_of_ownership_are_messages() {
    for message in [Message::MayIRun, Message::Granted, Message::Declined, Message::Revoke, Message::Revoked]
    {
        assert_eq!(Message::decode(&message.encode().unwrap()).unwrap(), message);
    }
}
