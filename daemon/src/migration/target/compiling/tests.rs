//! Kernels that are compiled for a bundle, by processes that the tests are.

use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::adapter::stand_in::StandIn;
use campanile_host_gpu::engine::channel::Channel;
use campanile_host_gpu::engine::channel::ChannelError;
use campanile_host_gpu::engine::channel::Received;
use campanile_host_gpu::engine::message::Local;
use campanile_host_gpu::engine::message::Request;
use campanile_host_gpu::engine::message::Response;
use campanile_host_gpu::engine::message::START_DESCRIPTORS;
use campanile_host_gpu::engine::message::Start;
use campanile_host_gpu::engine::wire::Message;
use campanile_host_gpu::kernel::name::KernelName;
use campanile_protocol::control::message::LANGUAGE_WGSL;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;

use super::Compiler;
use super::Compiles;
use super::MOST;
use super::MOST_PROCESSES;
use super::MOST_UNDER_WAY;
use crate::confine::starter::Starter;
use crate::migration::channel::kernel::SentKernel;
use crate::vgpu::config::Compute;
use crate::vgpu::config::Config;
use crate::vgpu::objects::budget::Budget;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::testing::config;

/// A vGPU whose processes are the test.
fn vgpu() -> (Config, Receiver<Channel>) {
    let (stand_in, processes) = mpsc::channel();
    (Config { code_mib: 3, launcher: Arc::new(StandIn(stand_in)), ..config() }, processes)
}

fn compiles(config: &Config) -> Arc<Compiles> {
    Arc::new(Compiles::new(Compiler::of(config, Starter::begin().unwrap()).map(Arc::new)).unwrap())
}

fn take(compiles: &Compiles, text: &str) {
    let kernel = SentKernel { language: LANGUAGE_WGSL, entry: Some("main"), bytes: text.as_bytes() };
    compiles.take(&kernel).unwrap();
}

/// How long a test waits for what comes at once, where no rule is broken.
const LIMIT: Duration = Duration::from_secs(30);

fn left_are(compiles: &Compiles, left: u32) {
    let begun = Instant::now();
    while compiles.left() != left {
        assert!(begun.elapsed() < LIMIT, "{} kernels are left, not {left}", compiles.left());
        thread::yield_now();
    }
}

/// The log, once nothing writes to it.
fn ended(compiles: &Arc<Compiles>) -> Option<File> {
    let (end_tx, end) = mpsc::channel();
    let compiles = Arc::clone(compiles);
    // Not waited for: where it does not end, the test does.
    let _ender = thread::spawn(move || end_tx.send(compiles.end()));
    end.recv_timeout(LIMIT).expect("it ends")
}

/// What a process is told next; none where it is gone.
fn hear<M: Message>(process: &Channel, what: &str) -> Option<Received<M>> {
    let limit = Timespec::try_from(LIMIT).unwrap();
    let count = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(count, 1, "{what} does not come");
    match process.receive(false) {
        Ok(received) => Some(received.unwrap()),
        Err(ChannelError::Closed) => None,
        Err(error) => panic!("{what}: {error}"),
    }
}

fn held(config: &Config) -> u64 {
    config.budget.standing().kinds[Kind::Kernels as usize].1.bytes
}

fn say(process: &Channel, response: &Response) {
    process.send(response, &[], &[], true).unwrap();
}

/// The next process, which has started.
fn started(processes: &Receiver<Channel>) -> Channel {
    let process = processes.recv_timeout(LIMIT).expect("a process is started");
    let start = hear::<Start>(&process, "its start").unwrap();
    assert_eq!((start.message.code_mib, &start.message.local), (3, &Local::Host));
    assert_eq!(start.descriptors.len(), START_DESCRIPTORS + 1, "the log comes along");
    let device = "a device".to_owned();
    say(&process, &Response::Started { device, is_cpu: true, vram: 0, profile: None });
    assert!(matches!(next(&process).0, Request::Begin { segments: 0 }), "it writes to the log from here on");
    process
}

