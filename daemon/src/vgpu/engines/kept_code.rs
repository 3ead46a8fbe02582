//! What the driver of a compute engine has compiled, kept over all its processes for as long as the session is, and over a daemon
//! that is replaced or killed.

use std::fs::File;
use std::io;
use std::sync::Arc;

use campanile_host_gpu::adapter::code_log::CodeLog;
use campanile_host_gpu::code_cache::log::Claims;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;

use crate::vgpu::config::Config;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::budget::Purse;

/// A log on its way to another daemon.
#[derive(Debug)]
pub struct KeptFile {
    /// Place of its engine.
    pub engine: u32,
    /// The log.
    pub file: File,
}

impl KeptFile {
    /// Another descriptor of it.
    ///
    /// # Errors
    /// None could be had.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { engine: self.engine, file: self.file.try_clone()? })
    }
}

/// The log of one engine, and what was charged for it: as much as it can ever hold.
#[derive(Debug)]
pub struct KeptCode {
    log: Arc<CodeLog>,
    _charge: Charge,
}

impl KeptCode {
    /// An empty one for an engine of this vGPU. None for engines that compile nothing, where the operator wants none, or where the
    /// budget of the VM has no room for it.
    ///
    /// # Errors
    /// Memory or descriptors could not be had.
    pub fn new(at: EngineAddress, config: &Config, purse: &Purse) -> io::Result<Option<Self>> {
        if at.node != NodeKind::Compute {
            return Ok(None);
        }
        let Some(log) = CodeLog::new(config.code_mib)? else { return Ok(None) };
        match purse.charge(Kind::Kernels, u64::from(config.code_mib) << 20) {
            Ok(charge) => Ok(Some(Self { log: Arc::new(log), _charge: charge })),
            Err(error) => {
                log::warn!("{}: the {at} engine keeps no code: {error}", config.name);
                Ok(None)
            }
        }
    }

    /// Goes on with what the same VM's engine has compiled under a daemon before this one. Nothing was given the log yet.
    ///
    /// # Errors
    /// The operator wants a log of another size, or it is none.
    pub fn adopt(&mut self, file: File) -> io::Result<()> {
        self.log = Arc::new(CodeLog::kept(file, self.log.mib())?);
        Ok(())
    }

    /// The log.
    pub fn log(&self) -> Arc<CodeLog> {
        Arc::clone(&self.log)
    }

    /// What engines say of it.
    pub fn claims(&self) -> Claims {
        self.log.claims()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;
    use std::sync::mpsc;

    use campanile_host_gpu::adapter::stand_in::StandIn;
    use campanile_host_gpu::engine::address::EngineAddress;
    use campanile_host_gpu::engine::channel::Channel;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_host_gpu::engine::message::START_DESCRIPTORS;
    use campanile_host_gpu::engine::message::Start;

    use super::CodeLog;
    use super::KeptCode;
    use crate::vgpu::config::Config;
    use crate::vgpu::engines::lifecycle::Lifecycle;
    use crate::vgpu::objects::budget::Budget;
    use crate::vgpu::objects::budget::Kind;
    use crate::vgpu::session::Session;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::config;
    use crate::vgpu::testing::session;

    fn log(session: &Session, at: EngineAddress) -> Option<Arc<CodeLog>> {
        session.vm.engines[at.index()].kept.as_ref().map(KeptCode::log)
    }

    const COMPUTE: EngineAddress = EngineAddress::new(0, NodeKind::Compute);

    /// MiB of the log that an engine was given with its start, and which file it is.
    fn given(engines: &mpsc::Receiver<Channel>) -> (u32, Option<u64>) {
        let received = engines.recv().unwrap().receive::<Start>(true).unwrap().unwrap();
        let mib = received.message.code_mib;
        let log = received.descriptors.into_iter().nth(START_DESCRIPTORS).filter(|_| mib > 0);
        (mib, log.map(|log| File::from(log).metadata().unwrap().ino()))
    }

    #[test]
    fn every_process_of_an_engine_and_its_spare_have_one_log_and_no_other_engine_has_it() {
        let (stand_in, engines) = mpsc::channel();
        let config = Config { code_mib: 3, launcher: Arc::new(StandIn(stand_in)), ..config() };
        let config = Arc::new(config);
        let [mut session, mut other] = [session(&config), session(&config)];
        let begin = |session: &mut Session, at| {
            Lifecycle::of(&mut session.vm)
                .ensure_engine(at)
                .unwrap_or_else(|refused| panic!("{}", refused.text));
            given(&engines)
        };
        let first = begin(&mut session, COMPUTE);
        assert!(matches!(first, (3, Some(_))));
        Lifecycle::of(&mut session.vm).start_spare(COMPUTE);
        assert_eq!(given(&engines), first, "a spare");
        // The spare takes its place, and then one that is started.
        for _ in 0..2 {
            session.vm.engines.unwatch(COMPUTE);
            Lifecycle::of(&mut session.vm).start_next_process(COMPUTE).unwrap();
        }
        assert_eq!(given(&engines), first, "behind a reset of the engine");
        Lifecycle::of(&mut session.vm).stop_engine(COMPUTE);
        assert_eq!(begin(&mut session, COMPUTE), first, "behind a reset of all");
        assert!(log(&session, COPY).is_none());
        // Processes that were started ahead meanwhile.
        engines.try_iter().for_each(drop);
        let of_other = begin(&mut other, COMPUTE);
        assert!(of_other.0 == 3 && of_other.1.is_some() && of_other != first);
    }

    fn charged(budget: &Budget) -> u64 {
        budget.standing().kinds[Kind::Kernels as usize].1.bytes
    }

    #[test]
    fn each_compute_engine_of_a_session_has_a_log_which_is_charged_as_long_as_the_session_is() {
        let config = Arc::new(Config { code_mib: 3, engines: 2, ..config() });
        let first = session(&config);
        let others = session(&config);
        let logs: Vec<_> = EngineAddress::all(2).filter_map(|at| log(&first, at)).collect();
        assert_eq!(logs.len(), 2);
        assert!(!Arc::ptr_eq(&logs[0], &logs[1]));
        let other = log(&others, COMPUTE).unwrap();
        assert!(logs.iter().all(|log| !Arc::ptr_eq(log, &other)), "another session has its own");
        assert!(log(&first, COPY).is_none());
        assert_eq!(charged(&config.budget), 4 * (3 << 20));
        drop((first, others));
        assert_eq!(charged(&config.budget), 0);
    }

    #[test]
    fn an_engine_keeps_no_code_where_the_budget_has_no_room_or_the_operator_wants_none() {
        let small = Config { code_mib: 3, budget: Arc::new(Budget::new(2 << 20)), ..config() };
        for config in [small, Config { code_mib: 0, ..config() }] {
            let config = Arc::new(config);
            assert!(log(&session(&config), COMPUTE).is_none());
            assert_eq!(charged(&config.budget), 0);
        }
    }
}
