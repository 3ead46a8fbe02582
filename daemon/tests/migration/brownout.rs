//! Passes while the guest runs, and the last one.

use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_daemon::migration::passes::plan::Goal;
use campanile_daemon::migration::settings::Settings;
use campanile_daemon::migration::source::departure::Thaw;

use crate::memory::Memory;
use crate::pair::EVICTED_PAGES;
use crate::pair::LONG;
use crate::pair::Source;
use crate::pair::Target;
use crate::pair::VRAM_PAGES;
use crate::pair::assert_same;
use crate::pair::eventually;
use crate::pair::settings;

/// With one line or several, packed or not.
fn manners() -> impl Iterator<Item = (u8, Option<i32>)> {
    [(1, None), (3, None), (1, Some(1)), (4, Some(3))].into_iter()
}

#[test]
fn lm_11_lm_30_a_vgpu_moves_while_its_guest_writes() {
    for (streams, zstd) in manners() {
        let target = Target::new(LONG);
        let source = Source::new(Settings { streams, zstd, ..settings(target.peer(), LONG) });
        source.scribble();
        source.departure.start(None).unwrap();
        source.converge();
        assert!(source.memories.iter().all(|memory| memory.is_moving()));
        // The guest goes on, then is paused.
        source.memories[0].fill(3, 200);
        source.memories[0].fill(900, 201);
        source.memories[1].fill(77, 0);
        let bundle = source.departure.finish().unwrap();
        assert_eq!(source.phase(), "complete");
        let (claim, staged) = target.claim(bundle);
        assert_same(&source.memories, &staged);
        claim.start().unwrap();
        assert!(matches!(source.departure.thaw(), Thaw::Lost(_)), "the guest runs at the target");
    }
}

#[test]
fn what_is_written_between_query_and_read_is_sent_again() {
    let target = Target::new(LONG);
    let goal = Goal { pause: Duration::ZERO, passes: 100 };
    let source = Source::new(Settings { goal, ..settings(target.peer(), LONG) });
    source.scribble();
    // Just before a batch is read, and just after, the guest writes to a page of it, or of another.
    let writes = (0..1000).map(|n| (n * 13 % VRAM_PAGES, u8::try_from(n % 255).unwrap())).collect();
    *source.memories[0].on_read.lock().unwrap() = writes;
    source.departure.start(None).unwrap();
    eventually("nothing is dirty any more", || source.doing().starts_with("waiting"));
    assert!(source.memories[0].on_read.lock().unwrap().is_empty());
    assert!(source.passes().len() > 2, "there were passes to lose something in");
    let bundle = source.departure.finish().unwrap();
    let (_claim, staged) = target.claim(bundle);
    assert_same(&source.memories, &staged);
}

#[test]
fn a_guest_that_writes_faster_than_the_line_takes_is_paused_all_the_same() {
    let target = Target::new(LONG);
    let goal = Goal { pause: Duration::ZERO, passes: 3 };
    let limit = Some(1 << 20);
    let source = Source::new(Settings { goal, bandwidth: limit, ..settings(target.peer(), LONG) });
    source.departure.start(None).unwrap();
    // It never stops to write.
    eventually("it gives up", || {
        (0..8).for_each(|page| source.memories[0].fill(page, 7));
        source.doing().contains("faster")
    });
    let passes = source.passes().len();
    assert!(passes >= 3, "{passes} passes");
    source.memories[0].fill(8, 8);
    let bundle = source.departure.finish().unwrap();
    let (_claim, staged) = target.claim(bundle);
    assert_same(&source.memories, &staged);
}

#[test]
fn without_tracking_all_goes_while_the_vm_is_paused() {
    let target = Target::new(LONG);
    let memories = [Memory::new(VRAM_PAGES).untracked(), Memory::new(EVICTED_PAGES)];
    let source = Source::with(settings(target.peer(), LONG), memories);
    source.scribble();
    source.departure.start(None).unwrap();
    source.converge();
    assert_eq!(source.passes().len(), 0, "nothing that would be sent again");
    assert_eq!(source.memories[0].reads(), 0);
    source.memories[0].fill(2, 99);
    let bundle = source.departure.finish().unwrap();
    assert_eq!(source.passes().len(), 1);
    let (_claim, staged) = target.claim(bundle);
    assert_same(&source.memories, &staged);
}

#[test]
fn without_a_brownout_all_that_was_written_goes_when_the_state_is_saved() {
    let target = Target::new(LONG);
    let source = Source::new(settings(target.peer(), LONG));
    source.scribble();
    let bundle = source.departure.finish().unwrap();
    let passes = source.passes();
    assert_eq!(passes.len(), 1);
    assert_eq!(passes[0]["is_last"], true);
    // DIRTY-31: dirty pages only, and no full copy.
    assert!(passes[0]["pages"].as_u64().unwrap() < VRAM_PAGES / 2);
    let (_claim, staged) = target.claim(bundle);
    assert_same(&source.memories, &staged);
}

#[test]
fn dirty_31_dirty_54_a_second_migration_sends_what_was_written_or_received_and_no_more() {
    let (first, second) = (Target::new(LONG), Target::new(LONG));
    let source = Source::new(settings(first.peer(), LONG));
    source.scribble();
    let bundle = source.departure.finish().unwrap();
    let (_claim, staged) = first.claim(bundle);
    // The target's tracker learns what has come; nothing was written since.
    let next = Source::new(settings(second.peer(), LONG));
    let mut received = 0;
    for ((old, new), staged) in source.memories.iter().zip(&next.memories).zip(&staged) {
        let contents = old.contents();
        for page in 0..staged.received.pages() {
            if staged.received.contains(page) {
                received += 1;
                let value = contents[usize::try_from(page * 4096).unwrap()];
                new.fill(page, value);
            }
        }
    }
    let bundle = next.departure.finish().unwrap();
    assert_eq!(next.passes()[0]["pages"].as_u64().unwrap(), received);
    let (_claim, staged) = second.claim(bundle);
    assert_same(&source.memories, &staged);
}

