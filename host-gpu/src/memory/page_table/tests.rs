use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::page_table::END_ADDRESS;
use campanile_protocol::page_table::FIRST_ADDRESS;
use campanile_protocol::page_table::LEVELS;
use campanile_protocol::page_table::SegmentId;
use campanile_protocol::page_table::TABLE_ENTRIES;
use campanile_protocol::page_table::table_index;

use super::reader::Intent;
use super::reader::Miss;
use super::reader::Run;
use super::reader::resolve;
use super::reader::resolve_one;
use super::writer::PageTables;
use super::writer::Root;
use super::writer::TableError;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;

const VA: u64 = 0x4000_0000;

fn space() -> (PageTables, Root) {
    let mut tables = PageTables::new().unwrap();
    let root = tables.create_root().unwrap();
    (tables, root)
}

fn runs(tables: &PageTables, root: Root, address: u64, length: u64) -> Result<Vec<Run>, Miss> {
    let mut found = Vec::new();
    resolve(tables.mapping(), root.0, address, length, Intent::Read, |run| found.push(run)).map(|()| found)
}

#[test]
fn a_mapping_is_found_across_table_borders() {
    let (mut tables, root) = space();
    let start = VA + 510 * PAGE_SIZE;
    tables.map(root, start, SegmentId(3), 0x10_0000, 4 * PAGE_SIZE, true).unwrap();
    assert_eq!(
        runs(&tables, root, start + 100, 3 * PAGE_SIZE).unwrap(),
        [Run { segment: SegmentId(3), offset: 0x10_0000 + 100, length: 3 * PAGE_SIZE }]
    );
    assert_eq!(runs(&tables, root, start, 4 * PAGE_SIZE + 1), Err(Miss::Fault(start + 4 * PAGE_SIZE)));
}

#[test]
fn neighbours_in_other_places_are_other_runs() {
    let (mut tables, root) = space();
    tables.map(root, VA, SegmentId(1), 0, PAGE_SIZE, true).unwrap();
    tables.map(root, VA + PAGE_SIZE, SegmentId(1), 8 * PAGE_SIZE, PAGE_SIZE, true).unwrap();
    assert_eq!(runs(&tables, root, VA, 2 * PAGE_SIZE).unwrap().len(), 2);
    assert!(resolve_one(tables.mapping(), root.0, VA, 2 * PAGE_SIZE, Intent::Read).is_err());
}

#[test]
fn a_store_to_a_read_only_page_faults() {
    let (mut tables, root) = space();
    tables.map(root, VA, SegmentId(1), 0, PAGE_SIZE, false).unwrap();
    assert!(resolve_one(tables.mapping(), root.0, VA, 8, Intent::Read).is_ok());
    assert_eq!(resolve_one(tables.mapping(), root.0, VA, 8, Intent::Write), Err(Miss::Fault(VA)));
}

#[test]
fn what_is_unmapped_or_moving_is_not_found() {
    let (mut tables, root) = space();
    tables.map(root, VA, SegmentId(1), 0, PAGE_SIZE, true).unwrap();
    tables.start_move(root, VA, PAGE_SIZE).unwrap();
    assert_eq!(runs(&tables, root, VA, 8), Err(Miss::Moving(VA)));
    tables.evict(root, VA, PAGE_SIZE).unwrap();
    assert_eq!(runs(&tables, root, VA, 8), Err(Miss::Evicted(VA)));
    tables.end_move(root, VA, SegmentId(2), 0, PAGE_SIZE, true).unwrap();
    assert_eq!(runs(&tables, root, VA, 8).unwrap()[0].segment, SegmentId(2));
    tables.unmap(root, VA, PAGE_SIZE).unwrap();
    assert_eq!(runs(&tables, root, VA, 8), Err(Miss::Fault(VA)));
}

#[test]
fn bad_ranges_are_refused_and_change_nothing() {
    let (mut tables, root) = space();
    tables.map(root, VA + PAGE_SIZE, SegmentId(1), 0, PAGE_SIZE, true).unwrap();
    let mut map = |address, size| tables.map(root, address, SegmentId(1), 0, size, true);
    assert!(matches!(map(VA + 1, PAGE_SIZE), Err(TableError::Range { .. })));
    assert!(matches!(map(VA, 0), Err(TableError::Range { .. })));
    assert!(matches!(map(0, PAGE_SIZE), Err(TableError::Range { .. })));
    assert!(matches!(map(FIRST_ADDRESS - PAGE_SIZE, PAGE_SIZE), Err(TableError::Range { .. })));
    assert!(matches!(map(END_ADDRESS, PAGE_SIZE), Err(TableError::Range { .. })));
    assert!(matches!(map(!(PAGE_SIZE - 1), PAGE_SIZE), Err(TableError::Range { .. })));
    assert_eq!(map(VA, 2 * PAGE_SIZE), Err(TableError::Overlap(VA + PAGE_SIZE)));
    assert_eq!(runs(&tables, root, VA, 8), Err(Miss::Fault(VA)), "the refused mapping left nothing behind");
}

#[test]
fn mcdm_37_spaces_do_not_see_each_other() {
    let (mut tables, first) = space();
    let second = tables.create_root().unwrap();
    tables.map(first, VA, SegmentId(1), 0, PAGE_SIZE, true).unwrap();
    assert_eq!(runs(&tables, second, VA, 8), Err(Miss::Fault(VA)));
}

