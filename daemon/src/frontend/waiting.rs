//! Commands that are answered later: when the session says that their token is due.
//!
//! ```text
//!   command ─▶ token ─────────────── due ───────────▶ answer
//!                │                                      ▲
//!                └─ saved ─▶ restored, no ticket yet ─┬─┘  due first: kept until the ticket is there
//!                                                     └──  ticket first: as ever
//! ```
//!
//! A saved one is named by its queue and head, as the shell names it. What a front keeps of a command is its own type `C`.

use std::collections::HashMap;
use std::collections::HashSet;
use std::fmt::Debug;

use serde::Deserialize;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::vhost::ticket::Ticket;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

/// What a front keeps of a command that waits, to answer it.
pub trait Command: Clone + Debug + Send + Serialize + DeserializeOwned {}

impl<C: Clone + Debug + Send + Serialize + DeserializeOwned> Command for C {}

/// Why what was saved is not taken.
#[derive(Debug, Error)]
pub enum WaitingError {
    /// Not what was written.
    #[error("the commands that wait cannot be read")]
    Form(#[from] serde_json::Error),
    /// A command that cannot be.
    #[error("command {head} of queue {queue} cannot wait, or does so twice")]
    Command {
        /// Its queue.
        queue: u16,
        /// Its head.
        head: u16,
    },
}

/// Where the answer of a command goes.
#[derive(Debug)]
enum Place {
    Ticket(Ticket),
    /// Restored, and not found again yet: queue and head. Perhaps due already.
    Named(u16, u16, Option<Result<(), Refusal>>),
}

#[derive(Debug)]
struct Waiting<C> {
    place: Place,
    command: C,
}

/// A command that can be answered.
#[derive(Debug)]
pub struct Due<C> {
    /// Where the answer goes.
    pub ticket: Ticket,
    /// What it is.
    pub command: C,
    /// What it came to.
    pub outcome: Result<(), Refusal>,
}

/// What became of a ticket that was restored.
#[derive(Debug)]
pub enum Found<C> {
    /// It waits.
    Waits(Token),
    /// It was due before it was found.
    Due(Due<C>),
    /// No command waits under it.
    Unknown(Ticket),
}

/// All commands of a device that wait.
#[derive(Debug)]
pub struct WaitingList<C> {
    waiting: HashMap<Token, Waiting<C>>,
    last_token: u64,
}

impl<C> Default for WaitingList<C> {
    fn default() -> Self {
        Self { waiting: HashMap::new(), last_token: 0 }
    }
}

/// One, as it is saved.
#[derive(Debug, Serialize, Deserialize)]
struct Saved<C> {
    token: u64,
    queue: u16,
    head: u16,
    #[serde(flatten)]
    command: C,
    /// It was due before its command was found.
    #[serde(default)]
    outcome: Option<Outcome>,
}

/// What came of a command, as it is saved.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Outcome {
    Done,
    OutOfMemory,
    Resource,
    Context,
    Parameter,
    Unspecified,
}

impl From<Result<(), Refusal>> for Outcome {
    fn from(outcome: Result<(), Refusal>) -> Self {
        match outcome {
            Ok(()) => Self::Done,
            Err(Refusal::OutOfMemory) => Self::OutOfMemory,
            Err(Refusal::Resource) => Self::Resource,
            Err(Refusal::Context) => Self::Context,
            Err(Refusal::Parameter) => Self::Parameter,
            Err(Refusal::Unspecified) => Self::Unspecified,
        }
    }
}

