//! Commands that are answered later: when the session says that their token is due.
//!
//! ```text
//!   command ─▶ token ─────────────── due ───────────▶ answer
//!                │                                      ▲
//!                └─ saved ─▶ restored, no ticket yet ─┬─┘  due first: kept until the ticket is there
//!                                                     └──  ticket first: as ever
//! ```
//!
//! A saved one is named by its queue and head, as the shell names it.

use std::collections::HashMap;
use std::collections::HashSet;

use campanile_protocol::virtio_gpu::command::Header;
use serde::Deserialize;
use serde::Serialize;
use thiserror::Error;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::session::state::Refusal;
use crate::session::timeline::Token;
use crate::vhost::ticket::Ticket;

/// What to say when a token is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Response {
    /// OK_NODATA.
    Plain,
    /// OK_MAP_INFO.
    MapInfo,
}

/// Why what was saved is not taken.
#[derive(Debug, Error)]
pub(super) enum WaitingError {
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
struct Waiting {
    place: Place,
    header: Header,
    response: Response,
}

/// A command that can be answered.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) ticket: Ticket,
    pub(super) header: Header,
    pub(super) response: Response,
    pub(super) outcome: Result<(), Refusal>,
}

/// What became of a ticket that was restored.
#[derive(Debug)]
pub(super) enum Found {
    /// It waits.
    Waits,
    /// It was due before it was found.
    Due(Due),
    /// Nobody knows it.
    Unknown(Ticket),
}

/// All commands of a device that wait.
#[derive(Debug, Default)]
pub(super) struct WaitingList {
    waiting: HashMap<Token, Waiting>,
    last_token: u64,
}

/// One, as it is saved.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    token: u64,
    queue: u16,
    head: u16,
    /// Bytes of its header.
    header: Vec<u8>,
    response: Response,
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
struct SavedList {
    last_token: u64,
    waiting: Vec<Saved>,
}

impl WaitingList {
    pub(super) fn new_token(&mut self) -> Token {
        self.last_token += 1;
        Token(self.last_token)
    }

