//! What the connection thread and the window thread have to tell the worker.
//!
//! Newer news replaces older, so that the box is bounded whatever the front-end sends.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use campanile_host_gpu::event::Event;

use super::device::WindowError;
use super::state_transfer::LoadOrder;
use super::state_transfer::SaveOrder;
use crate::guest_ram::dirty_log::DirtyLog;
use crate::guest_ram::memory::GuestRam;

/// News since the worker last looked.
#[derive(Debug, Default)]
pub(super) struct Mail {
    /// The session is over.
    pub(super) exit: bool,
    /// Newest epoch of the session; the device is reset when it changes.
    pub(super) epoch: u64,
    /// Counts what the connection thread waits for: see [`super::gate::Gate`].
    pub(super) serial: u64,
    /// Whether the device is to be frozen.
    pub(super) frozen: bool,
    /// Newest guest memory.
    pub(super) memory: Option<Arc<GuestRam>>,
    /// The dirty log begins, or ends.
    pub(super) log: Option<Option<Arc<DirtyLog>>>,
    /// A state to put the device into.
    pub(super) load: Option<LoadOrder>,
    /// The device is to be saved; it is frozen.
    pub(super) save: Option<SaveOrder>,
    /// Fate of the window, and the epoch in which it was asked for.
    pub(super) window: Option<(u64, Result<(), WindowError>)>,
    /// Rings (bit by index) to be looked at without a kick.
    pub(super) rings: u64,
}

impl Mail {
    /// Notes the fate of the window. What was asked in an older epoch does not replace what is newer.
    pub(super) fn tell_window(&mut self, epoch: u64, state: Result<(), WindowError>) {
        if self.window.as_ref().is_none_or(|(known, _)| *known <= epoch) {
            self.window = Some((epoch, state));
        }
    }
}

/// A [`Mail`] and the bell that says that it changed.
#[derive(Debug)]
pub(super) struct Mailbox {
    mail: Mutex<Mail>,
    bell: Event,
}

impl Mailbox {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { mail: Mutex::default(), bell: Event::new()? })
    }

    /// Changes the mail and rings the bell.
    pub(super) fn post(&self, change: impl FnOnce(&mut Mail)) {
        change(&mut self.mail.lock().unwrap_or_else(PoisonError::into_inner));
        self.bell.signal();
    }

    /// As [`Self::post`], and gives the mail a serial to wait for.
    pub(super) fn post_numbered(&self, change: impl FnOnce(&mut Mail)) -> u64 {
        let mut serial = 0;
        self.post(|mail| {
            mail.serial += 1;
            serial = mail.serial;
            change(mail);
        });
        serial
    }

    /// Takes the mail; what is a state rather than an event stays.
    pub(super) fn take(&self) -> Mail {
        // A bell that was not rung is fine: the mail says what there is.
        let _rung = self.bell.drain();
        let mut mail = self.mail.lock().unwrap_or_else(PoisonError::into_inner);
        let Mail { exit, epoch, serial, frozen, .. } = *mail;
        std::mem::replace(&mut *mail, Mail { exit, epoch, serial, frozen, ..Mail::default() })
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
