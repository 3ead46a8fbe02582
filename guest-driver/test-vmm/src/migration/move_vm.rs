//! Moving a VM: source's side, target's side, and what becomes of the guest when one of them fails.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::arrival::Arrival;
use super::departure::Departure;
use super::error::At;
use super::error::Failure;
use super::error::MigrationError;
use super::error::Step;
use super::error::Whereabouts;
use super::options::MigrateOptions;
use super::options::Report;
use super::saved::SavedDevice;
use crate::connection::Connection;
use crate::connection::Opening;
use crate::order::Order;
use crate::request::Loss;
use crate::vm::LoopbackVm;
use crate::vm::Power;
use campanile_guest_driver::transport::error::TransportError;

impl LoopbackVm {
    /// Moves the VM to the daemon at `target`, while its virtual CPUs run as long as possible. Call it from a thread
    /// that is none of them. Blocks until the guest runs there, or again here.
    ///
    /// Guest threads that are no virtual CPUs must not touch mapped memory meanwhile; their commands wait.
    pub fn migrate(
        &self,
        target: impl AsRef<Path>,
        mut options: MigrateOptions<'_>,
    ) -> Result<Report, MigrationError> {
        let mut power = self.power();
        let source = self.connection();
        let here = |failure: Failure| MigrationError {
            step: failure.step,
            guest: if self.is_connected() { Whereabouts::Source } else { Whereabouts::Nowhere },
            source: failure.source,
        };
        if *power != Power::Running {
            return Err(here(Failure { step: Step::Pause, source: TransportError::Paused }));
        }
        let mut departure = match self.depart(&source, &options) {
            Ok(departure) => departure,
            Err(failure) => return Err(here(failure)),
        };
        let early = match self.brownout(target.as_ref(), &mut departure, &mut options) {
            Ok(early) => early,
            Err(failure) => {
                if let Err(error) = departure.go_on(None) {
                    log::warn!("switching the log off: {error}");
                }
                return Err(here(failure));
            }
        };
        let begun = Instant::now();
        if let Err(source) =
            options.unless_given_up(Step::Pause).and_then(|()| self.stop_virtual_cpus().at(Step::Pause))
        {
            drop(early);
            if let Err(error) = departure.go_on(None) {
                log::warn!("switching the log off: {error}");
            }
            return Err(here(source));
        }
        *power = Power::Paused;
        source.alarm.hold();
        let outcome = self.blackout(target.as_ref(), &source, &mut departure, early, &mut options);
        let report = departure.into_report();
        if outcome.is_ok() {
            (options.when_there)();
        }
        self.let_virtual_cpus_go();
        *power = Power::Running;
        match outcome {
            // The source's connection closes when `source` is dropped: the guest runs by then.
            Ok(()) => Ok(Report { pause: begun.elapsed(), ..report }),
            Err(failure) => Err(here(failure)),
        }
    }

