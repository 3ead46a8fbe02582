//! Side files.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use campanile_daemon::migration::file::read;
use campanile_daemon::migration::file::side::SideFiles;
use campanile_daemon::migration::file::write::Draft;
use campanile_daemon::migration::id::BundleId;
use campanile_daemon::migration::memory::Memory;
use campanile_daemon::migration::passes::pass::Sent;
use campanile_daemon::migration::settings::Settings;
use campanile_daemon::migration::source::departure::Thaw;
use proptest::prelude::ProptestConfig;
use proptest::prelude::any;
use proptest::proptest;
use rustix::fs::CWD;
use rustix::fs::Mode;
use rustix::fs::mkfifoat;
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

/// A file of another user, which only this daemon may write.
const PRECIOUS: &[u8] = b"precious";

#[test]
fn a_symlink_in_the_place_of_a_draft_is_not_written_through() {
    let folder = TempDir::new().unwrap();
    let victim = folder.path().join("victim");
    fs::write(&victim, PRECIOUS).unwrap();
    // The name that a draft had when it could be guessed, and the name that the file will have.
    let guessed = format!(".snapshot.{}.part", std::process::id());
    for name in [guessed.as_str(), "snapshot"] {
        symlink(&victim, folder.path().join(name)).unwrap();
    }
    let path = folder.path().join("snapshot");
    let mut draft = Draft::new(&path).unwrap();
    draft.state(&[7; 100]).unwrap();
    draft.finish(&Sent::default()).unwrap();
    assert_eq!(fs::read(&victim).unwrap(), PRECIOUS);
    let written = fs::symlink_metadata(&path).unwrap();
    assert!(written.is_file() && written.len() > 100, "the file has taken the symlink's name: {written:?}");
    assert_eq!(written.permissions().mode() & 0o777, 0o600);
    fs::remove_file(folder.path().join(guessed)).unwrap();
    let mut left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["snapshot", "victim"]);
}

#[test]
fn a_draft_that_is_given_up_leaves_nothing_behind() {
    let folder = TempDir::new().unwrap();
    let mut draft = Draft::new(&folder.path().join("snapshot")).unwrap();
    draft.state(&[7; 100]).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    drop(draft);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_side_file_that_is_a_symlink_or_no_file_is_refused() {
    let folder = TempDir::new().unwrap();
    let (_source, bundle) = saved(folder.path(), None);
    let path = SideFiles::open(folder.path(), false).unwrap().path(bundle);
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    let refused = read::load(&path, &arriving(NAME), Some(bundle)).unwrap_err().to_string();
    assert!(refused.contains(path.to_str().unwrap()) && refused.contains("symlink"), "{refused}");
    // A snapshot that the operator names may lie behind one.
    assert!(read::load(&path, &arriving(NAME), None).is_ok());
    // Opening a FIFO without a writer would wait for ever.
    fs::remove_file(&path).unwrap();
    mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    for bundle in [Some(bundle), None] {
        let refused = read::load(&path, &arriving(NAME), bundle).unwrap_err().to_string();
        assert!(refused.contains("not a regular file"), "{refused}");
    }
}

#[test]
fn a_folder_of_side_files_that_is_a_symlink_is_refused() {
    let (folder, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    symlink(elsewhere.path(), folder.path().join("bundles")).unwrap();
    let refused = SideFiles::open(folder.path(), false).unwrap_err().to_string();
    assert!(refused.contains("bundles"), "{refused}");
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