#[test]
fn zero_pages_are_not_sent_and_overwrite_what_was() {
    let target = Target::new(LONG);
    let source = Source::new(settings(target.peer(), LONG));
    let vram = &source.memories[0];
    (0..512).for_each(|page| vram.fill(page, 0));
    (512..600).for_each(|page| vram.fill(page, 1));
    source.departure.start(None).unwrap();
    source.converge();
    let first = &source.passes()[0];
    assert_eq!(first["zero_pages"].as_u64(), Some(512));
    assert!(first["wire_bytes"].as_u64().unwrap() < 100 * 4096);
    (512..600).for_each(|page| vram.fill(page, 0));
    let bundle = source.departure.finish().unwrap();
    let (_claim, staged) = target.claim(bundle);
    assert_same(&source.memories, &staged);
}

#[test]
fn a_failed_migration_is_followed_by_one_that_sends_everything_anew() {
    let source = {
        let target = Target::new(LONG);
        let source = Source::new(settings(target.peer(), LONG));
        source.scribble();
        source.departure.start(None).unwrap();
        source.converge();
        source
        // The target's daemon ends here.
    };
    eventually("the source notices", || source.phase() == "idle");
    assert!(source.memories.iter().all(|memory| !memory.is_moving()), "tracking for it has ended");
    assert_eq!(source.departure.thaw(), Thaw::Run);
    let target = Target::new(LONG);
    let name = crate::pair::NAME.to_owned();
    source.departure.start(Some((target.peer(), name))).unwrap();
    source.converge();
    let bundle = source.departure.finish().unwrap();
    let (_claim, staged) = target.claim(bundle);
    assert_same(&source.memories, &staged);
    assert_eq!(source.memories[0].begun.load(Ordering::Relaxed), 2);
}

#[test]
fn progress_is_told_with_what_is_left_and_how_long_it_takes() {
    let target = Target::new(LONG);
    let source = Source::new(Settings { bandwidth: Some(2 << 20), ..settings(target.peer(), LONG) });
    source.scribble();
    source.departure.start(None).unwrap();
    eventually("a part was sent", || {
        let told = source.departure.describe();
        let left = told["progress"]["left_bytes"].as_u64().unwrap();
        told["phase"] == "brownout" && left > 0 && left < 300 * 4096
    });
    let told = source.departure.describe();
    assert!(told["progress"]["estimate_ms"].is_u64(), "{told}");
    eventually("a part has come", || target.bundles()[0]["received_bytes"].as_u64() > Some(0));
    source.departure.cancel("the test is over").unwrap();
}

#[test]
fn where_tracking_begins_with_the_migration_all_goes_before_the_first_query() {
    let target = Target::new(LONG);
    let memories = [Memory::new(VRAM_PAGES).late(), Memory::new(EVICTED_PAGES).late()];
    let source = Source::with(settings(target.peer(), LONG), memories);
    source.scribble();
    source.departure.start(None).unwrap();
    source.converge();
    assert_eq!(source.passes()[0]["pages"].as_u64(), Some(VRAM_PAGES + EVICTED_PAGES));
    let asked = source.memories[0].asked.lock().unwrap().clone();
    let first = |what| asked.iter().position(|asked| *asked == what);
    assert!(first("begin") < first("read") && first("read") < first("query"), "{asked:?}");
    source.memories[0].fill(6, 60);
    let bundle = source.departure.finish().unwrap();
    let (_claim, staged) = target.claim(bundle);
    assert_same(&source.memories, &staged);
}

#[test]
fn nothing_limits_the_last_pass() {
    let target = Target::new(LONG);
    // What is left would take minutes at this rate.
    let source = Source::new(Settings { bandwidth: Some(4096), ..settings(target.peer(), LONG) });
    source.scribble();
    source.departure.start(None).unwrap();
    eventually("it is on its way", || source.memories[0].is_moving());
    let bundle = source.departure.finish().unwrap();
    let (_claim, staged) = target.claim(bundle);
    assert_same(&source.memories, &staged);
}

/// Nice values of the threads of this process that send pages while the VM runs.
fn nice_of_brownouts() -> Vec<i64> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let nice = threads.filter_map(|thread| {
        let name = std::fs::read_to_string(thread.path().join("comm")).ok()?;
        let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
        // Behind the name, which may have anything in it, it is the 17th field.
        let nice = stat.rsplit(')').next()?.split_whitespace().nth(16)?.parse().ok()?;
        (name.trim_end() == "migrate").then_some(nice)
    });
    nice.collect()
}

#[test]
fn a_brownout_has_the_least_weight_and_takes_it_from_nobody() {
    let before = rustix::process::getpriority_process(None).unwrap();
    let target = Target::new(LONG);
    let source = Source::new(Settings { bandwidth: Some(4096), ..settings(target.peer(), LONG) });
    source.scribble();
    source.departure.start(None).unwrap();
    eventually("it is on its way, at the least weight", || nice_of_brownouts().contains(&19));
    assert_eq!(rustix::process::getpriority_process(None).unwrap(), before, "no other thread of the process");
    let bundle = source.departure.finish().unwrap();
    let (_claim, staged) = target.claim(bundle);
    assert_same(&source.memories, &staged);
}