    fn depart<'a>(
        &'a self,
        source: &'a Connection,
        options: &MigrateOptions<'_>,
    ) -> Result<Departure<'a>, Failure> {
        options.unless_given_up(Step::Log)?;
        Departure::begin(self, source, options).at(Step::Log)
    }

    /// What takes place while the guest runs. In QEMU's order the target is there from the beginning.
    fn brownout<'a>(
        &'a self,
        target: &Path,
        departure: &mut Departure<'_>,
        options: &mut MigrateOptions<'_>,
    ) -> Result<Option<Arrival<'a>>, Failure> {
        let early = match options.order {
            Order::Qemu => Some(self.arrive(target, Opening::Negotiated, departure, options)?),
            Order::CloudHypervisor => None,
        };
        options.unless_given_up(Step::Passes)?;
        departure.passes(options).at(Step::Passes)?;
        Ok(early)
    }

    fn arrive<'a>(
        &'a self,
        target: &Path,
        opening: Opening,
        departure: &Departure<'_>,
        options: &MigrateOptions<'_>,
    ) -> Result<Arrival<'a>, Failure> {
        options.unless_given_up(Step::Connect)?;
        let ram_file = departure.copy.as_ref().map_or_else(|| self.ram.file(), |copy| Arc::clone(&copy.file));
        Arrival::open(self, target, opening, ram_file).at(Step::Connect)
    }

    /// What takes place in the pause. A failure leaves the guest on the source, or without a device.
    fn blackout(
        &self,
        target: &Path,
        source: &Arc<Connection>,
        departure: &mut Departure<'_>,
        mut early: Option<Arrival<'_>>,
        options: &mut MigrateOptions<'_>,
    ) -> Result<(), Failure> {
        let mut bases = None;
        let moved = departure.stop_and_save(&mut bases, options).and_then(|saved| {
            let arrival = match early.take() {
                Some(arrival) => arrival,
                None => {
                    source.front_end.hang_up();
                    let (protocol, facts) = (saved.protocol, saved.facts);
                    self.arrive(target, Opening::AsBefore { protocol, facts }, departure, options)?
                }
            };
            arrival.take(&saved, options.order, options, &mut departure.report)
        });
        // The target's connection closes before the source is asked to go on.
        drop(early);
        if moved.is_err() && Arc::ptr_eq(&self.connection(), source) {
            if let Err(error) = departure.go_on(bases.as_deref()) {
                log::warn!("the source does not go on: {error}");
                source.front_end.hang_up();
                self.rings.lose(Loss::Disconnected);
            }
            source.alarm.release(self.rings.all());
        }
        moved
    }

    /// Stops guest and device, and reads the device's state; both stand still until [`Self::go_on`] or
    /// [`Self::restore`]. Guest RAM stays where it is, in this process.
    pub fn save(&self) -> Result<SavedDevice, MigrationError> {
        let mut power = self.power();
        let source = self.connection();
        let mut options = MigrateOptions { live: false, ..MigrateOptions::default() };
        let failed =
            |failure: Failure, guest| MigrationError { step: failure.step, guest, source: failure.source };
        if *power != Power::Running {
            let paused = Failure { step: Step::Pause, source: TransportError::Paused };
            return Err(failed(paused, Whereabouts::Source));
        }
        let mut departure =
            self.depart(&source, &options).map_err(|failure| failed(failure, Whereabouts::Source))?;
        self.stop_virtual_cpus().at(Step::Pause).map_err(|failure| failed(failure, Whereabouts::Source))?;
        let mut bases = None;
        match departure.stop_and_save(&mut bases, &mut options) {
            Ok(saved) => {
                *power = Power::Stopped;
                Ok(saved)
            }
            Err(failure) => {
                let gone = departure.go_on(bases.as_deref()).is_err();
                self.let_virtual_cpus_go();
                Err(failed(failure, if gone { Whereabouts::Nowhere } else { Whereabouts::Source }))
            }
        }
    }

    /// Goes on where [`Self::save`] stopped: on the same connection the rings start anew, as cloud-hypervisor does after
    /// a snapshot. Whatever fails, the virtual CPUs run afterwards.
    pub fn go_on(&self, saved: &SavedDevice) -> Result<(), TransportError> {
        let mut power = self.power();
        if *power != Power::Stopped {
            return Err(TransportError::NotStopped);
        }
        let source = self.connection();
        let started =
            self.start_device(&source, &self.rings.wirings(), &saved.bases, Order::CloudHypervisor, None);
        self.let_virtual_cpus_go();
        *power = Power::Running;
        started
    }

    /// Goes on from a saved state at another daemon, or at the same one anew. The earlier connection closes first in
    /// cloud-hypervisor's order, and last in QEMU's. After a failure the VM stands still as before.
    pub fn restore(
        &self,
        target: impl AsRef<Path>,
        saved: &SavedDevice,
        order: Order,
    ) -> Result<Report, MigrationError> {
        let mut power = self.power();
        let failed = |failure: Failure| MigrationError {
            step: failure.step,
            guest: Whereabouts::Source,
            source: failure.source,
        };
        if *power != Power::Stopped {
            return Err(failed(Failure { step: Step::Connect, source: TransportError::NotStopped }));
        }
        let begun = Instant::now();
        let source = self.connection();
        source.alarm.hold();
        let opening = match order {
            Order::Qemu => Opening::Negotiated,
            Order::CloudHypervisor => {
                source.front_end.hang_up();
                Opening::AsBefore { protocol: saved.protocol, facts: saved.facts }
            }
        };
        let mut report = Report { state_bytes: saved.state.len(), ..Report::default() };
        let options = MigrateOptions::default();
        Arrival::open(self, target.as_ref(), opening, self.ram.file())
            .at(Step::Connect)
            .and_then(|arrival| arrival.take(saved, order, &options, &mut report))
            .map_err(failed)?;
        self.let_virtual_cpus_go();
        *power = Power::Running;
        report.pause = begun.elapsed();
        Ok(report)
    }
}
