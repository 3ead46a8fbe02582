use campanile_protocol::PAGE_SIZE;
use campanile_protocol::page_table::END_ADDRESS;
use campanile_protocol::page_table::FIRST_ADDRESS;
use campanile_protocol::page_table::SegmentId;

use super::reader::Intent;
use super::reader::Miss;
use super::reader::Run;
use super::reader::resolve;
use super::reader::resolve_one;
use super::writer::PageTables;
use super::writer::Root;
use super::writer::TableError;

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
