//! The memories of a session whose tracking is costly, as a migration uses them.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use campanile_daemon::migration::memory::MovingMemory;
use campanile_daemon::migration::pages::PAGE;
use campanile_daemon::migration::tracked::TrackedMemory;
use campanile_daemon::vgpu::memory::vidmm::vram::VideoMemory;
use campanile_host_gpu::dirty::method::Method;

fn memory() -> (VideoMemory, TrackedMemory, Vec<u8>) {
    let memory = VideoMemory::new(64 * PAGE, 64 * PAGE, Method::ShadowCompare).unwrap();
    let moving = TrackedMemory::new(Arc::clone(memory.tracker()));
    let bits = vec![0; usize::try_from(moving.length() / PAGE / 8).unwrap()];
    (memory, moving, bits)
}

#[test]
fn dirty_61_lm_15_costly_tracking_begins_with_all_memory_to_be_sent() {
    let (memory, moving, mut bits) = memory();
    assert!(moving.is_tracked() && !moving.is_performant());
    assert!(!memory.tracker().is_tracking());
    moving.begin(&mut bits).unwrap();
    assert!(memory.tracker().is_tracking());
    assert!(bits.iter().all(|bits| *bits == 0xff), "of what was written before nothing is known");
    // A write while all of it goes, to a page that has gone.
    let mut page = [0; 4096];
    (0..64).for_each(|at| moving.read(at * PAGE, &mut page).unwrap());
    memory.file().write_all_at(&[1], 5 * PAGE).unwrap();
    memory.tracker().mark(5 * PAGE, 1);
    moving.query_and_clear(&mut bits).unwrap();
    assert_eq!((bits[0], bits[1]), (1 << 5, 0));
    moving.end();
    assert!(!memory.tracker().is_tracking() && memory.tracker().shadow_bytes() == 0);
    assert!(moving.read(0, &mut page).is_err(), "it is over");
}

#[test]
fn dirty_30_a_pass_in_the_pause_alone_tracks_nothing_where_that_is_costly() {
    let (memory, moving, mut bits) = memory();
    // Also after a brownout that has failed.
    for after_brownout in [false, true] {
        if after_brownout {
            moving.begin(&mut bits).unwrap();
        }
        bits.fill(0);
        moving.begin_paused(&mut bits).unwrap();
        assert!(!memory.tracker().is_tracking() && memory.tracker().shadow_bytes() == 0);
        assert!(bits.iter().all(|bits| *bits == 0xff));
        let mut page = [0; 4096];
        memory.file().write_all_at(&[7], 63 * PAGE).unwrap();
        moving.read(63 * PAGE, &mut page).unwrap();
        assert_eq!(page[0], 7);
        assert!(moving.query_and_clear(&mut bits).is_err(), "there is nothing to be asked");
        moving.end();
        assert!(moving.read(0, &mut page).is_err());
    }
}
