//! Side files.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use campanile_daemon::migration::file::read;
use campanile_daemon::migration::file::side::SideFiles;
use campanile_daemon::migration::id::BundleId;
use campanile_daemon::migration::memory::Memory;
use campanile_daemon::migration::settings::Settings;
use campanile_daemon::migration::source::departure::Thaw;
use proptest::prelude::ProptestConfig;
use proptest::prelude::any;
use proptest::proptest;
use tempfile::TempDir;

use crate::pair::IMMUTABLE;
use crate::pair::NAME;
use crate::pair::Source;
use crate::pair::arriving;
use crate::pair::assert_same;

fn saved(folder: &Path, zstd: Option<i32>) -> (Source, BundleId) {
    let side_files = Some(folder.to_owned());
    let source = Source::new(Settings { side_files, zstd, ..Settings::default() });
    source.scribble();
    let bundle = source.departure.finish().unwrap();
    (source, bundle)
}

#[test]
fn without_a_peer_the_pages_go_into_a_side_file_that_the_state_names() {
    for zstd in [None, Some(1)] {
        let folder = TempDir::new().unwrap();
        let (source, bundle) = saved(folder.path(), zstd);
        let files = SideFiles::open(folder.path(), false).unwrap();
        let (contents, stage) = read::load(&files.path(bundle), &arriving(NAME), Some(bundle)).unwrap();
        assert_same(&source.memories, &stage.memories().unwrap());
        assert_eq!((contents.hello.vgpu.as_str(), &contents.hello.immutable[..]), (NAME, IMMUTABLE));
        assert!(contents.state.is_none());
        let inspected = read::inspect(&files.path(bundle)).unwrap();
        assert_eq!(inspected.pages(Memory::Evicted), (4, 0));
        assert!(inspected.pages(Memory::Vram).0 > 100);
        assert_eq!(zstd.is_some(), inspected.packed_bytes < inspected.bytes / 2);
        // Whoever takes the file runs; the other does not.
        files.take(bundle).unwrap();
        assert!(files.take(bundle).is_err());
        assert!(matches!(source.departure.thaw(), Thaw::Lost(_)));
    }
}

#[test]
fn a_source_that_runs_again_takes_its_side_file_back() {
    let folder = TempDir::new().unwrap();
    let (source, bundle) = saved(folder.path(), None);
    assert_eq!(source.departure.thaw(), Thaw::Run);
    let files = SideFiles::open(folder.path(), false).unwrap();
    assert!(files.take(bundle).is_err());
    assert_eq!(fs::read_dir(folder.path().join("bundles")).unwrap().count(), 0, "nothing is left");
    // Where the operator keeps them for snapshots of the VMM, they stay.
    let side_files = Some(folder.path().to_owned());
    let source = Source::new(Settings { side_files, keep_side_files: true, ..Settings::default() });
    let bundle = source.departure.finish().unwrap();
    assert_eq!(source.departure.thaw(), Thaw::Run);
    assert!(read::inspect(&files.path(bundle)).is_ok());
}

#[test]
fn a_side_file_of_another_vgpu_or_bundle_is_refused_before_its_pages() {
    let folder = TempDir::new().unwrap();
    let (_source, bundle) = saved(folder.path(), None);
    let files = SideFiles::open(folder.path(), false).unwrap();
    let path = files.path(bundle);
    let other = read::load(&path, &arriving(NAME), Some(BundleId([3; 16]))).unwrap_err().to_string();
    assert!(other.contains(&bundle.to_string()), "{other}");
    let mut smaller = arriving(NAME);
    smaller.shape.lengths[0] /= 2;
    let shape = read::load(&path, &smaller, Some(bundle)).unwrap_err().to_string();
    assert!(shape.contains("video memory"), "{shape}");
    assert!(read::load(Path::new("/nowhere"), &arriving(NAME), None).is_err());
}

#[test]
fn a_disk_that_is_full_leaves_nothing_behind_and_the_guest_goes_on() {
    let folder = TempDir::new().unwrap();
    let side_files = Some(folder.path().to_owned());
    let source = Source::new(Settings { side_files, ..Settings::default() });
    source.scribble();
    // A folder that cannot take a file any more.
    fs::remove_dir(folder.path().join("bundles")).unwrap();
    fs::write(folder.path().join("bundles"), b"in the way").unwrap();
    assert!(source.departure.finish().is_err());
    assert_eq!(source.departure.thaw(), Thaw::Run);
    assert!(source.memories.iter().all(|memory| !memory.is_moving()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn lm_40_a_file_that_was_changed_or_cut_off_is_refused_whole(at in any::<u64>(), flip in 1u8..=255, cut in any::<bool>()) {
        let folder = TempDir::new().unwrap();
        let (_source, bundle) = saved(folder.path(), Some(1));
        let path = SideFiles::open(folder.path(), false).unwrap().path(bundle);
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        let at = at % length;
        if cut {
            file.set_len(at).unwrap();
        } else {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ flip], at).unwrap();
        }
        assert!(read::load(&path, &arriving(NAME), Some(bundle)).is_err());
        assert!(read::inspect(&path).is_err());
    }
}
