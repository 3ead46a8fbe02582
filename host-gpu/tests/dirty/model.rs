//! The tracker against a model that is a set of pages for each basis.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use campanile_host_gpu::dirty::basis::Subrange;
use campanile_host_gpu::dirty::error::DirtyError;
use campanile_host_gpu::dirty::requests::BasisHandle;
use proptest::collection::vec;
use proptest::prelude::Strategy;
use proptest::prop_assert_eq;
use proptest::prop_oneof;
use proptest::proptest;

use crate::support::Memory;
use crate::support::PAGE;
use crate::support::bits;

const PAGES: u64 = 150;

#[derive(Debug, Clone)]
enum Act {
    Create(Vec<(u64, u64)>),
    Destroy(usize),
    Start(usize),
    Stop(usize),
    Write(u64, u64),
    Query(usize, bool),
    Part(usize, usize, u64, u64, bool),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        vec((0..PAGES + 4, 0u64..60), 1..4).prop_map(Act::Create),
        (0usize..6).prop_map(Act::Destroy),
        (0usize..6).prop_map(Act::Start),
        (0usize..6).prop_map(Act::Stop),
        (0..PAGES, 1u64..40).prop_map(|(first, count)| Act::Write(first, count)),
        (0..PAGES, 1u64..3).prop_map(|(first, count)| Act::Write(first, count)),
        (0usize..6, proptest::bool::ANY).prop_map(|(basis, clear)| Act::Query(basis, clear)),
        (0usize..6, 0usize..4, 0u64..40, 0u64..40, proptest::bool::ANY)
            .prop_map(|(basis, index, first, count, clear)| Act::Part(basis, index, first, count, clear)),
    ]
}

#[derive(Debug)]
struct Known {
    ranges: Vec<(u64, u64)>,
    dirty: Option<BTreeSet<u64>>,
}

fn is_right(ranges: &[(u64, u64)]) -> bool {
    let overlap = |one: &(u64, u64), other: &(u64, u64)| one.0 < other.0 + other.1 && other.0 < one.0 + one.1;
    let pairs = || (0..ranges.len()).flat_map(|high| (0..high).map(move |low| (low, high)));
    ranges.iter().all(|(first, count)| *count > 0 && first + count <= PAGES)
        && !pairs().any(|(low, high)| overlap(&ranges[low], &ranges[high]))
}

proptest! {
    #[test]
    fn dirty_20_dirty_32_each_basis_has_a_view_of_its_own(acts in vec(act(), 1..80)) {
        let memory = Memory::new(PAGES);
        let mut model: BTreeMap<BasisHandle, Known> = BTreeMap::new();
        let mut handles: Vec<BasisHandle> = Vec::new();
        for act in acts {
            let nth = |index: usize| handles.get(index).copied().unwrap_or(BasisHandle(12_345));
            match act {
                Act::Create(ranges) => {
                    let made = memory.tracker.create_memory_basis(crate::support::SEGMENT, &crate::support::pages(&ranges));
                    prop_assert_eq!(made.is_ok(), is_right(&ranges));
                    if let Ok(handle) = made {
                        model.insert(handle, Known { ranges, dirty: None });
                        handles.push(handle);
                    }
                }
                Act::Destroy(index) => {
                    let was_there = model.remove(&nth(index)).is_some();
                    prop_assert_eq!(memory.tracker.destroy_memory_basis(nth(index)).is_ok(), was_there);
                }
                Act::Start(index) => {
                    let known = model.get_mut(&nth(index)).filter(|known| known.dirty.is_none());
                    prop_assert_eq!(memory.tracker.start_dirty_tracking(nth(index)).is_ok(), known.is_some());
                    if let Some(known) = known {
                        known.dirty = Some(BTreeSet::new());
                    }
                }
                Act::Stop(index) => {
                    let was_on = model.get_mut(&nth(index)).and_then(|known| known.dirty.take()).is_some();
                    prop_assert_eq!(memory.tracker.stop_dirty_tracking(nth(index)).is_ok(), was_on);
                }
                Act::Write(first, count) => {
                    memory.tracker.mark(first * PAGE, count * PAGE);
                    for dirty in model.values_mut().filter_map(|known| known.dirty.as_mut()) {
                        dirty.extend((first..first + count).filter(|page| *page < PAGES));
                    }
                }
                Act::Query(..) | Act::Part(..) => {
                    let (index, subrange, clear) = match act {
                        Act::Part(index, range, first, count, clear) => {
                            let subrange = Subrange { index: range, offset: first * PAGE, length: count * PAGE };
                            (index, Some(subrange), clear)
                        }
                        Act::Query(index, clear) => (index, None, clear),
                        _ => continue,
                    };
                    let mut buffer = [0; 64];
                    let asked = memory.tracker.query_dirty_bit_data(nth(index), subrange, &mut buffer, clear);
                    let Some(known) = model.get_mut(&nth(index)) else {
                        prop_assert_eq!(asked, Err(DirtyError::NoSuchBasis));
                        continue;
                    };
                    let Some(dirty) = known.dirty.as_mut() else {
                        prop_assert_eq!(asked, Err(DirtyError::NotStarted));
                        continue;
                    };
                    let pages: Option<Vec<u64>> = match subrange.filter(|subrange| subrange.length > 0) {
                        None => Some(known.ranges.iter().flat_map(|(first, count)| *first..first + count).collect()),
                        Some(Subrange { index, offset, length }) => known.ranges.get(index).and_then(|(first, count)| {
                            let (skipped, wanted) = (offset / PAGE, length / PAGE);
                            (skipped + wanted <= *count).then(|| (first + skipped..first + skipped + wanted).collect())
                        }),
                    };
                    prop_assert_eq!(asked.is_ok(), pages.is_some());
                    let pages = pages.unwrap_or_default();
                    let expected: Vec<bool> = pages.iter().map(|page| dirty.contains(page)).collect();
                    prop_assert_eq!(bits(&buffer, pages.len()), expected);
                    if clear {
                        dirty.retain(|page| !pages.contains(page));
                    }
                }
            }
        }
    }
}
