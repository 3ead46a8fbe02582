//! The fakes of a session: they are started, stepped and ended here.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use super::conduct::Conduct;
use super::conduct::Ran;
use super::engine::Fake;
use crate::adapter::error::AdapterError;
use crate::adapter::launcher::Instance;
use crate::adapter::launcher::Launched;
use crate::adapter::launcher::Launcher;
use crate::adapter::launcher::Memory;
use crate::adapter::launcher::Own;
use crate::adapter::launcher::send_start;
use crate::engine::channel::Channel;
use crate::engine::message::NodeKind;
use crate::engine::message::Start;
use crate::kernel::name::KernelName;

#[derive(Debug, Default)]
struct State {
    /// By id, in the order of their start.
    fakes: BTreeMap<u32, Fake>,
    started: u32,
    ran: Vec<Ran>,
}

/// Starts fakes, and steps them. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Fakes(Arc<Mutex<State>>);

impl Fakes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets each run up to `buffers` kernel-mode buffers.
    pub fn step(&self, buffers: usize) {
        let mut state = self.state();
        let State { fakes, ran, .. } = &mut *state;
        fakes.values_mut().for_each(|fake| fake.step(buffers, ran));
    }

    /// Has those of a node that are there go on so.
    pub fn conduct(&self, node: NodeKind, conduct: Conduct) {
        let mut state = self.state();
        state.fakes.values_mut().filter(|fake| fake.node == node).for_each(|fake| fake.set(conduct));
    }

    /// How many were started, ever.
    pub fn started(&self) -> u32 {
        self.state().started
    }

    /// How many are there.
    pub fn alive(&self) -> usize {
        self.state().fakes.len()
    }

    /// Handles of the kernels that one of them, by its number from 1 in the order of their start, was asked to compile, and of those
    /// that it was told to forget.
    pub fn kernels(&self, number: u32) -> (Vec<u64>, Vec<u64>) {
        let state = self.state();
        let handles = |names: &[KernelName]| names.iter().map(|name| name.handle).collect();
        let fake = state.fakes.get(&number);
        fake.map(|fake| (handles(&fake.compiled), handles(&fake.forgotten))).unwrap_or_default()
    }

    /// Which of those kernels it was to compile alone.
    pub fn alone(&self, number: u32) -> Vec<bool> {
        self.state().fakes.get(&number).map(|fake| fake.alone.clone()).unwrap_or_default()
    }

    /// Takes out what was run to its end since the last call, oldest first.
    pub fn take_ran(&self) -> Vec<Ran> {
        std::mem::take(&mut self.state().ran)
    }
}

impl Launcher for Fakes {
    fn launch(&self, start: &Start, memory: Memory<'_>, own: Own<'_>) -> io::Result<Launched> {
        let (channel, theirs) = Channel::pair()?;
        send_start(&channel, start, memory, own)?;
        let fake = Fake::new(theirs)?;
        let mut state = self.state();
        state.started += 1;
        let id = state.started;
        state.fakes.insert(id, fake);
        Ok(Launched { instance: Some(Box::new(FakeInstance { id, fakes: self.clone() })), channel })
    }
}

/// A fake, as the daemon ends it.
#[derive(Debug)]
struct FakeInstance {
    id: u32,
    fakes: Fakes,
}

impl FakeInstance {
    fn remove(&self) {
        self.fakes.state().fakes.remove(&self.id);
    }
}

impl Instance for FakeInstance {
    fn id(&self) -> u32 {
        self.id
    }

    fn is_there(&mut self) -> bool {
        self.fakes.state().fakes.get(&self.id).is_some_and(|fake| !fake.is_dead())
    }

    fn hold(&self) {
        if let Some(fake) = self.fakes.state().fakes.get_mut(&self.id) {
            fake.set(Conduct::Hangs);
        }
    }

    fn ending(&self) -> String {
        "the fake engine ended".to_owned()
    }

    fn stand_still(&self) -> io::Result<()> {
        self.hold();
        Ok(())
    }

    fn end(&mut self) -> Result<(), AdapterError> {
        self.remove();
        Ok(())
    }

    fn discard(self: Box<Self>) {
        self.remove();
    }
}

impl Drop for FakeInstance {
    fn drop(&mut self) {
        self.remove();
    }
}
