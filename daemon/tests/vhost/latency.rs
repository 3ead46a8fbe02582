//! How long a kick takes to become an interrupt, beside a bare exchange of two eventfds.
//!
//! `cargo test --release --test vhost latency -- --ignored --nocapture`

use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::time::Duration;
use std::time::Instant;

use vmm_sys_util::epoll::ControlOperation;
use vmm_sys_util::epoll::Epoll;
use vmm_sys_util::epoll::EpollEvent;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::EFD_NONBLOCK;
use vmm_sys_util::eventfd::EventFd;

use crate::bench::Bench;
use crate::bench::Vm;
use crate::device::ECHO;
use crate::device::Script;

const TURNS: usize = 50_000;

fn report(name: &str, mut turns: Vec<Duration>) {
    turns.sort();
    let at = |per_mille: usize| turns[turns.len() * per_mille / 1000].as_nanos();
    println!(
        "{name:<44} min {:>6} p50 {:>6} p90 {:>6} p99 {:>6} ns",
        turns[0].as_nanos(),
        at(500),
        at(900),
        at(990)
    );
}

fn measured(mut turn: impl FnMut()) -> Vec<Duration> {
    (0..TURNS)
        .map(|_| {
            // The other side is asleep by then.
            let rest = Instant::now();
            while rest.elapsed() < Duration::from_micros(30) {
                std::hint::spin_loop();
            }
            let start = Instant::now();
            turn();
            start.elapsed()
        })
        .collect()
}

#[test]
#[ignore = "a measurement"]
fn latency_of_a_round_trip() {
    for _ in 0..2 {
        let (there, back) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
        let (there2, back2) = (there.try_clone().unwrap(), back.try_clone().unwrap());
        let echo = std::thread::spawn(move || {
            for _ in 0..TURNS {
                there2.read().unwrap();
                back2.write(1).unwrap();
            }
        });
        let bare = measured(|| {
            there.write(1).unwrap();
            back.read().unwrap();
        });
        echo.join().unwrap();
        report("bare eventfd ping-pong", bare);

        let (there2, back2) = (there.try_clone().unwrap(), back.try_clone().unwrap());
        let echo = std::thread::spawn(move || {
            let epoll = Epoll::new().unwrap();
            let edges = EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, 0);
            epoll.ctl(ControlOperation::Add, there2.as_raw_fd(), edges).unwrap();
            for _ in 0..TURNS {
                epoll.wait(-1, &mut [EpollEvent::default()]).unwrap();
                back2.write(1).unwrap();
            }
        });
        let bare = measured(|| {
            there.write(1).unwrap();
            back.read().unwrap();
        });
        echo.join().unwrap();
        report("bare, the echo waits with epoll", bare);

        let bench = Bench::with(Script::new(false, true));
        let mut vm = Vm::started(&bench);
        vm.control.request(0, &[ECHO; 32]);
        for (name, nonblocking) in [("… (blocking call fd)", false), ("… (nonblocking call fd)", true)] {
            let call = EventFd::new(0).unwrap();
            vhost::VhostBackend::set_vring_call(&vm.front, 0, &call).unwrap();
            if nonblocking {
                // As QEMU's: the shell looks at the flag when it gets the descriptor.
                let flagged = EventFd::new(EFD_NONBLOCK).unwrap();
                vhost::VhostBackend::set_vring_call(&vm.front, 0, &flagged).unwrap();
                report(
                    name,
                    measured(|| {
                        vm.control.want_interrupt(1);
                        vm.control.offer(0);
                        vm.control.kick();
                        while flagged.read().is_err() {}
                        black_box(vm.control.used().unwrap());
                    }),
                );
                continue;
            }
            report(
                name,
                measured(|| {
                    vm.control.want_interrupt(1);
                    vm.control.offer(0);
                    vm.control.kick();
                    call.read().unwrap();
                    black_box(vm.control.used().unwrap());
                }),
            );
        }
        vhost::VhostBackend::set_vring_call(&vm.front, 0, &vm.control.call).unwrap();
        report(
            "kick, command, answer, seen by polling",
            measured(|| {
                vm.control.offer(0);
                vm.control.kick();
                while vm.control.used().is_none() {
                    std::hint::spin_loop();
                }
            }),
        );
    }
    let bench = Bench::with(Script::new(false, true));
    let mut vm = Vm::started(&bench);
    let start = Instant::now();
    let (mut sent, mut done) = (0u32, 0u32);
    for head in 0..128 {
        vm.control.request(head * 2, &[ECHO; 32]);
    }
    let mut free: Vec<u16> = (0..128).map(|head| head * 2).collect();
    while start.elapsed() < Duration::from_secs(1) {
        while let Some(head) = free.pop() {
            vm.control.offer(head);
            sent += 1;
        }
        vm.control.kick();
        free.push(vm.control.wait().0);
        done += 1;
        while let Some((head, _)) = vm.control.used() {
            free.push(head);
            done += 1;
        }
    }
    println!("{done} commands in {:?}, {sent} sent, 128 in flight", start.elapsed());
}