    pub(super) fn insert(&mut self, token: Token, ticket: Ticket, header: Header, response: Response) {
        self.waiting.insert(token, Waiting { place: Place::Ticket(ticket), header, response });
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// A token is due. Its command, if it can be answered now.
    pub(super) fn due(&mut self, token: Token, outcome: Result<(), Refusal>) -> Option<Due> {
        let waiting = self.waiting.remove(&token)?;
        let Waiting { place, header, response } = waiting;
        match place {
            Place::Ticket(ticket) => Some(Due { ticket, header, response, outcome }),
            Place::Named(queue, head, _) => {
                let place = Place::Named(queue, head, Some(outcome));
                self.waiting.insert(token, Waiting { place, header, response });
                None
            }
        }
    }

    /// A command has been found again.
    pub(super) fn restored(&mut self, ticket: Ticket) -> Found {
        let is_it = |waiting: &Waiting| matches!(waiting.place, Place::Named(queue, head, _) if (queue, head) == (ticket.queue(), ticket.head()));
        let Some((token, outcome)) = self.waiting.iter().find_map(|(token, waiting)| match waiting.place {
            Place::Named(_, _, outcome) if is_it(waiting) => Some((*token, outcome)),
            _ => None,
        }) else {
            return Found::Unknown(ticket);
        };
        let Some(Waiting { header, response, .. }) = self.waiting.remove(&token) else {
            return Found::Unknown(ticket);
        };
        match outcome {
            Some(outcome) => Found::Due(Due { ticket, header, response, outcome }),
            None => {
                self.insert(token, ticket, header, response);
                Found::Waits
            }
        }
    }

    /// A command whose chain is not what it was: nobody waits for it any more. Its header, if it was known.
    pub(super) fn lost(&mut self, queue: u16, head: u16) -> Option<Header> {
        let named =
            |waiting: &Waiting| matches!(waiting.place, Place::Named(q, h, _) if (q, h) == (queue, head));
        let token = self.waiting.iter().find(|(_, waiting)| named(waiting)).map(|(token, _)| *token)?;
        self.waiting.remove(&token).map(|waiting| waiting.header)
    }

    /// For the device's state.
    pub(super) fn save(&self) -> Result<Vec<u8>, WaitingError> {
        let mut waiting: Vec<Saved> = self
            .waiting
            .iter()
            .map(|(token, waiting)| {
                let (queue, head, outcome) = match &waiting.place {
                    Place::Ticket(ticket) => (ticket.queue(), ticket.head(), None),
                    Place::Named(queue, head, outcome) => (*queue, *head, *outcome),
                };
                let header = waiting.header.as_bytes().to_vec();
                let outcome = outcome.map(Outcome::from);
                Saved { token: token.0, queue, head, header, response: waiting.response, outcome }
            })
            .collect();
        waiting.sort_by_key(|saved| saved.token);
        Ok(serde_json::to_vec(&SavedList { last_token: self.last_token, waiting })?)
    }

    /// What was saved.
    ///
    /// # Errors
    /// It is not what was written, or cannot be.
    pub(super) fn load(bytes: &[u8]) -> Result<Self, WaitingError> {
        if bytes.is_empty() {
            // A state that was not made for a VMM: no ring had anything in flight.
            return Ok(Self::default());
        }
        let saved: SavedList = serde_json::from_slice(bytes)?;
        let mut list = Self { last_token: saved.last_token, ..Self::default() };
        let mut names = HashSet::new();
        for Saved { token, queue, head, header, response, outcome } in saved.waiting {
            let refused = WaitingError::Command { queue, head };
            let Ok(header) = Header::read_from_bytes(&header) else { return Err(refused) };
            let is_new = names.insert((queue, head)) && !list.waiting.contains_key(&Token(token));
            if !is_new || token == 0 || token > saved.last_token {
                return Err(refused);
            }
            let waiting =
                Waiting { place: Place::Named(queue, head, outcome.map(Result::from)), header, response };
            list.waiting.insert(Token(token), waiting);
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(fence_id: u64) -> Header {
        Header { kind: 7, fence_id, ..Header::default() }
    }

    /// A list of three commands, saved and read.
    fn moved() -> (WaitingList, [Token; 3]) {
        let mut list = WaitingList::default();
        let tokens = [4, 9, 2].map(|head| {
            let token = list.new_token();
            list.insert(token, Ticket::detached(0, head, 24), header(u64::from(head)), Response::Plain);
            token
        });
        (WaitingList::load(&list.save().unwrap()).unwrap(), tokens)
    }

    #[test]
    fn command_is_answered_when_both_its_ticket_and_its_token_are_there() {
        let (mut list, tokens) = moved();
        assert!(matches!(list.restored(Ticket::detached(0, 4, 24)), Found::Waits));
        let due = list.due(tokens[0], Ok(())).unwrap();
        assert_eq!((due.ticket.head(), due.header.fence_id), (4, 4));
        assert!(list.due(tokens[1], Err(Refusal::Resource)).is_none());
        // It may go on to a third host before it was found.
        let mut list = WaitingList::load(&list.save().unwrap()).unwrap();
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
        assert_eq!(list.lost(0, 4), Some(header(4)));
        assert_eq!(list.lost(0, 4), None);
        assert!(list.due(tokens[0], Ok(())).is_none());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let one = |token: u64, head: u16, header: usize| {
            let header = vec![0u8; header];
            serde_json::json!({ "token": token, "queue": 0, "head": head, "header": header, "response": "Plain" })
        };
        let list = |waiting: Vec<serde_json::Value>| {
            let text = serde_json::json!({ "last_token": 2, "waiting": waiting });
            WaitingList::load(&serde_json::to_vec(&text).unwrap())
        };
        assert!(list(vec![one(1, 0, 24), one(2, 1, 24)]).is_ok());
        assert!(list(vec![one(1, 0, 24), one(2, 0, 24)]).is_err(), "a head twice");
        assert!(list(vec![one(1, 0, 24), one(1, 1, 24)]).is_err(), "a token twice");
        assert!(list(vec![one(3, 0, 24)]).is_err(), "a token of the future");
        assert!(list(vec![one(0, 0, 24)]).is_err());
        assert!(list(vec![one(1, 0, 23)]).is_err(), "no header");
        assert!(WaitingList::load(b"{}").is_err());
    }
}
