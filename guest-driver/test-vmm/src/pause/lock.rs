//! A lock that guest threads and the front-end both take.

use std::ops::Deref;
use std::ops::DerefMut;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use super::section::Section;

/// A mutex whose holder does not stand still. Nobody pauses the VM while holding one.
#[derive(Debug, Default)]
pub(crate) struct Lock<T> {
    mutex: Mutex<T>,
}

/// The right to what the lock protects.
pub(crate) struct Held<'a, T> {
    /// Dropped first.
    guard: MutexGuard<'a, T>,
    _section: Section,
}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { mutex: Mutex::new(value) }
    }

    /// Blocks while another thread holds it. A panic of such a thread is not passed on.
    pub(crate) fn lock(&self) -> Held<'_, T> {
        let section = Section::enter();
        Held { guard: self.mutex.lock().unwrap_or_else(PoisonError::into_inner), _section: section }
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