impl From<Outcome> for Result<(), Refusal> {
    fn from(outcome: Outcome) -> Self {
        Err(match outcome {
            Outcome::Done => return Ok(()),
            Outcome::OutOfMemory => Refusal::OutOfMemory,
            Outcome::Resource => Refusal::Resource,
            Outcome::Context => Refusal::Context,
            Outcome::Parameter => Refusal::Parameter,
            Outcome::Unspecified => Refusal::Unspecified,
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedList<C> {
    last_token: u64,
    waiting: Vec<Saved<C>>,
}

impl<C: Command> WaitingList<C> {
    /// A name that no command had before.
    pub fn new_token(&mut self) -> Token {
        self.last_token += 1;
        Token(self.last_token)
    }

    /// A command waits.
    pub fn insert(&mut self, token: Token, ticket: Ticket, command: C) {
        self.waiting.insert(token, Waiting { place: Place::Ticket(ticket), command });
    }

    /// No command waits any more.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// A command that waits.
    pub fn command(&self, token: Token) -> Option<&C> {
        self.waiting.get(&token).map(|waiting| &waiting.command)
    }

    /// All commands whose outcome is not known yet.
    pub fn undecided(&self) -> impl Iterator<Item = (Token, &C)> {
        let decided = |waiting: &Waiting<C>| matches!(waiting.place, Place::Named(_, _, Some(_)));
        let open = self.waiting.iter().filter(move |(_, waiting)| !decided(waiting));
        open.map(|(token, waiting)| (*token, &waiting.command))
    }

    /// Takes a command that can be answered now.
    pub fn take(&mut self, token: Token) -> Option<(Ticket, C)> {
        self.ticket(token)?;
        let Waiting { place, command } = self.waiting.remove(&token)?;
        match place {
            Place::Ticket(ticket) => Some((ticket, command)),
            Place::Named(..) => None,
        }
    }

    /// Where the answer of a command goes, if that is known by now.
    pub fn ticket(&self, token: Token) -> Option<&Ticket> {
        match &self.waiting.get(&token)?.place {
            Place::Ticket(ticket) => Some(ticket),
            Place::Named(..) => None,
        }
    }

    /// A token is due. Its command, if it can be answered now.
    pub fn due(&mut self, token: Token, outcome: Result<(), Refusal>) -> Option<Due<C>> {
        let Waiting { place, command } = self.waiting.remove(&token)?;
        match place {
            Place::Ticket(ticket) => Some(Due { ticket, command, outcome }),
            Place::Named(queue, head, _) => {
                let place = Place::Named(queue, head, Some(outcome));
                self.waiting.insert(token, Waiting { place, command });
                None
            }
        }
    }

    /// The token of a command that was restored, by its queue and head.
    fn named(&self, queue: u16, head: u16) -> Option<Token> {
        let is_it =
            |waiting: &Waiting<C>| matches!(waiting.place, Place::Named(q, h, _) if (q, h) == (queue, head));
        self.waiting.iter().find(|(_, waiting)| is_it(waiting)).map(|(token, _)| *token)
    }

    /// A command has been found again.
    pub fn restored(&mut self, ticket: Ticket) -> Found<C> {
        let Some(token) = self.named(ticket.queue(), ticket.head()) else { return Found::Unknown(ticket) };
        let Some(Waiting { place, command }) = self.waiting.remove(&token) else {
            return Found::Unknown(ticket);
        };
        match place {
            Place::Named(_, _, Some(outcome)) => Found::Due(Due { ticket, command, outcome }),
            Place::Named(_, _, None) | Place::Ticket(_) => {
                self.insert(token, ticket, command);
                Found::Waits(token)
            }
        }
    }

    /// A command whose chain is not what it was: the guest does not wait for it any more. What it was, if it was known.
    pub fn lost(&mut self, queue: u16, head: u16) -> Option<(Token, C)> {
        let token = self.named(queue, head)?;
        self.waiting.remove(&token).map(|waiting| (token, waiting.command))
    }

    /// For the device's state.
    ///
    /// # Errors
    /// A command cannot be written.
    pub fn save(&self) -> Result<Vec<u8>, WaitingError> {
        let mut waiting: Vec<Saved<C>> = self
            .waiting
            .iter()
            .map(|(token, waiting)| {
                let (queue, head, outcome) = match &waiting.place {
                    Place::Ticket(ticket) => (ticket.queue(), ticket.head(), None),
                    Place::Named(queue, head, outcome) => (*queue, *head, *outcome),
                };
                let outcome = outcome.map(Outcome::from);
                Saved { token: token.0, queue, head, command: waiting.command.clone(), outcome }
            })
            .collect();
        waiting.sort_by_key(|saved| saved.token);
        Ok(serde_json::to_vec(&SavedList { last_token: self.last_token, waiting })?)
    }

    /// What was saved.
    ///
    /// # Errors
    /// It is not what was written, or cannot be.
    pub fn load(bytes: &[u8]) -> Result<Self, WaitingError> {
        if bytes.is_empty() {
            // A state that was not made for a VMM: no ring had anything in flight.
            return Ok(Self::default());
        }
        let saved: SavedList<C> = serde_json::from_slice(bytes)?;
        let mut list = Self { last_token: saved.last_token, ..Self::default() };
        let mut names = HashSet::new();
        for Saved { token, queue, head, command, outcome } in saved.waiting {
            let is_new = names.insert((queue, head)) && !list.waiting.contains_key(&Token(token));
            if !is_new || token == 0 || token > saved.last_token {
                return Err(WaitingError::Command { queue, head });
            }
            let place = Place::Named(queue, head, outcome.map(Result::from));
            list.waiting.insert(Token(token), Waiting { place, command });
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    struct Asked {
        number: u64,
    }

    /// A list of three commands, saved and read.
    fn moved() -> (WaitingList<Asked>, [Token; 3]) {
        let mut list = WaitingList::default();
        let tokens = [4, 9, 2].map(|head| {
            let token = list.new_token();
            list.insert(token, Ticket::detached(0, head, 24), Asked { number: u64::from(head) });
            token
        });
        (WaitingList::load(&list.save().unwrap()).unwrap(), tokens)
    }

    #[test]
    fn command_is_answered_when_both_its_ticket_and_its_token_are_there() {
        let (mut list, tokens) = moved();
        assert!(
            matches!(list.restored(Ticket::detached(0, 4, 24)), Found::Waits(token) if token == tokens[0])
        );
        let due = list.due(tokens[0], Ok(())).unwrap();
        assert_eq!((due.ticket.head(), due.command.number), (4, 4));
        assert!(list.due(tokens[1], Err(Refusal::Resource)).is_none());
        // It may go on to a third host before it was found.
        let mut list: WaitingList<Asked> = WaitingList::load(&list.save().unwrap()).unwrap();
        let found = list.restored(Ticket::detached(0, 9, 24));
        assert!(matches!(found, Found::Due(Due { outcome: Err(Refusal::Resource), .. })));
        let Found::Due(due) = found else { return };
        assert_eq!((due.ticket.head(), due.outcome), (9, Err(Refusal::Resource)));
        assert!(list.new_token().0 > tokens[2].0, "no token twice");
    }

    #[test]
    fn ticket_that_nobody_knows_comes_back() {
        let (mut list, tokens) = moved();
        for (queue, head) in [(0, 5), (1, 4)] {
            assert!(matches!(list.restored(Ticket::detached(queue, head, 24)), Found::Unknown(_)));
        }
        assert_eq!(list.lost(0, 4), Some((tokens[0], Asked { number: 4 })));
        assert_eq!(list.lost(0, 4), None);
        assert!(list.due(tokens[0], Ok(())).is_none());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let one = |token: u64, head: u16| serde_json::json!({ "token": token, "queue": 0, "head": head, "number": 1 });
        let list = |waiting: Vec<serde_json::Value>| {
            let text = serde_json::json!({ "last_token": 2, "waiting": waiting });
            WaitingList::<Asked>::load(&serde_json::to_vec(&text).unwrap())
        };
        assert!(list(vec![one(1, 0), one(2, 1)]).is_ok());
        assert!(list(vec![one(1, 0), one(2, 0)]).is_err(), "a head twice");
        assert!(list(vec![one(1, 0), one(1, 1)]).is_err(), "a token twice");
        assert!(list(vec![one(3, 0)]).is_err(), "a token of the future");
        assert!(list(vec![one(0, 0)]).is_err());
        assert!(list(vec![serde_json::json!({ "token": 1, "queue": 0, "head": 0 })]).is_err(), "no command");
        assert!(WaitingList::<Asked>::load(b"{}").is_err());
    }
}
