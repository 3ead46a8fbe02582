//! Engines that hang: what the supervisor saw, or they say themselves, and what follows (TDR-16, TDR-17).

use crate::sched::alarm::Hang;
use crate::sched::alarm::Sighting;
use crate::vgpu::counters::count;
use crate::vgpu::submission::reports::EngineReports;
use crate::vgpu::tdr::policy::DebugMode;
use crate::vgpu::tdr::policy::Level as RecoveryLevel;
use crate::vgpu::tdr::reason::Reason;
use crate::vgpu::tdr::recovery::Recovery;
use campanile_host_gpu::engine::address::EngineAddress;
use log::Level;

impl Recovery<'_> {
    /// Takes whatever an engine has reported in its shared block; also of a process that has ended.
    pub(in crate::vgpu) fn collect_reports(&mut self, at: EngineAddress) {
        EngineReports::of(self.vm).flush_reports(at);
        if self.vm.engines[at.index()].process().is_some_and(|process| process.power.says_hung()) {
            self.engine_timeout(at, "it reports that it cannot go on", None);
        }
    }

    /// The supervisor says that an engine hangs.
    pub(in crate::vgpu) fn engine_alarm(&mut self, at: EngineAddress) {
        let slot = &self.vm.engines[at.index()];
        let Some(sighting) = slot.alarm().take() else { return };
        if let Hang::BrokenProtocol(breach) = sighting.hang {
            // No debugger and no level of recovery lets it run on: it may be on a node that is another VM's.
            count(&self.vm.counters.broken_grants);
            self.recover_engine(at, Reason::EngineTimeout, &breach.to_string(), None);
            return;
        }
        if self.vm.engines.has_gone_on(at, &sighting, &*self.vm.config.schedule) {
            // TDR-38: no reset, and no device in error.
            count(&self.vm.counters.timeouts_in_vain);
            return;
        }
        let text = match sighting.hang {
            Hang::NotYielded => "it did not yield its node in time",
            Hang::NoProgress => "it made no progress in time",
            Hang::NotSuspended => "it did not suspend a context in time",
            Hang::BrokenProtocol(_) => "it broke the protocol of its grant word",
        };
        self.engine_timeout(at, text, Some(sighting));
    }

    /// An engine hangs: what follows is for level and debug mode to say (TDR-16, TDR-17).
    pub(in crate::vgpu) fn engine_timeout(
        &mut self,
        at: EngineAddress,
        text: &str,
        sighting: Option<Sighting>,
    ) {
        let slot = &mut self.vm.engines[at.index()];
        match self.vm.config.policy.debug {
            DebugMode::Ignore => {
                count(&self.vm.counters.timeouts_ignored);
                self.vm
                    .journal
                    .line(Level::Warn, format_args!("{at} engine hangs, which is ignored: {text}"));
                return;
            }
            DebugMode::Break => {
                if let Some(process) = slot.process().filter(|_| !slot.is_held) {
                    process.hold();
                    let pid = process.pid();
                    slot.is_held = true;
                    self.vm.journal.line(
                        Level::Error,
                        format_args!(
                            "{at} engine hangs: {text}; process {pid} is stopped for a debugger, until `campanile \
                             ctl reset`"
                        ),
                    );
                }
                return;
            }
            DebugMode::Recover | DebugMode::RecoverAlways => {}
        }
        match self.vm.config.policy.level {
            RecoveryLevel::Off => {}
            RecoveryLevel::Fatal => self.fatal(at, Reason::EngineTimeout, text),
            RecoveryLevel::Recover => {
                self.recover_engine(at, Reason::EngineTimeout, text, sighting);
            }
        }
    }
}
