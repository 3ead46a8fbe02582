//! Kernels are compiled at the target while the guest still runs at the source.

use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_test_vmm::migration::options::MigrateOptions;
use serde_json::Value;

use crate::code_cache::Guest;
use crate::code_cache::Observed;
use crate::code_cache::kernel;
use crate::code_cache::large_kernel;
use crate::code_cache::observe_process;
use crate::migration::Hosts;
use crate::processes::engines;
use crate::support::until;

/// Engines are not reset for a busy machine, and no process is started but those that are asked for.
const ARGUMENTS: [&str; 4] = ["--tdr-timeout", "600000", "--spares", "off"];

/// Waits until the target of the brownout of v0 has compiled so many kernels, which were all sent.
fn compiled(hosts: &Hosts, kernels: u64) {
    until("the target has compiled them", || {
        let progress = hosts.departure(0, 0)["progress"].clone();
        progress["kernels_sent"] == kernels && progress["kernels_left"] == 0
    });
}

/// The only process of the target, which compiles, and its log.
fn compiler(hosts: &Hosts) -> (u32, Observed) {
    let [process] = engines(&hosts.daemons[1])[..] else { panic!("one process") };
    (process, observe_process(process).expect("a log"))
}

fn go(hosts: &Hosts, guest: &Guest) {
    let options = MigrateOptions { live: true, ..MigrateOptions::default() };
    guest.vm.migrate(hosts.daemons[1].socket(0), options).unwrap();
}

fn compute_engine(hosts: &Hosts, index: usize) -> Value {
    let status = hosts.ask(index, &campanile_daemon::operator::verb::Verb::Status);
    status["vgpus"][0]["session"]["engines"][EngineAddress::new(0, NodeKind::Compute).index()].clone()
}

#[test]
fn kernels_are_compiled_at_the_target_before_the_pause_and_not_again_behind_it() {
    const KERNELS: u64 = 6;
    let hosts = Hosts::new(&ARGUMENTS);
    let mut guest = Guest::of(hosts.daemons[0].vm(0), 1..=6);
    hosts.begin(0, "v0");
    compiled(&hosts, KERNELS);
    // One that the guest makes meanwhile, and one of those that it has no more.
    guest.kernels.push(kernel(&guest.device, 7));
    compiled(&hosts, KERNELS + 1);
    guest.kernels.remove(0);
    let (process, log) = compiler(&hosts);
    // What the driver writes last comes when its threads get to it.
    until("the code of all kernels", || log.log.claims().added > KERNELS + 1);
    let mut last = 0;
    until("no code that is not there", || {
        let now = log.log.claims().added;
        std::mem::replace(&mut last, now) == now
    });

    go(&hosts, &guest);
    assert_eq!(guest.run(), [2, 3, 4, 5, 6, 7]);
    let engine = compute_engine(&hosts, 1);
    let pid = u32::try_from(engine["pid"].as_u64().unwrap()).unwrap();
    let of_engine = observe_process(pid).unwrap();
    assert!(pid != process && !engines(&hosts.daemons[1]).contains(&process), "the compiler is gone");
    assert_eq!(of_engine.inode, log.inode, "the engine has what it has compiled");
    let again = of_engine.log.claims().added - last;
    assert!(again < KERNELS, "{again} of them were compiled again");
}

#[test]
fn a_move_waits_for_no_kernel_and_one_without_a_cache_sends_them_in_vain() {
    let hosts =
        Hosts::each([&["vram=64M"]; 2], [&ARGUMENTS, &[&ARGUMENTS[..], &["--code-cache", "0"]].concat()]);
    let guest = Guest::of(hosts.daemons[0].vm(0), 1..=3);
    hosts.begin(0, "v0");
    compiled(&hosts, 3);
    assert!(engines(&hosts.daemons[1]).is_empty(), "there is nothing to compile for");
    go(&hosts, &guest);
    assert_eq!(guest.run(), [1, 2, 3]);
}

#[test]
#[ignore = "prints figures"]
fn how_long_64_kernels_take_behind_a_move_that_were_compiled_ahead_or_not() {
    const KERNELS: u32 = 64;
    for round in 1..=3 {
        let mut waits = [(Duration::ZERO, Duration::ZERO); 2];
        for (is_ahead, (compiled_in, waited)) in [true, false].into_iter().zip(&mut waits) {
            let hosts = Hosts::new(&ARGUMENTS);
            let mut guest = Guest::of(hosts.daemons[0].vm(0), 1..=1);
            guest.kernels = (1..=KERNELS).map(|number| large_kernel(&guest.device, number)).collect();
            guest.run();
            let begun = Instant::now();
            if is_ahead {
                hosts.begin(0, "v0");
                compiled(&hosts, u64::from(KERNELS));
                *compiled_in = begun.elapsed();
            }
            let options = MigrateOptions { live: is_ahead, ..MigrateOptions::default() };
            guest.vm.migrate(hosts.daemons[1].socket(0), options).unwrap();
            let begun = Instant::now();
            guest.run();
            *waited = begun.elapsed();
        }
        let [(compiled_in, ahead), (_, not)] = waits;
        println!(
            "round {round}: compiled in {compiled_in:?}; each of them has run after {ahead:?}, and after {not:?} where none was"
        );
    }
}
