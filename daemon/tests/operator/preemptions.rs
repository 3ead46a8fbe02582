//! How long preemptions take, as the operator sees it.

use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::scheduling::Band;
use campanile_guest_driver::scheduling::Properties;
use serde_json::Value;

use crate::metrics::scrape;
use crate::metrics::value;
use crate::served::NEVER;
use crate::served::Served;
use crate::served::until;
use crate::work::vm;

const CONFIG: &str = "metrics = \"unix:@/metrics\"\n\
                      [[vgpu]]\nname = \"a\"\nsocket = \"@/a.sock\"\nvram = \"64M\"\nbands = \"realtime\"\n\
                      [[vgpu]]\nname = \"b\"\nsocket = \"@/b.sock\"\nvram = \"64M\"\n";

const ROOM: u64 = 16 << 20;

/// A device of a guest of this vGPU.
fn device(served: &Served, vgpu: &str) -> Device {
    let vm = vm(&served.folder.file(&format!("{vgpu}.sock")));
    Device::open(vm.open("test").unwrap()).unwrap()
}

/// How many preemptions of the copy node of a vGPU a scrape has, and how many seconds they took together.
fn scraped(served: &Served, vgpu: &str, what: &str) -> (f64, f64) {
    let text = scrape(served);
    let of = |part| {
        let sample = format!("campanile_{what}_seconds_{part}{{vgpu=\"{vgpu}\",engine=\"0\",node=\"copy\"}}");
        value(&text, &sample)
    };
    (of("count"), of("sum"))
}

/// The same by `campanile ctl status`.
fn stated(served: &Served, vgpu: usize, what: &str) -> (u64, u64) {
    let nodes = served.ask(&["status"])["vgpus"][vgpu]["nodes"].clone();
    let node: &Value = nodes.as_array().unwrap().iter().find(|node| node["node"] == "copy").unwrap();
    (node[what]["count"].as_u64().unwrap(), node[what]["sum_ns"].as_u64().unwrap())
}

#[test]
fn preemptions_are_counted_with_the_time_that_they_took() {
    let served = Served::with(CONFIG);
    let [first, second] = ["a", "b"].map(|vgpu| device(&served, vgpu));
    assert_eq!(stated(&served, 0, "yields"), (0, 0), "none has worked yet");
    // Work of the one that takes long.
    let (room, words) = (first.create_buffer(ROOM).unwrap(), first.create_buffer(4096).unwrap());
    let mut long = CommandBuffer::new();
    long.signal(words.va(), 1).unwrap();
    for value in 1..=100 {
        long.fill(room.va(), ROOM, value).unwrap();
    }
    let patient = first.create_context(Node::Copy).unwrap();
    let mut patient_queue = patient.create_kernel_queue().unwrap();
    let ticket = patient_queue.submit(&long).unwrap();
    until("the long buffer", || words.memory().word(0).unwrap().load(Ordering::Acquire) == 1);
    // Urgent work of the same vGPU, and work of another.
    let urgent = first.create_context(Node::Copy).unwrap();
    let properties = Properties {
        band: Band::Realtime(0),
        in_process_priority: 0,
        quantum: None,
        grace_same: None,
        grace_lower: None,
    };
    urgent.set_scheduling(&properties).unwrap();
    let other = second.create_context(Node::Copy).unwrap();
    let others_words = second.create_buffer(4096).unwrap();
    for (context, va) in [(&urgent, words.va() + 8), (&other, others_words.va())] {
        let mut short = CommandBuffer::new();
        short.signal(va, 1).unwrap();
        let mut queue = context.create_kernel_queue().unwrap();
        let short = queue.submit(&short).unwrap();
        queue.wait(short, Some(NEVER)).unwrap();
        assert!(!patient_queue.is_done(ticket), "it was long enough");
    }
    patient_queue.wait(ticket, Some(NEVER)).unwrap();
    for what in ["yield", "preempt"] {
        let (count, nanoseconds) = stated(&served, 0, &format!("{what}s"));
        assert!(count > 0 && nanoseconds > 0, "{what}: {count}, {nanoseconds} ns");
        until("a scrape that has them", || {
            let (scraped, seconds) = scraped(&served, "a", what);
            let (now, nanoseconds) = stated(&served, 0, &format!("{what}s"));
            scraped == now as f64 && (seconds * 1e9 - nanoseconds as f64).abs() < 1e3
        });
    }
    let commands = served.ask(&["metrics"])["vgpus"][0]["counters"]["preemptions"].clone();
    assert_eq!(commands, stated(&served, 0, "preempts").0, "each preempt command was reported");
    assert_eq!(stated(&served, 1, "preempts"), (0, 0), "the other vGPU was given none");
}