#[test]
fn tables_of_a_destroyed_space_are_used_again_and_empty() {
    let (mut tables, root) = space();
    tables.map(root, VA, SegmentId(1), 0, PAGE_SIZE, true).unwrap();
    tables.destroy_root(root);
    for _ in 0..3 {
        let again = tables.create_root().unwrap();
        assert_eq!(runs(&tables, again, VA, 8), Err(Miss::Fault(VA)));
        tables.map(again, VA, SegmentId(1), 0, PAGE_SIZE, true).unwrap();
        tables.destroy_root(again);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Page {
    At(u64, bool),
    Moving,
    Evicted,
}

proptest::proptest! {
    /// Against a model that knows of each page where it leads.
    #[test]
    fn tables_lead_where_the_model_does(
        steps in proptest::collection::vec((0u8..6, 0u64..40, 1u64..12, proptest::prelude::any::<bool>()), 1..60),
    ) {
        // Around the border of a leaf table.
        let base = VA + 490 * PAGE_SIZE;
        let (mut tables, root) = space();
        let other = tables.create_root().unwrap();
        let mut model = std::collections::BTreeMap::new();
        for (count, (step, first, length, writable)) in (1u64..).zip(steps) {
            let (address, size) = (base + first * PAGE_SIZE, length * PAGE_SIZE);
            let pages = first..first + length;
            let is_free = pages.clone().all(|page| !model.contains_key(&page));
            let offset = count << 20;
            let page = |at: u64| match step {
                0 | 4 => Page::At(offset + (at - first) * PAGE_SIZE, writable),
                1 => Page::Moving,
                _ => Page::Evicted,
            };
            let done = match step {
                0 => tables.map(root, address, SegmentId(1), offset, size, writable),
                1 => tables.map_moving(root, address, size),
                2 => tables.map_evicted(root, address, size),
                3 => tables.unmap(root, address, size),
                4 => tables.end_move(root, address, SegmentId(1), offset, size, writable),
                _ => tables.evict(root, address, size),
            };
            assert_eq!(done.is_ok(), step > 2 || is_free, "{step} {pages:?}");
            if done.is_ok() {
                for at in pages {
                    if step == 3 { model.remove(&at) } else { model.insert(at, page(at)) };
                }
            }
            for at in 0..52 {
                let address = base + at * PAGE_SIZE;
                let look = |intent| resolve_one(tables.mapping(), root.0, address, 8, intent);
                let (read, write) = (look(Intent::Read), look(Intent::Write));
                match model.get(&at) {
                    None => assert_eq!((read, write), (Err(Miss::Fault(address)), Err(Miss::Fault(address)))),
                    Some(Page::Moving) => assert_eq!(write, Err(Miss::Moving(address))),
                    Some(Page::Evicted) => assert_eq!(read, Err(Miss::Evicted(address))),
                    Some(Page::At(offset, writable)) => {
                        assert_eq!(read.map(|run| run.offset), Ok(*offset));
                        assert_eq!(write.is_ok(), *writable);
                    }
                }
                assert_eq!(runs(&tables, other, address, 8), Err(Miss::Fault(address)), "another space");
            }
        }
    }
}

#[test]
fn the_daemon_decides_nothing_by_what_stands_in_shared_memory() {
    let (mut tables, victim) = space();
    tables.map(victim, VA, SegmentId(1), 0, PAGE_SIZE, true).unwrap();
    let hostile = tables.create_root().unwrap();
    tables.map(hostile, VA, SegmentId(2), 0, PAGE_SIZE, true).unwrap();
    let word = |table: u64, index: u64| tables.mapping().word(table * PAGE_SIZE + index * 8).unwrap();
    // As if an engine could write: every entry of the hostile space leads to the victim's tables, and nothing is mapped in
    // the victim's.
    let highest = word(victim.0, table_index(VA, LEVELS - 1)).load(Ordering::Relaxed);
    for index in 0..TABLE_ENTRIES {
        word(hostile.0, index).store(highest, Ordering::Relaxed);
    }
    word(victim.0, table_index(VA, LEVELS - 1)).store(0, Ordering::Relaxed);
    assert_eq!(
        tables.map(victim, VA, SegmentId(1), 0, PAGE_SIZE, true),
        Err(TableError::Overlap(VA)),
        "what is mapped is known without them"
    );

    tables.destroy_root(hostile);
    // Those of the hostile space are free, and no other.
    let mut made: Vec<u64> = (0..LEVELS).map(|_| tables.create_root().unwrap().0).collect();
    made.sort_unstable();
    made.dedup();
    assert_eq!(made, (hostile.0..).take(LEVELS as usize).collect::<Vec<_>>());
    tables.destroy_root(victim);
    assert_eq!(tables.create_root().unwrap().0, victim.0);
}

#[test]
fn a_table_of_an_engine_cannot_be_mapped_for_stores() {
    let (tables, _) = space();
    let map = |access| Mapping::new(tables.file().try_clone().unwrap(), 0, PAGE_SIZE, access);
    assert!(map(Access::ReadWrite).is_err());
    assert!(map(Access::ReadOnly).is_ok());
    assert!(tables.file().write_at(&[1], 0).is_err());
}