fn next(process: &Channel) -> (Request, Vec<u8>) {
    let received = hear::<Request>(process, "a request").expect("it is there");
    (received.message, received.bytes)
}

/// The text of the kernel that it is asked to compile.
fn asked(process: &Channel) -> (KernelName, String) {
    match next(process) {
        (Request::CreateKernel { kernel, language: LANGUAGE_WGSL, entry, .. }, text) => {
            assert_eq!(entry.as_deref(), Some("main"));
            (kernel, String::from_utf8(text).unwrap())
        }
        other => panic!("{other:?}"),
    }
}

fn compile(process: &Channel, text: &str) {
    let (kernel, asked) = asked(process);
    assert_eq!(asked, text);
    answer(process, kernel);
}

/// It has compiled a kernel, and is told to forget it.
fn answer(process: &Channel, kernel: KernelName) {
    let (workgroup, binding_count, constant_bytes) = ([1; 3], 0, 0);
    say(process, &Response::KernelCreated { kernel, workgroup, binding_count, constant_bytes });
    assert!(matches!(next(process).0, Request::DestroyKernel { kernel: of } if of == kernel));
    say(process, &Response::KernelDestroyed { kernel });
}

#[test]
fn kernels_are_compiled_by_one_process_and_the_log_is_what_it_was_given() {
    let (config, processes) = vgpu();
    let compiles = compiles(&config);
    assert!(ended(&compiles).is_none(), "nothing has come");
    let compiles = self::compiles(&config);
    take(&compiles, "first");
    assert_eq!(compiles.left(), 1);
    let process = started(&processes);
    compile(&process, "first");
    left_are(&compiles, 0);
    take(&compiles, "second");
    let (kernel, _) = asked(&process);
    say(&process, &Response::KernelRefused { kernel, reason: "it is no good".to_owned() });
    left_are(&compiles, 0);
    take(&compiles, "third");
    compile(&process, "third");
    left_are(&compiles, 0);
    assert_eq!(held(&config), 3 << 20, "the log alone");
    let log = ended(&compiles).unwrap();
    assert_eq!(log.metadata().unwrap().len(), 3 << 20);
    assert!(hear::<Request>(&process, "its end").is_none(), "it is gone by then");
    assert_eq!(held(&config), 0);
    assert!(ended(&compiles).is_none(), "once");
    take(&compiles, "too late");
    assert_eq!((compiles.left(), held(&config)), (0, 0));
    assert!(processes.try_recv().is_err(), "one process was enough");
}

#[test]
fn kernels_are_compiled_beside_each_other_a_few_at_a_time_and_end_in_any_order() {
    let (config, processes) = vgpu();
    let compiles = compiles(&config);
    let texts = ["0", "1", "2", "3", "4", "5"];
    texts.iter().for_each(|text| take(&compiles, text));
    let process = started(&processes);
    let kernels: Vec<_> = texts[..MOST_UNDER_WAY].iter().map(|text| (asked(&process), text)).collect();
    assert!(kernels.iter().all(|((_, asked), text)| asked == *text), "{kernels:?}");
    assert!(process.receive::<Request>(false).unwrap().is_none(), "and no more before one has ended");
    let [first, last] = [0, MOST_UNDER_WAY - 1].map(|at| kernels[at].0.0);
    answer(&process, last);
    assert_eq!(asked(&process).1, "4");
    answer(&process, first);
    assert_eq!(asked(&process).1, "5");
    left_are(&compiles, 4);
    // It ends: the oldest that it was at is left out, and the others are compiled.
    drop(process);
    let process = started(&processes);
    ["2", "4", "5"].into_iter().for_each(|text| assert_eq!(asked(&process).1, text));
    left_are(&compiles, 3);
}

