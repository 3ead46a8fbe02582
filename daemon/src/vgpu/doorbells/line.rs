//! Who waits to be connected: in order within a guest process, and in turn among processes, so that one that asks
//! without end keeps no other waiting.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use campanile_protocol::device_page::RESPONSE_SLOTS;
use campanile_protocol::handle::Handle;

use crate::ids::GuestProcess;
use crate::vgpu::objects::message::Origin;

/// Connects of one process that wait. A driver has no more messages under way.
pub const MAX_WAITING: usize = RESPONSE_SLOTS as usize;

/// A connect that waits.
#[derive(Debug, Clone, Copy)]
pub struct WaitingConnect {
    /// Where its answer goes.
    pub origin: Origin,
    /// The doorbell.
    pub doorbell: Handle,
}

/// A place in line.
#[derive(Debug)]
struct Waiting<T> {
    connect: T,
    /// Connects served before it came.
    came: u64,
}

/// Connects that wait for one engine.
#[derive(Debug)]
pub struct Line<T> {
    /// By virtio-gpu context. None is empty.
    waiting: BTreeMap<GuestProcess, VecDeque<Waiting<T>>>,
    /// Whose turn it is: each context of `waiting`, once.
    turns: VecDeque<GuestProcess>,
    served: u64,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), turns: VecDeque::new(), served: 0 }
    }
}

impl<T> Line<T> {
    /// Whether `context` may wait once more.
    pub fn has_room(&self, context: GuestProcess) -> bool {
        self.waiting.get(&context).is_none_or(|line| line.len() < MAX_WAITING)
    }

    /// Goes to the end of the line of `context`.
    pub fn push(&mut self, context: GuestProcess, connect: T) {
        let line = self.waiting.entry(context).or_default();
        if line.is_empty() {
            self.turns.push_back(context);
        }
        line.push_back(Waiting { connect, came: self.served });
    }

    /// Whose turn it is.
    pub fn first(&self) -> Option<&T> {
        let context = self.turns.front()?;
        Some(&self.waiting.get(context)?.front()?.connect)
    }

    /// Takes [`Self::first`] out, with how many others were served while it waited.
    pub fn take(&mut self) -> Option<(T, u64)> {
        let context = self.turns.pop_front()?;
        let line = self.waiting.get_mut(&context)?;
        let first = line.pop_front()?;
        if line.is_empty() {
            self.waiting.remove(&context);
        } else {
            self.turns.push_back(context);
        }
        Some((first.connect, self.served - first.came))
    }

    /// One of those taken out has been given a place.
    pub fn count_served(&mut self) {
        self.served += 1;
    }

    /// All, in the order in which they would be served if no more came.
    pub fn in_order(&self) -> Vec<&T> {
        let mut lines: Vec<_> = self.turns.iter().filter_map(|context| self.waiting.get(context)).collect();
        let (mut all, mut round) = (Vec::new(), 0);
        while !lines.is_empty() {
            lines.retain(|line| line.len() > round);
            all.extend(lines.iter().filter_map(|line| line.get(round)).map(|waiting| &waiting.connect));
            round += 1;
        }
        all
    }

    /// Takes all of `context` out.
    pub fn take_all_of(&mut self, context: GuestProcess) -> Vec<T> {
        self.turns.retain(|turn| *turn != context);
        let line = self.waiting.remove(&context).unwrap_or_default();
        line.into_iter().map(|waiting| waiting.connect).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Line;
    use super::MAX_WAITING;
    use crate::ids::GuestProcess;

    fn serve(line: &mut Line<u32>) -> Option<(u32, u64)> {
        let taken = line.take();
        line.count_served();
        taken
    }

    #[test]
    fn ums_77_nobody_waits_for_more_turns_than_there_are_others() {
        let mut line = Line::default();
        for queue in 0..32 {
            line.push(GuestProcess::new(1), queue);
        }
        // Each comes back as soon as it was served.
        for _ in 0..1000 {
            let (queue, turns) = serve(&mut line).unwrap();
            assert!(turns <= 31, "{turns}");
            line.push(GuestProcess::new(1), queue);
        }
    }

    #[test]
    fn a_process_that_asks_much_keeps_another_waiting_for_one_turn() {
        let mut line = Line::default();
        while line.has_room(GuestProcess::new(1)) {
            line.push(GuestProcess::new(1), 10);
        }
        line.push(GuestProcess::new(2), 20);
        assert_eq!(line.first(), Some(&10));
        assert_eq!(serve(&mut line), Some((10, 0)));
        assert_eq!(serve(&mut line), Some((20, 1)));
        assert_eq!(line.take_all_of(GuestProcess::new(1)).len(), MAX_WAITING - 1);
        assert!(line.first().is_none() && line.take().is_none());
        assert!(line.has_room(GuestProcess::new(1)));
    }

    #[test]
    fn all_that_wait_are_listed_as_they_will_be_served_and_without_those_that_were_taken_out() {
        let mut line = Line::default();
        for connect in [10, 11, 12] {
            line.push(GuestProcess::new(1), connect);
        }
        line.push(GuestProcess::new(2), 20);
        line.push(GuestProcess::new(3), 30);
        line.push(GuestProcess::new(3), 31);
        assert_eq!(line.in_order(), [&10, &20, &30, &11, &31, &12]);
        assert_eq!(line.take_all_of(GuestProcess::new(2)), [20]);
        let listed: Vec<u32> = line.in_order().into_iter().copied().collect();
        assert_eq!(listed, [10, 30, 11, 31, 12]);
        let served: Vec<u32> = std::iter::from_fn(|| Some(serve(&mut line)?.0)).take(9).collect();
        assert_eq!(served, listed);
        assert!(line.in_order().is_empty());
    }

    #[test]
    fn a_process_waits_with_as_many_connects_as_messages_can_be_under_way_and_no_more() {
        let mut line = Line::default();
        for connect in 0..u32::try_from(MAX_WAITING).unwrap() {
            assert!(line.has_room(GuestProcess::new(1)), "{connect}");
            line.push(GuestProcess::new(1), connect);
        }
        assert!(!line.has_room(GuestProcess::new(1)) && line.has_room(GuestProcess::new(2)));
        assert_eq!(line.take_all_of(GuestProcess::new(1)).len(), MAX_WAITING);
        assert!(line.has_room(GuestProcess::new(1)));
    }
}
