//! Linked physical adapters: what hangs, is reset or suspended is one engine.

use std::fs;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_protocol::device_page::DEVICE_HUNG;
use serde_json::Value;
use serde_json::json;

use crate::linked::COUNT;
use crate::linked::count;
use crate::linked::pids;
use crate::linked::queue_on;
use crate::linked::run;
use crate::linked::words;
use crate::native_fences::process;
use crate::operator::Operated;
use crate::support::Daemon;
use crate::support::Ends;
use crate::support::NEVER;
use crate::support::until;
use crate::tdr_resilience::Load;
use crate::tdr_support::ENDLESS;
use crate::tdr_support::hang_on;

#[test]
fn tdr_03_tdr_08_a_hang_of_one_engine_is_none_of_the_other() {
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().to_str().unwrap();
    let operated = Operated::with(1, &["--engines", "2", "--tdr-timeout", "300", "--state-dir", folder]);
    let vm = operated.daemon.vm(0);
    let ends = AtomicBool::new(false);
    let (compute, copy) = (Load::new(), Load::new());
    thread::scope(|scope| {
        let _ends = Ends(&ends);
        scope.spawn(|| compute.run(&vm, Node::Compute, &ends));
        scope.spawn(|| copy.run(&vm, Node::Copy, &ends));
        compute.goes_on();
        copy.goes_on();
        // It is on both engines, and works on the second again after that was reset.
        let bystander = process(&vm);
        let kernel = bystander.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
        let data = bystander.create_buffer(4096).unwrap();
        let mut queues = [0, 1].map(|engine| queue_on(&bystander, Node::Compute, engine));
        queues.iter_mut().for_each(|(_, queue)| run(queue, &count(&kernel, &data)));
        let before = pids(&operated);
        let loss = hang_on(&process(&vm), 1, || {
            compute.goes_on();
            copy.goes_on();
        });
        assert_eq!((loss.status, loss.is_collateral), (DEVICE_HUNG, false));
        compute.goes_on();
        copy.goes_on();
        queues.iter_mut().for_each(|(_, queue)| run(queue, &count(&kernel, &data)));
        assert!(words(&data).iter().all(|word| *word == 4));
        let after = pids(&operated);
        assert_eq!((after[0], after[1]), (before[0], before[1]), "engine 0 goes on");
        assert_ne!(after[2], before[2], "compute@1 is another process");
        let path = state.path().join("reports").join(format!("{:012}.json", loss.report));
        until("the report", || path.exists());
        let report: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(
            (&report["node_ordinal"], &report["engine_ordinal"]),
            (&0.into(), &1.into()),
            "{report:#}"
        );
    });
    let counters = operated.ask(&["metrics"])["vgpus"][0]["counters"].clone();
    assert_eq!(
        (&counters["adapters_reset"], &counters["engines_reset"]),
        (&0.into(), &1.into()),
        "{counters}"
    );
}

#[test]
fn mcdm_19_mcdm_20_mcdm_21_saturating_engine_a_does_not_delay_engine_b() {
    // No turn ends, and nobody hangs: what waits for the engine that is held would wait for ever.
    let daemon = Daemon::with(&["--engines", "2", "--tdr-level", "0"]);
    let vm = daemon.vm(0);
    for (held, free) in [(0, 1), (1, 0)] {
        let (holder, other) = (process(&vm), process(&vm));
        let endless = holder.create_kernel(&KernelSource::wgsl(ENDLESS)).unwrap();
        let word = holder.create_buffer(4096).unwrap();
        let (_context, mut holding) = queue_on(&holder, Node::Compute, held);
        let mut free_queues = Vec::new();
        // Its own process, and one with another address space (MCDM-20).
        for device in [&holder, &other] {
            let kernel = device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
            let data = device.create_buffer(4096).unwrap();
            free_queues.push((kernel, data, queue_on(device, Node::Compute, free)));
        }
        let mut commands = CommandBuffer::new();
        commands.dispatch(&endless, [1, 1, 1], &[word.binding(0)], &[]).unwrap();
        let point = holding.submit(&commands).unwrap();
        let counted = || word.memory().word(0).unwrap().load(Ordering::Relaxed);
        until("the kernel without end", || counted() & 0xffff_ffff != 0);
        for round in 1..=20 {
            for (kernel, data, (_, queue)) in &mut free_queues {
                run(queue, &count(kernel, data));
                assert!(words(data).iter().all(|word| *word == round));
            }
        }
        assert!(!point.is_reached(), "engine {held} was held all the time");
        word.write(4, &7u32.to_le_bytes()).unwrap();
        point.wait(Some(NEVER)).unwrap();
    }
}

#[test]
fn tdr_29_the_operator_resets_one_engine_of_one_physical_adapter() {
    let operated = Operated::with(1, &["--engines", "2"]);
    let (_vm, device) = operated.daemon.device();
    let kernel = device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
    let data = device.create_buffer(4096).unwrap();
    let mut queues = [0, 1].map(|engine| queue_on(&device, Node::Compute, engine));
    queues.iter_mut().for_each(|(_, queue)| run(queue, &count(&kernel, &data)));
    let before = pids(&operated);
    let reset = operated.ask(&["reset", "--vgpu", "v0", "--node", "compute@1"]);
    assert_eq!(reset["engines_reset"], json!(["compute@1"]));
    queues.iter_mut().for_each(|(_, queue)| run(queue, &count(&kernel, &data)));
    let after = pids(&operated);
    assert_eq!(after[0], before[0]);
    assert_ne!(after[2], before[2]);
    let all = operated.ask(&["reset", "--vgpu", "v0"]);
    assert_eq!(all["engines_reset"], json!(["compute", "compute@1"]));
    queues.iter_mut().for_each(|(_, queue)| run(queue, &count(&kernel, &data)));
    assert!(words(&data).iter().all(|word| *word == 6));
    assert!(
        operated
            .refusal(&["reset", "--vgpu", "v0", "--node", "copy@2"])
            .contains("there is no engine copy@2")
    );
    assert!(operated.refusal(&["reset", "--vgpu", "v0", "--node", "copy@4"]).contains("is no engine"));
    let text = String::from_utf8(operated.run(&["status"]).stdout).unwrap();
    assert!(text.contains("compute@1"), "{text}");
}

#[test]
fn ums_123_ums_124_in_d3_no_engine_runs_and_all_come_back() {
    let operated = Operated::with(1, &["--engines", "2"]);
    let (_vm, device) = operated.daemon.device();
    let kernel = device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
    let data = device.create_buffer(4096).unwrap();
    let mut queues = [0, 1].map(|engine| queue_on(&device, Node::Compute, engine));
    for round in 1..=3 {
        queues.iter_mut().for_each(|(_, queue)| run(queue, &count(&kernel, &data)));
        assert!(words(&data).iter().all(|word| *word == 2 * round));
        operated.ask(&["power", "--vgpu", "v0", "d3"]);
        assert_eq!(pids(&operated), [None; 4]);
    }
}

#[test]
fn more_engines_than_can_be_linked_are_refused_at_start() {
    for wrong in ["0", "5", "256"] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("v.sock");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.args(["serve", "--vram", "64M", "--engines", wrong, "--socket"]).arg(&socket);
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{wrong} engines");
    }
}
