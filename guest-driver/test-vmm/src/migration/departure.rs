//! The source's side.

use std::time::Instant;

use super::error::At;
use super::error::Failure;
use super::error::Step;
use super::options::MigrateOptions;
use super::options::Next;
use super::options::Pass;
use super::options::Ram;
use super::options::Report;
use super::ram_copy::RamCopy;
use super::saved::SavedDevice;
use crate::connection::Connection;
use crate::dirty_log::DirtyLog;
use crate::order::Order;
use crate::vm::LoopbackVm;
use campanile_guest_driver::transport::error::TransportError;

/// A migration, as far as the source has to do with it.
pub(super) struct Departure<'a> {
    vm: &'a LoopbackVm,
    source: &'a Connection,
    order: Order,
    ram: Ram,
    pub(super) log: Option<DirtyLog>,
    pub(super) copy: Option<RamCopy>,
    pub(super) report: Report,
}

impl<'a> Departure<'a> {
    /// Switches the log on, where the guest is to move while it runs, and makes new memory, where RAM moves.
    pub(super) fn begin(
        vm: &'a LoopbackVm,
        source: &'a Connection,
        options: &MigrateOptions<'_>,
    ) -> Result<Self, TransportError> {
        let copy = (options.ram != Ram::Stays).then(|| RamCopy::new(&vm.ram)).transpose()?;
        let log = options.live.then(|| DirtyLog::new(source.front_end.log_end())).transpose()?;
        let report = Report::default();
        if let Some(log) = &log {
            source.front_end.can_log()?;
            source.front_end.start_log(&vm.rings.wirings(), vm.accepted, log)?;
        }
        Ok(Self { vm, source, order: options.order, ram: options.ram, log, copy, report })
    }

    /// Passes until the caller has enough. Nothing where nothing moves while the guest runs.
    pub(super) fn passes(&mut self, options: &mut MigrateOptions<'_>) -> Result<(), TransportError> {
        if self.log.is_none() {
            return Ok(());
        }
        loop {
            let pass = self.pass()?;
            if (options.after_pass)(&pass) == Next::Stop {
                return Ok(());
            }
        }
    }

    /// Takes the log and copies what it names.
    fn pass(&mut self) -> Result<Pass, TransportError> {
        let number = u32::try_from(self.report.passes.len()).unwrap_or(u32::MAX);
        if self.order == Order::CloudHypervisor && number > 0 {
            self.swap_log()?;
        }
        let mut pages = self.logged();
        let device_pages = pages.len() as u64;
        if self.ram == Ram::MovesWithoutLog {
            pages.clear();
        }
        let (cpu_pages, copied_pages) = match &self.copy {
            None => (0, 0),
            Some(copy) if number == 0 => (0, copy.all(&self.vm.ram)),
            Some(copy) => copy.some(&self.vm.ram, &pages)?,
        };
        let pass = Pass { number, device_pages, cpu_pages, copied_pages };
        self.report.passes.push(pass);
        Ok(pass)
    }

    fn logged(&self) -> Vec<u64> {
        let ram = &self.vm.ram;
        let pages = ram.region().size() as u64 / campanile_protocol::PAGE_SIZE;
        self.log.as_ref().map_or_else(Vec::new, |log| log.take(ram.base(), pages))
    }

    /// A new log for the device; what is in the old one is kept for the next look.
    fn swap_log(&mut self) -> Result<(), TransportError> {
        if let Some(old) = &self.log {
            let new = DirtyLog::new(self.source.front_end.log_end())?;
            self.source.front_end.swap_log(&new)?;
            new.add(old);
            self.log = Some(new);
        }
        Ok(())
    }

    /// Virtual CPUs stand still: stops the rings, and copies the last pages as QEMU does, before the state.
    pub(super) fn stop(&mut self) -> Result<Vec<u16>, TransportError> {
        let begun = Instant::now();
        let bases = self.source.front_end.stop(self.vm.rings.count())?;
        self.report.stop = begun.elapsed();
        if self.order == Order::Qemu {
            self.last_pass()?;
        } else {
            self.swap_log()?;
        }
        Ok(bases)
    }

    fn last_pass(&mut self) -> Result<(), TransportError> {
        if self.log.is_some() || self.copy.is_some() {
            self.pass()?;
        }
        Ok(())
    }

    /// Reads the state.
    pub(super) fn save(&mut self, bases: &[u16]) -> Result<SavedDevice, TransportError> {
        let begun = Instant::now();
        let state = self.source.front_end.save(self.vm.options.transfer_timeout)?;
        self.report.save = begun.elapsed();
        self.report.state_bytes = state.len();
        if self.order == Order::CloudHypervisor {
            self.swap_log()?;
            self.last_pass()?;
        }
        let protocol = self.source.front_end.protocol();
        Ok(SavedDevice { state, bases: bases.to_vec(), protocol, facts: self.source.facts })
    }

    /// Everything from the stop to the state.
    pub(super) fn stop_and_save(
        &mut self,
        bases: &mut Option<Vec<u16>>,
        options: &mut MigrateOptions<'_>,
    ) -> Result<SavedDevice, Failure> {
        options.unless_given_up(Step::Stop)?;
        let places = self.stop().at(Step::Stop)?;
        let places = bases.insert(places);
        (options.while_paused)();
        options.unless_given_up(Step::Save)?;
        self.save(places).at(Step::Save)
    }

    pub(super) fn into_report(self) -> Report {
        self.report
    }

    /// The source goes on, as QEMU has it: with the log where it was on, and then without.
    pub(super) fn go_on(&self, stopped: Option<&[u16]>) -> Result<(), TransportError> {
        let wirings = self.vm.rings.wirings();
        if let Some(bases) = stopped {
            self.vm.start_device(self.source, &wirings, bases, Order::Qemu, self.log.as_ref())?;
        }
        if self.log.is_some() {
            self.source.front_end.stop_log(&wirings, self.vm.accepted)?;
        }
        Ok(())
    }
}
