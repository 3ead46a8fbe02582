//! A budget by itself.

use std::sync::Arc;

use campanile_protocol::engine::block::MAX_PROCESSES;

use super::Amount;
use super::Budget;
use super::Charge;
use super::KINDS;
use super::Kind;
use super::Purse;

/// 1 MiB and 4096 items: 768 KiB and 3072 items in the pool, 1 KiB and 4 items for each process.
fn budget() -> Arc<Budget> {
    Arc::new(Budget::new(1 << 20))
}

fn held(budget: &Budget) -> (u64, u64) {
    let Amount { bytes, items } = budget.standing().held;
    (bytes, items)
}

/// Charges of one byte until one is refused.
fn all_items(purse: &Purse) -> Vec<Charge> {
    std::iter::from_fn(|| purse.charge(Kind::Work, 1).ok()).take(5000).collect()
}

#[test]
fn bytes_are_charged_exactly_up_to_the_limit_and_not_one_more() {
    let budget = budget();
    let vm = budget.vm();
    let most = vm.charge(Kind::Blobs, 768 << 10).unwrap();
    assert_eq!(vm.charge(Kind::Blobs, 1).unwrap_err().bytes, 1);
    drop(most);
    assert!(vm.charge(Kind::Blobs, (768 << 10) + 1).is_err());
    assert_eq!((held(&budget), budget.standing().refused), ((0, 0), 2));
}

#[test]
fn items_are_charged_exactly_up_to_the_limit_and_not_one_more() {
    let budget = budget();
    let vm = budget.vm();
    let all = all_items(&vm);
    assert_eq!((all.len(), held(&budget)), (3072, (3072, 3072)));
    assert!(vm.charge(Kind::Blobs, 0).is_err());
    drop(all);
    assert_eq!(held(&budget), (0, 0));
    assert!(vm.charge(Kind::Blobs, 0).is_ok());
}

#[test]
fn items_that_are_charged_together_are_all_had_or_none_and_each_comes_back_by_itself() {
    let budget = budget();
    let vm = budget.vm();
    let mut all = vm.charge_each(Kind::Mappings, 100, 3).unwrap();
    assert_eq!(held(&budget), (300, 3));
    let first = all.next().unwrap();
    // What was not taken comes back with the rest, what was taken by itself.
    drop(all);
    assert_eq!(held(&budget), (100, 1));
    drop(first);
    assert_eq!(held(&budget), (0, 0));
    let all = vm.charge_each(Kind::Mappings, 256, 3072).unwrap();
    assert_eq!((held(&budget), all.count()), ((768 << 10, 3072), 3072));
    assert_eq!(held(&budget), (0, 0));
    for (bytes, count) in [(256, 3073), (257, 3072), (1, 3073), (u64::MAX, 2), (u64::MAX, usize::MAX)] {
        assert!(vm.charge_each(Kind::Mappings, bytes, count).is_err(), "{count} of {bytes}");
        assert_eq!(held(&budget), (0, 0));
    }
    assert_eq!(budget.standing().refused, 5);
    assert_eq!(vm.charge_each(Kind::Mappings, 1, 0).unwrap().count(), 0);
}

#[test]
fn sizes_that_cannot_be_counted_are_refused_and_change_nothing() {
    let budget = budget();
    let vm = budget.vm();
    let mut small = vm.charge(Kind::Kernels, 10).unwrap();
    for bytes in [u64::MAX, u64::MAX - 9, u64::MAX / 2] {
        assert!(vm.charge(Kind::Kernels, bytes).is_err(), "{bytes}");
        assert!(small.resize(bytes).is_err(), "{bytes}");
        assert_eq!(held(&budget), (10, 1));
    }
    assert_eq!(super::list_bytes(usize::MAX, 2), u64::MAX);
}

#[test]
fn a_process_has_its_own_part_when_the_pool_is_used_up() {
    let budget = budget();
    let (greedy, modest) = (budget.process().unwrap(), budget.process().unwrap());
    let all = greedy.charge(Kind::Work, (768 << 10) + 1024).unwrap();
    assert!(greedy.charge(Kind::Work, 1).is_err());
    assert!(budget.vm().charge(Kind::Work, 1).is_err());
    let own = modest.charge(Kind::Work, 1024).unwrap();
    assert!(modest.charge(Kind::Work, 1).is_err(), "one byte beyond its part");
    drop(all);
    assert!(modest.charge(Kind::Work, 1).is_ok());
    drop(own);
    let items = all_items(&greedy);
    assert_eq!(items.len(), 3072 + 4);
    assert_eq!(all_items(&modest).len(), 4);
}

#[test]
fn all_processes_that_there_can_be_have_a_part_however_full_the_pool_is() {
    let budget = budget();
    let vm = budget.vm();
    let pool = vm.charge(Kind::Blobs, 768 << 10).unwrap();
    let all: Vec<Purse> = (0..MAX_PROCESSES).map(|_| budget.process().unwrap()).collect();
    for refused in 1..=2 {
        assert!(budget.process().is_err());
        assert_eq!(budget.standing().refused, refused);
    }
    let own: Vec<Charge> = all.iter().map(|purse| purse.charge(Kind::Work, 1024).unwrap()).collect();
    assert_eq!(budget.standing().held.bytes, 1 << 20, "all of it, and no more");
    drop((pool, own, all));
    assert_eq!(held(&budget), (0, 0));
}

#[test]
fn what_a_process_leaves_behind_counts_until_it_is_gone() {
    let budget = budget();
    let mut left = Vec::new();
    // A process that ends again and again, with all of its part still held: never more than the limit in all.
    while let Ok(purse) = budget.process() {
        left.push(purse.charge(Kind::Mappings, 1024).unwrap());
        assert!(budget.standing().held.bytes <= 1 << 20);
    }
    assert_eq!(left.len(), 1024);
    assert_eq!(budget.standing().held.bytes, 1 << 20);
    drop(left.pop());
    assert!(budget.process().is_ok(), "as much as came back");
    left.clear();
    assert_eq!(held(&budget), (0, 0));
    assert!(budget.vm().charge(Kind::Blobs, 768 << 10).is_ok());
}

#[test]
fn a_charge_grows_within_the_budget_and_shrinks() {
    let budget = budget();
    let vm = budget.vm();
    let mut list = vm.charge(Kind::Files, 0).unwrap();
    list.resize(768 << 10).unwrap();
    assert!(list.resize((768 << 10) + 1).is_err());
    assert_eq!(held(&budget), (768 << 10, 1));
    list.resize(7).unwrap();
    assert_eq!(held(&budget), (7, 1));
    drop(list);
    assert_eq!(held(&budget), (0, 0));
}

#[test]
fn each_kind_is_told_by_its_name() {
    let budget = budget();
    let vm = budget.vm();
    let charges: Vec<Charge> =
        (1..).zip(KINDS).map(|(bytes, (kind, _))| vm.charge(kind, bytes).unwrap()).collect();
    let standing = budget.standing();
    for ((bytes, (_, name)), (told, held)) in (1..).zip(KINDS).zip(standing.kinds) {
        assert_eq!((told, held), (name, Amount { bytes, items: 1 }));
    }
    assert_eq!(standing.limit, Amount { bytes: 1 << 20, items: 4096 });
    assert_eq!(charges.len(), KINDS.len());
}
