//! Claims about the window onto the aperture.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use vhost::VhostBackend;
use vhost::vhost_user::Error;
use vhost::vhost_user::FrontendReqHandler;
use vhost::vhost_user::HandlerResult;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::VhostUserFrontendReqHandler;
use vhost::vhost_user::message::VhostUserMMap;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

use crate::bench::Bench;
use crate::bench::Vm;
use crate::bench::eventually;
use crate::device::APERTURE;
use crate::device::ECHO;
use crate::device::Script;
use crate::device::Seen;

/// What was asked for: region, offset in the file, offset in the region, length, flags.
type Mapped = (u8, u64, u64, u64, u64);

/// The front-end's answers to SHMEM_MAP.
struct Mapper {
    mapped: Mutex<Vec<Mapped>>,
    refuse: AtomicBool,
    /// Done before the reply, as QEMU changes its memory table then.
    before_reply: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl VhostUserFrontendReqHandler for Mapper {
    fn shmem_map(&self, map: &VhostUserMMap, _fd: &dyn AsRawFd) -> HandlerResult<u64> {
        if let Some(action) = self.before_reply.lock().unwrap().take() {
            action();
        }
        let mut mapped = self.mapped.lock().unwrap();
        if self.refuse.load(Ordering::Relaxed) || !mapped.is_empty() {
            return Err(io::Error::from_raw_os_error(22));
        }
        mapped.push((map.shmid, map.fd_offset, map.shm_offset, map.len, map.flags));
        Ok(0)
    }

    fn shmem_unmap(&self, _map: &VhostUserMMap) -> HandlerResult<u64> {
        self.mapped.lock().unwrap().clear();
        Ok(0)
    }
}

/// Gives the back-end its channel, and serves it.
fn serve_channel(vm: &Vm) -> Arc<Mapper> {
    let mapper = Arc::new(Mapper {
        mapped: Mutex::default(),
        refuse: AtomicBool::new(false),
        before_reply: Mutex::default(),
    });
    let mut handler = FrontendReqHandler::new(mapper.clone()).unwrap();
    handler.set_reply_ack_flag(true);
    let raw: RawFd = handler.get_tx_raw_fd();
    vm.front.clone().set_backend_request_fd(&raw).unwrap();
    std::thread::spawn(
        move || while matches!(handler.handle_request(), Ok(_) | Err(Error::ReqHandlerError(_))) {},
    );
    mapper
}

fn vm(bench: &Bench, without: VhostUserProtocolFeatures) -> Vm {
    Vm::with(bench.front_end(without, 0), 256, true)
}

fn open(bench: &Bench, times: usize) {
    eventually("window", || bench.script.count(&Seen::Window(Ok(()))) == times);
}

#[test]
fn aperture_is_mapped_whole_and_once() {
    let bench = Bench::new();
    let mut vm = vm(&bench, VhostUserProtocolFeatures::empty());
    let mapper = serve_channel(&vm);
    vm.start([0, 0]);
    open(&bench, 1);
    assert_eq!(*mapper.mapped.lock().unwrap(), [(1, 0, 0, APERTURE, 1)]);
    vm.set_memory();
    let bases = vm.stop();
    vm.start(bases);
    assert_eq!(vm.control.round(0, &[ECHO; 32]), [ECHO; 32]);
    open(&bench, 1);
}

#[test]
fn channel_may_come_after_the_rings_have_started() {
    let bench = Bench::new();
    let vm = vm(&bench, VhostUserProtocolFeatures::empty());
    vm.start([0, 0]);
    let _mapper = serve_channel(&vm);
    open(&bench, 1);
}

#[test]
fn window_comes_back_after_a_reset() {
    let bench = Bench::new();
    let vm = vm(&bench, VhostUserProtocolFeatures::empty());
    let mapper = serve_channel(&vm);
    vm.start([0, 0]);
    open(&bench, 1);
    vm.stop();
    vm.front.clone().reset_device().unwrap();
    // QEMU takes every mapping away when the guest resets the device.
    mapper.mapped.lock().unwrap().clear();
    vm.start([0, 0]);
    open(&bench, 2);
    assert_eq!(mapper.mapped.lock().unwrap().len(), 1);
    // A front-end that forgot to.
    vm.stop();
    vm.front.clone().reset_device().unwrap();
    vm.start([0, 0]);
    open(&bench, 3);
}

/// QEMU sends SET_MEM_TABLE, and waits for its reply, before it serves the back-end's channel again.
#[test]
fn memory_table_before_the_map_reply_is_no_deadlock() {
    let bench = Bench::new();
    let mut vm = vm(&bench, VhostUserProtocolFeatures::empty());
    let mapper = serve_channel(&vm);
    let (front, region) = (vm.front.clone(), vm.region());
    *mapper.before_reply.lock().unwrap() = Some(Box::new(move || {
        front.set_mem_table(&[region]).unwrap();
        front.set_mem_table(&[region]).unwrap();
    }));
    vm.start([0, 0]);
    open(&bench, 1);
    assert_eq!(vm.control.round(0, &[ECHO; 32]), [ECHO; 32]);
}

#[test]
fn commands_are_served_while_the_window_is_not_answered() {
    let bench = Bench::new();
    let mut vm = vm(&bench, VhostUserProtocolFeatures::empty());
    let (ours, theirs) = UnixStream::pair().unwrap();
    vm.front.clone().set_backend_request_fd(&theirs).unwrap();
    vm.start([0, 0]);
    assert_eq!(vm.control.round(0, &[ECHO; 32]), [ECHO; 32]);
    // And the end of the session does not wait for the answer.
    let Bench { script, socket, .. } = bench;
    socket.shutdown();
    assert_eq!(script.count(&Seen::Dropped), 1);
    drop((ours, theirs));
}

#[test]
fn refused_window_is_told() {
    let bench = Bench::new();
    let vm = vm(&bench, VhostUserProtocolFeatures::empty());
    let mapper = serve_channel(&vm);
    mapper.refuse.store(true, Ordering::Relaxed);
    vm.start([0, 0]);
    bench.script.await_seen(&Seen::Window(Err("the VMM did not map the window".into())));
}

#[test]
fn front_end_without_windows_is_told_which_have_them() {
    let bench = Bench::new();
    let vm = vm(&bench, VhostUserProtocolFeatures::SHMEM);
    assert!(!bench.script.seen().iter().any(|seen| matches!(seen, Seen::Window(_))));
    vm.start([0, 0]);
    let told = || {
        bench
            .script
            .seen()
            .into_iter()
            .find_map(|seen| if let Seen::Window(Err(why)) = seen { Some(why) } else { None })
    };
    eventually("window", || told().is_some());
    let why = told().unwrap();
    assert!(why.contains("QEMU") && why.contains("11.1") && why.contains("crosvm"), "{why}");
}

#[test]
fn device_without_an_aperture_hears_of_no_window() {
    let bench = Bench::with(Script::new(false, false));
    let mut vm = vm(&bench, VhostUserProtocolFeatures::empty());
    vm.start([0, 0]);
    vm.control.round(0, &[ECHO; 32]);
    assert!(!bench.script.seen().iter().any(|seen| matches!(seen, Seen::Window(_))));
}

#[test]
fn front_ends_that_never_answer_cost_few_threads() {
    let bench = Bench::new();
    let mut kept: Vec<(UnixStream, File)> = Vec::new();
    let refused = Seen::Window(Err("4 requests for a window are unanswered".into()));
    for turn in 0..6usize {
        let vm = vm(&bench, VhostUserProtocolFeatures::empty());
        let (ours, theirs) = UnixStream::pair().unwrap();
        vm.front.clone().set_backend_request_fd(&theirs).unwrap();
        vm.start([0, 0]);
        kept.push((ours, vm.guest.file.try_clone().unwrap()));
        // The device hears of it while its front-end is there.
        eventually("refused", || bench.script.count(&refused) == turn.saturating_sub(3));
    }
}
