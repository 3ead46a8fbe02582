//! The rooms that requests and events work on, and what all of them need.
//!
//! Whatever works on several of them borrows them from here, and gives them back: it reaches nothing that stands above.

use std::io;
use std::sync::Arc;

use super::config::Config;
use super::counters::Counters;
use super::doorbells::room::Doorbells;
use super::doorbells::room::Parts;
use super::engines::kept_code::KeptCode;
use super::engines::room::Engines;
use super::fences::table::FenceTable;
use super::journal::Journal;
use super::memory::room::Memory;
use super::memory::vidmm::vram::VideoMemory;
use super::objects::budget::Purse;
use super::objects::processes::Objects;
use super::power::freeze::Freeze;
use super::timer::Timer;

/// What one VM has of one vGPU, from its objects to its doorbells.
#[derive(Debug)]
pub struct Vm {
    /// What the operator wants.
    pub config: Arc<Config>,
    /// What is counted.
    pub counters: Arc<Counters>,
    /// The log.
    pub journal: Journal,
    /// Wakes the thread when something is due.
    pub timer: Timer,
    /// Whether it runs, or stands still.
    pub freeze: Freeze,
    /// Whether nothing was ever asked of it: only then another session's state can become its own (LM-31).
    pub is_fresh: bool,
    /// What is charged to the VM, and to no process.
    pub purse: Purse,
    /// Guest processes.
    pub objects: Objects,
    /// Memory.
    pub memory: Memory,
    /// Native fences.
    pub fences: FenceTable,
    /// Engines.
    pub engines: Engines,
    /// Doorbells.
    pub doorbells: Doorbells,
}

impl Vm {
    /// Empty, over this video memory.
    ///
    /// # Errors
    /// Page tables or descriptors could not be had.
    pub fn new(config: Arc<Config>, counters: Arc<Counters>, memory: VideoMemory) -> io::Result<Self> {
        let (purse, mut engines) = (config.budget.vm(), Engines::new(&config)?);
        for at in engines.addresses() {
            engines[at.index()].kept = KeptCode::new(at, &config, &purse)?;
        }
        Ok(Self {
            journal: Journal::new(&config.name, Arc::clone(&config.log)),
            timer: Timer::new()?,
            freeze: Freeze::Running,
            is_fresh: true,
            purse,
            objects: Objects::default(),
            memory: Memory::new(memory, Arc::clone(&config.account))?,
            fences: FenceTable::new()?,
            engines,
            doorbells: Doorbells::default(),
            config,
            counters,
        })
    }

    /// The doorbells, and what they work on.
    pub fn doorbells(&mut self) -> (&mut Doorbells, Parts<'_>) {
        let Self { doorbells, objects, memory, engines, config, counters, .. } = self;
        (doorbells, Parts { objects, memory, engines, config, counters })
    }
}
