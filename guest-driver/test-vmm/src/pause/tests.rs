//! Stopping threads that compute, allocate, sleep and lock.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::allocator::VcpuAllocator;
use super::gate::Gate;
use super::lock::Lock;
use super::virtual_cpu::VirtualCpu;

#[global_allocator]
static ALLOCATOR: VcpuAllocator = VcpuAllocator;

/// Only there so that a failure ends.
const LIMIT: Duration = Duration::from_secs(60);

struct Crew {
    gate: Arc<Gate>,
    counts: Arc<[AtomicU64; 4]>,
    over: Arc<AtomicBool>,
    shared: Arc<Lock<Vec<u64>>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// Four virtual CPUs: one computes, one allocates, one takes a lock of the front-end's, one comes and goes.
fn crew() -> Crew {
    let mut crew = Crew {
        gate: Arc::default(),
        counts: Arc::default(),
        over: Arc::default(),
        shared: Arc::default(),
        threads: Vec::new(),
    };
    for kind in 0..4 {
        let (gate, counts, over, shared) = (
            Arc::clone(&crew.gate),
            Arc::clone(&crew.counts),
            Arc::clone(&crew.over),
            Arc::clone(&crew.shared),
        );
        crew.threads.push(std::thread::spawn(move || {
            let mut cpu = VirtualCpu::register(&gate);
            assert!(cpu.is_some());
            while !over.load(Ordering::Relaxed) {
                match kind {
                    0 => {}
                    1 => drop(std::hint::black_box(vec![1_u8; 5000])),
                    2 => shared.lock().push(1),
                    _ => {
                        drop(cpu.take());
                        cpu = VirtualCpu::register(&gate);
                    }
                }
                counts[kind].fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    for count in &*crew.counts {
        while count.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
    }
    crew
}

impl Crew {
    fn counts(&self) -> Vec<u64> {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

#[test]
fn nobody_moves_behind_a_closed_gate_and_everybody_goes_on() {
    let crew = crew();
    for _ in 0..2000 {
        crew.gate.close(LIMIT).unwrap();
        let before = crew.counts();
        // What a front-end does meanwhile: it allocates, and takes its locks.
        for size in 1..20 {
            drop(std::hint::black_box(vec![7_u8; size * 300]));
        }
        crew.shared.lock().clear();
        // The one that comes and goes may count once after it ceased to be a virtual CPU.
        let after = crew.counts();
        assert_eq!(before[..3], after[..3]);
        crew.gate.open();
    }
    let last = crew.counts();
    for (count, last) in crew.counts.iter().zip(last) {
        while count.load(Ordering::Relaxed) == last {
            std::thread::yield_now();
        }
    }
    crew.over.store(true, Ordering::Relaxed);
    for thread in crew.threads {
        thread.join().unwrap();
    }
}

#[test]
fn sleepers_are_stopped_and_sleep_on() {
    let gate: Arc<Gate> = Arc::default();
    let woken: Arc<AtomicBool> = Arc::default();
    let (there_tx, there_rx) = std::sync::mpsc::channel();
    let (go_tx, go_rx) = std::sync::mpsc::channel::<()>();
    let thread = {
        let (gate, woken) = (Arc::clone(&gate), Arc::clone(&woken));
        std::thread::spawn(move || {
            let _cpu = VirtualCpu::register(&gate).unwrap();
            there_tx.send(()).unwrap();
            go_rx.recv().unwrap();
            woken.store(true, Ordering::SeqCst);
        })
    };
    there_rx.recv().unwrap();
    for _ in 0..200 {
        gate.close(LIMIT).unwrap();
        gate.open();
    }
    gate.close(LIMIT).unwrap();
    go_tx.send(()).unwrap();
    assert!(!woken.load(Ordering::SeqCst));
    gate.open();
    thread.join().unwrap();
    assert!(woken.load(Ordering::SeqCst));
}

#[test]
fn who_comes_while_the_gate_is_closed_waits() {
    let gate: Arc<Gate> = Arc::default();
    gate.close(LIMIT).unwrap();
    let inside: Arc<AtomicBool> = Arc::default();
    let thread = {
        let (gate, inside) = (Arc::clone(&gate), Arc::clone(&inside));
        std::thread::spawn(move || {
            let _cpu = VirtualCpu::register(&gate).unwrap();
            inside.store(true, Ordering::SeqCst);
        })
    };
    assert!(!inside.load(Ordering::SeqCst));
    gate.open();
    thread.join().unwrap();
    assert!(inside.load(Ordering::SeqCst));
}

#[test]
fn a_section_without_end_is_a_failure_and_not_a_hang() {
    let gate: Arc<Gate> = Arc::default();
    let (there_tx, there_rx) = std::sync::mpsc::channel();
    let (go_tx, go_rx) = std::sync::mpsc::channel::<()>();
    let thread = {
        let gate = Arc::clone(&gate);
        std::thread::spawn(move || {
            let _cpu = VirtualCpu::register(&gate).unwrap();
            let _section = super::section::Section::enter();
            there_tx.send(()).unwrap();
            go_rx.recv().unwrap();
        })
    };
    there_rx.recv().unwrap();
    gate.close(Duration::from_millis(20)).unwrap_err();
    go_tx.send(()).unwrap();
    thread.join().unwrap();
}
