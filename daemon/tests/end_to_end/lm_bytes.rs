//! Every page of every memory arrives: each is other than its neighbours, and each is written while the guest moves.

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_test_vmm::migration::options::MigrateOptions;
use campanile_test_vmm::migration::options::Next;
use campanile_test_vmm::migration::options::Ram;
use campanile_test_vmm::order::Order;

use crate::migration::Hosts;
use crate::raw_queue::copy;
use crate::support::NEVER;

const PAGE: u64 = 4096;
/// Pages of each buffer: several bytes of a bitmap of pages for each remainder of a small number.
const PAGES: u64 = 640;
/// Passes over the log of the VMM while the guest runs.
const PASSES: u32 = 3;

/// Has an engine write to each page of some memory: the number of the page, and the round.
fn mark(queue: &mut UserQueue, va: u64, round: u32) {
    // As many as one submission takes.
    for first in (0..PAGES).step_by(64) {
        let mut commands = CommandBuffer::new();
        for page in first..first + 64 {
            commands.fill(va + page * PAGE + 8 * (page % 500), 8, word(page, round)).unwrap();
        }
        queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
    }
}

fn word(page: u64, round: u32) -> u32 {
    round << 16 | u32::try_from(page).unwrap()
}

/// The pages of a buffer that have not what `round` wrote there.
fn wrong(buffer: &Buffer, round: u32) -> Vec<u64> {
    let is_wrong = |page: &u64| {
        let mut bytes = [0; 8];
        buffer.read(page * PAGE + 8 * (page % 500), &mut bytes).unwrap();
        let expected = word(*page, round).to_le_bytes();
        bytes[..4] != expected || bytes[4..] != expected
    };
    (0..PAGES).filter(is_wrong).collect()
}

fn every_page_arrives(order: Order, live: bool) {
    let hosts = Hosts::new(&[]);
    let vm = hosts.daemons[0].vm(0);
    let device = Device::open(vm.open("pages").unwrap()).unwrap();
    let size = PAGES * PAGE;
    let (seen, ram) = (device.create_buffer(size).unwrap(), device.create_guest_buffer(size).unwrap());
    let (hidden, look) = (device.create_local_buffer(size).unwrap(), device.create_buffer(size).unwrap());
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut round = 0;
    for hop in 1..=2 {
        let mut write = |queue: &mut UserQueue| {
            round += 1;
            [seen.va(), hidden.va(), ram.va()].into_iter().for_each(|va| mark(queue, va, round));
        };
        write(&mut queue);
        let options = MigrateOptions {
            order,
            live,
            ram: Ram::Moves,
            after_pass: Box::new(|pass| {
                // Since that look at the log: the last one is in the pause.
                write(&mut queue);
                if pass.number + 1 < PASSES { Next::Again } else { Next::Stop }
            }),
            ..MigrateOptions::default()
        };
        vm.migrate(hosts.daemons[hop % 2].socket(0), options).unwrap();
        queue.submit(&copy(hidden.va(), look.va(), size)).unwrap().wait(Some(NEVER)).unwrap();
        for (memory, buffer) in [("seen", &seen), ("hidden", &look), ("guest RAM", &ram)] {
            let wrong = wrong(buffer, round);
            assert!(wrong.is_empty(), "hop {hop}, {memory}, round {round}: pages {wrong:?}");
        }
    }
}

#[test]
fn dirty_55_dirty_58_each_page_that_engines_write_while_a_guest_moves_arrives_in_qemus_order() {
    every_page_arrives(Order::Qemu, true);
}

#[test]
fn dirty_55_dirty_58_each_page_that_engines_write_while_a_guest_moves_arrives_in_cloud_hypervisors_order() {
    every_page_arrives(Order::CloudHypervisor, true);
}

#[test]
fn dirty_58_each_page_that_engines_have_written_arrives_in_the_pause() {
    every_page_arrives(Order::Qemu, false);
}