#[test]
fn it_ends_at_once_whatever_its_process_is_at() {
    // Starting, and compiling.
    for has_started in [false, true] {
        let (config, processes) = vgpu();
        let compiles = compiles(&config);
        take(&compiles, "long");
        take(&compiles, "behind it");
        let process = if has_started {
            let process = started(&processes);
            asked(&process);
            process
        } else {
            processes.recv_timeout(LIMIT).expect("a process is started")
        };
        assert!(ended(&compiles).is_some());
        assert_eq!((compiles.left(), held(&config)), (0, 0));
        drop(process);
    }
}

#[test]
fn a_bundle_that_is_dropped_ends_its_process() {
    let (config, processes) = vgpu();
    let compiles = compiles(&config);
    take(&compiles, "long");
    let process = started(&processes);
    asked(&process);
    drop(compiles);
    assert!(hear::<Request>(&process, "its end").is_none());
}

#[test]
fn a_kernel_that_ends_its_process_is_left_out_and_after_some_all_are() {
    let (config, processes) = vgpu();
    let compiles = compiles(&config);
    for number in 0..=MOST_PROCESSES {
        take(&compiles, &number.to_string());
    }
    for number in 0..MOST_PROCESSES {
        let process = started(&processes);
        assert_eq!(asked(&process).1, number.to_string());
    }
    left_are(&compiles, 0);
    take(&compiles, "one more");
    assert_eq!(compiles.left(), 0);
    assert!(ended(&compiles).is_some(), "what was compiled before is good");
    assert!(processes.try_recv().is_err());
}

#[test]
fn kernels_whose_process_cannot_be_started_are_left_out() {
    let (config, processes) = vgpu();
    let compiles = compiles(&config);
    drop(processes);
    take(&compiles, "first");
    take(&compiles, "second");
    left_are(&compiles, 0);
}

#[test]
fn one_that_does_not_answer_in_time_is_left_out() {
    let (mut config, processes) = vgpu();
    config.policy.compile_timeout = Duration::from_millis(1);
    let compiles = compiles(&config);
    take(&compiles, "endless");
    take(&compiles, "endless, too");
    let _first = started(&processes);
    let _second = started(&processes);
    left_are(&compiles, 0);
}

#[test]
fn nothing_is_compiled_where_nothing_is_kept_or_can_be() {
    let none = Config { code_mib: 0, ..vgpu().0 };
    let cannot = Config { compute: Compute::Refused("no device".to_owned()), ..vgpu().0 };
    for config in [none, cannot] {
        let compiles = compiles(&config);
        take(&compiles, "text");
        assert_eq!((compiles.left(), held(&config)), (0, 0));
        assert!(ended(&compiles).is_none());
    }
}

#[test]
fn what_waits_and_the_log_are_charged_to_the_vgpu_and_what_has_no_room_is_left_out() {
    let (config, processes) = vgpu();
    let small = Config { budget: Arc::new(Budget::new(2 << 20)), ..config };
    let compiles = compiles(&small);
    take(&compiles, "text");
    left_are(&compiles, 0);
    assert!(ended(&compiles).is_none(), "the log has no room");
    assert!(processes.try_recv().is_err());
    // Three quarters of it are there for kernels that wait.
    let (config, processes) = vgpu();
    let some = Config { budget: Arc::new(Budget::new(6 << 20)), ..config };
    let compiles = self::compiles(&some);
    let large = "x".repeat(100 << 10);
    take(&compiles, &large);
    let process = started(&processes);
    asked(&process);
    (0..30).for_each(|_| take(&compiles, &large));
    let left = u64::from(compiles.left());
    assert!((10..30).contains(&left), "{left}");
    assert_eq!(held(&some), (3 << 20) + left * (100 << 10));
}

#[test]
fn lm_40_a_peer_that_sends_kernels_without_end_ends_its_migration() {
    let (config, processes) = vgpu();
    let compiles = compiles(&config);
    (0..MOST).for_each(|_| take(&compiles, "x"));
    let error = compiles.take(&SentKernel { language: LANGUAGE_WGSL, entry: None, bytes: b"x" }).unwrap_err();
    assert!(error.to_string().contains("more than 65536 kernels"), "{error}");
    drop((compiles, processes));
}
