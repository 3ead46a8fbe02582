//! The target's side.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::error::At;
use super::error::Failure;
use super::error::Step;
use super::options::MigrateOptions;
use super::options::Report;
use super::saved::SavedDevice;
use crate::connection::Connection;
use crate::connection::Machine;
use crate::connection::Opening;
use crate::order::Order;
use crate::ring_events::RingEvents;
use crate::virt_queue::Wiring;
use crate::vm::LoopbackVm;
use campanile_guest_driver::transport::error::TransportError;

/// A daemon that is about to get the VM.
pub(super) struct Arrival<'a> {
    vm: &'a LoopbackVm,
    connection: Connection,
    wirings: Vec<Wiring>,
    ram_file: Arc<File>,
}

impl<'a> Arrival<'a> {
    /// Connects, with eventfds of its own, up to what needs the state.
    pub(super) fn open(
        vm: &'a LoopbackVm,
        target: &Path,
        opening: Opening,
        ram_file: Arc<File>,
    ) -> Result<Self, TransportError> {
        let wirings = vm
            .rings
            .wirings()
            .into_iter()
            .map(|wiring| Ok(Wiring { events: Arc::new(RingEvents::new()?), ..wiring }))
            .collect::<Result<Vec<_>, TransportError>>()?;
        let machine = Machine {
            options: &vm.options,
            ram: &vm.ram,
            ram_file: Arc::clone(&ram_file),
            aperture: vm.aperture.as_ref(),
            queues: vm.rings.all(),
            wirings: &wirings,
        };
        let connection = Connection::open(target, &machine, opening)?;
        if connection.facts != vm.facts {
            return Err(TransportError::Missing { feature: "the configuration that the guest has seen" });
        }
        connection.front_end.accept(&vm.options)?.covers(vm.accepted)?;
        Ok(Self { vm, connection, wirings, ram_file })
    }

    /// LOAD, start, window. When this returns the device runs here, and the guest's addresses show its memory.
    pub(super) fn take(
        self,
        saved: &SavedDevice,
        order: Order,
        options: &MigrateOptions<'_>,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let Self { vm, connection, wirings, ram_file } = self;
        let begun = Instant::now();
        options.unless_given_up(Step::Load)?;
        connection.front_end.load(vm.options.transfer_timeout, &saved.state).at(Step::Load)?;
        report.load = begun.elapsed();
        options.unless_given_up(Step::Start)?;
        vm.start_device(&connection, &wirings, &saved.bases, order, None).at(Step::Start)?;
        connection.give_back_channel().at(Step::Start)?;
        let window = || {
            options.unless_given_up(Step::Window)?;
            let limit = vm.options.message_timeout;
            connection.maps.wait_for(&vm.window().maps(), limit).at(Step::Window)?;
            vm.window().replace(Arc::clone(&connection.maps)).at(Step::Window)?;
            if !Arc::ptr_eq(&ram_file, &vm.ram.file()) {
                vm.ram.replace(ram_file).at(Step::Window)?;
            }
            Ok(())
        };
        window()?;
        for (queue, wiring) in vm.rings.all().iter().zip(wirings) {
            queue.rewire(wiring.events);
        }
        vm.set_connection(connection);
        if order == Order::CloudHypervisor {
            // The guest is the target's whatever comes of this: its end is the guest's loss.
            let again = vm.connection().front_end.enable_again(vm.rings.count());
            again.at(Step::Start)?;
        }
        Ok(())
    }
}
