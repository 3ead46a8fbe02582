//! Starts the threads of a role with what the role is left.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;

use super::Confinement;
use super::error::ConfineError;
use super::files;
use super::files::Enforced;
use super::privileges;
use super::roles::Reach;
use super::roles::Role;
use super::system_calls;

/// Confines the roles of one daemon, and remembers what the kernel enforces of it.
#[derive(Debug, Default)]
pub struct Confiner {
    confinement: Confinement,
    files: Mutex<BTreeMap<Role, Enforced>>,
}

impl Confiner {
    /// That confines, or, where that is off, leaves all threads as they are.
    pub fn new(confinement: Confinement) -> Self {
        Self { confinement, files: Mutex::default() }
    }

    /// Whether it confines.
    pub const fn confinement(&self) -> Confinement {
        self.confinement
    }

    /// What the kernel enforces of the files of each role that has begun.
    pub fn files(&self) -> BTreeMap<Role, Enforced> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Calls `begin` on a thread of this role and this reach: the threads that it starts have that role too. The calling
    /// thread stays as it is.
    ///
    /// # Errors
    /// No thread could be had, it panicked, or the kernel cannot confine it; nothing has begun then.
    pub fn within<T: Send>(
        &self,
        role: Role,
        reach: &Reach,
        begin: impl FnOnce() -> T + Send,
    ) -> Result<T, ConfineError> {
        if self.confinement == Confinement::Off {
            return Ok(begin());
        }
        thread::scope(|scope| {
            let confined = move || {
                privileges::keep_capabilities(role.capabilities())?;
                let enforced = files::restrict(reach)?;
                system_calls::restrict(role, reach)?;
                self.files.lock().unwrap_or_else(PoisonError::into_inner).insert(role, enforced);
                Ok(begin())
            };
            let thread = thread::Builder::new().name(role.name().to_owned()).spawn_scoped(scope, confined);
            let thread = thread.map_err(ConfineError::of("starting a thread to confine"))?;
            thread.join().unwrap_or(Err(ConfineError::Panic { role: role.name() }))
        })
    }
}
