//! Numbers, beside what the system itself takes. Run alone: `cargo test --release --test transport -- --ignored --nocapture`.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::transport::Transport;
use vmm_sys_util::eventfd::EventFd;

use crate::plain;

const ROUNDS: usize = 20_000;

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "{what:44} p10 {:>9.1?}  p50 {:>9.1?}  p90 {:>9.1?}  p99 {:>9.1?}",
        at(10),
        at(50),
        at(90),
        at(99)
    );
}

fn times(rounds: usize, mut run: impl FnMut()) -> Vec<Duration> {
    for _ in 0..rounds / 10 {
        run();
    }
    let time = || {
        let begin = Instant::now();
        run();
        begin.elapsed()
    };
    std::iter::repeat_with(time).take(rounds).collect()
}

fn ping_pong() -> Vec<Duration> {
    let [there, back] = [0; 2].map(|_| Arc::new(EventFd::new(0).unwrap()));
    let (their_there, their_back) = (Arc::clone(&there), Arc::clone(&back));
    let echo = std::thread::spawn(move || {
        while their_there.read().unwrap() < 1 << 32 {
            their_back.write(1).unwrap();
        }
    });
    let times = times(ROUNDS, || {
        there.write(1).unwrap();
        back.read().unwrap();
    });
    there.write(1 << 32).unwrap();
    echo.join().unwrap();
    times
}

#[test]
#[ignore = "prints numbers"]
fn round_trip_beside_a_bare_ping_pong() {
    let bench = plain();
    let context = bench.vm.open("test").unwrap();
    report("eventfd ping-pong", ping_pong());
    report("submit + wait", times(ROUNDS, || context.submit(&[7; 64], Some(1)).unwrap().wait(None).unwrap()));
    report(
        "submit + wait, with a timeout",
        times(ROUNDS, || {
            context.submit(&[7; 64], Some(1)).unwrap().wait(Some(Duration::from_secs(9))).unwrap();
        }),
    );
    report(
        "submit 128 KiB + wait",
        times(2000, || context.submit(&vec![7; 131_072], None).unwrap().wait(None).unwrap()),
    );
    report("raw command", times(ROUNDS, || drop(bench.vm.raw().command(&[1; 24], 24).unwrap())));
    report("eventfd ping-pong", ping_pong());
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        drop(context.submit(&[7; 64], Some(1)).unwrap());
    }
    context.submit(&[7; 64], Some(1)).unwrap().wait(None).unwrap();
    println!("pipelined: {:.1?} a command", begin.elapsed() / u32::try_from(ROUNDS).unwrap());
}
