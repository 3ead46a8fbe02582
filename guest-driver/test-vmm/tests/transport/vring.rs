//! The library's ring, for devices whose worker runs while the log is switched, and whose rings move to others.
//!
//! SET_VRING_ADDR comes while a ring runs, too, when the log is switched on or off. The library then reads the used
//! index and writes it back: an entry that its worker adds in between is taken back. A kick that is not there any more
//! when it is read would end the library's worker. What is asked of a ring that was stopped would be written into one
//! that another device has by now.

use std::fs::File;
use std::io::ErrorKind;
use std::sync::RwLockReadGuard;
use std::sync::RwLockWriteGuard;

use vhost_user_backend::VringRwLock;
use vhost_user_backend::VringState;
use vhost_user_backend::VringStateGuard;
use vhost_user_backend::VringStateMutGuard;
use vhost_user_backend::VringT;
use virtio_queue::Error;
use virtio_queue::QueueT;

use crate::fake_device::Memory;

/// A ring of the fake device.
#[derive(Clone)]
pub(crate) struct Vring(VringRwLock<Memory>);

impl<'a> VringStateGuard<'a, Memory> for Vring {
    type G = RwLockReadGuard<'a, VringState<Memory>>;
}

impl<'a> VringStateMutGuard<'a, Memory> for Vring {
    type G = RwLockWriteGuard<'a, VringState<Memory>>;
}

impl VringT<Memory> for Vring {
    fn new(memory: Memory, max_queue_size: u16) -> Result<Self, Error> {
        VringRwLock::new(memory, max_queue_size).map(Self)
    }

    fn set_queue_next_used(&self, index: u16) {
        let mut state = self.get_mut();
        if !state.get_queue().ready() {
            state.get_queue_mut().set_next_used(index);
        }
    }

    fn read_kick(&self) -> std::io::Result<bool> {
        match self.0.read_kick() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            read => read,
        }
    }

    fn enable_notification(&self) -> Result<bool, Error> {
        let mut state = self.get_mut();
        if state.get_queue().ready() { state.enable_notification() } else { Ok(false) }
    }

    fn disable_notification(&self) -> Result<(), Error> {
        let mut state = self.get_mut();
        if state.get_queue().ready() { state.disable_notification() } else { Ok(()) }
    }

    fn get_ref(&self) -> <Self as VringStateGuard<'_, Memory>>::G {
        self.0.get_ref()
    }

    fn get_mut(&self) -> <Self as VringStateMutGuard<'_, Memory>>::G {
        self.0.get_mut()
    }

    fn add_used(&self, head: u16, length: u32) -> Result<(), Error> {
        self.0.add_used(head, length)
    }

    fn signal_used_queue(&self) -> std::io::Result<()> {
        self.0.signal_used_queue()
    }

    fn needs_notification(&self) -> Result<bool, Error> {
        self.0.needs_notification()
    }

    fn set_enabled(&self, enabled: bool) {
        self.0.set_enabled(enabled);
    }

    fn set_queue_info(&self, descriptors: u64, available: u64, used: u64) -> Result<(), Error> {
        self.0.set_queue_info(descriptors, available, used)
    }

    fn queue_next_avail(&self) -> u16 {
        self.0.queue_next_avail()
    }

    fn set_queue_next_avail(&self, base: u16) {
        self.0.set_queue_next_avail(base);
    }

    fn queue_used_idx(&self) -> Result<u16, Error> {
        self.0.queue_used_idx()
    }

    fn set_queue_size(&self, entries: u16) {
        self.0.set_queue_size(entries);
    }

    fn set_queue_event_idx(&self, enabled: bool) {
        self.0.set_queue_event_idx(enabled);
    }

    fn set_queue_ready(&self, ready: bool) {
        self.0.set_queue_ready(ready);
    }

    fn set_kick(&self, file: Option<File>) {
        self.0.set_kick(file);
    }

    fn set_call(&self, file: Option<File>) {
        self.0.set_call(file);
    }

    fn set_err(&self, file: Option<File>) {
        self.0.set_err(file);
    }
}
