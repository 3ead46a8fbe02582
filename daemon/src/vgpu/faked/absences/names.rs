//! What a daemon after a killed one is to call guest processes that have been away.

use std::collections::BTreeSet;
use std::sync::Arc;

use campanile_protocol::control::status::Status;

use super::guests::Guest;
use super::guests::attach;
use super::guests::attached;
use super::guests::away;
use super::guests::guest;
use super::guests::open_again;
use super::guests::stay;
use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::ledger::keeping::Ledger;
use crate::ledger::log::Key;
use crate::service_manager::tests::HeardStore;
use crate::vgpu::config::Config;
use crate::vgpu::faked::world::World;

/// The contexts that it will open.
fn noted(ledger: &Ledger) -> BTreeSet<u32> {
    let contexts = ledger.keys().unwrap().into_iter().filter_map(|key| match key {
        Key::Context(context) => Some(context.get()),
        _ => None,
    });
    contexts.collect()
}

/// Process 1 is away, and the device there again.
fn one_away(world: &mut World) -> Guest {
    let guest = away(world, 1);
    stay(world);
    guest
}

#[test]
fn cont_12_a_process_that_stays_away_takes_no_other_out_of_the_ledger_that_is_called_by_its_number() {
    let _store = HeardStore::open();
    let ledger = Arc::new(Ledger::new("tested"));
    let mut world = World::with(|config| Config { ledger: Arc::clone(&ledger), ..config });
    let _away = one_away(&mut world);
    assert_eq!(noted(&ledger), [].into());
    world.session.create_context(FrontContext::new(1)).unwrap();
    assert_eq!(noted(&ledger), [1].into());
    world.session.hotplug().end_absent(GuestProcess::new(1));
    assert_eq!(noted(&ledger), [1].into(), "it is there still");
    world.session.destroy_context(FrontContext::new(1)).unwrap();
    assert_eq!(noted(&ledger), [].into());
}

#[test]
fn cont_12_a_process_that_came_back_is_noted_by_the_name_that_it_has_now() {
    let _store = HeardStore::open();
    let mut world = World::new();
    let back = one_away(&mut world);
    open_again(&mut world, &back, 7, 40);
    let message = attach(&back, 40);
    assert_eq!(attached(&mut world, &back, 7, &message), Some(Status::Ok.word()));
    guest(&mut world, 3);
    assert!(world.session.freeze());
    while !world.session.is_frozen() {
        world.turn(0);
    }
    world.move_on();
    let ledger = Arc::new(Ledger::new("tested"));
    let config = Config { ledger: Arc::clone(&ledger), ..Config::clone(&world.session.vm.config) };
    world.session.vm.config = Arc::new(config);
    assert!(world.session.thaw());
    assert_eq!(noted(&ledger), [3, 7].into());
    // And goes by that name.
    world.session.destroy_context(FrontContext::new(7)).unwrap();
    assert_eq!(noted(&ledger), [3].into());
    assert!(!world.session.vm.objects.processes.contains_key(&GuestProcess::new(1)));
}
