//! The front's state: what it carries, and that nothing in it is believed.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::prop_assert;
use proptest::proptest;

use super::blobs::Backing;
use super::blobs::Blob;
use super::blobs::Part;
use super::blobs::Stage;
use super::files::OpenFile;
use super::files::ProcessFile;
use super::parked::Asked;
use super::parked::What;
use super::saved::SavedFs;
use super::state::Fs;
use super::state::FsOptions;
use crate::frontend::vhost::ticket::Ticket;
use crate::frontend::waiting::WaitingList;
use crate::vgpu::objects::timeline::Token;

const PAGE: u32 = 4096;

fn options() -> FsOptions {
    FsOptions { aperture: 1 << 20, tag: None }
}

/// A session with a registrar, a blob that waits for its second page, one in the aperture, and a wait for open work.
fn busy() -> (Fs, WaitingList<Asked>) {
    let mut fs = Fs::with(options(), 7);
    let mut waiting = WaitingList::default();
    fs.files.sessions.insert(1, ProcessFile { sequence: 5, ..ProcessFile::default() });
    fs.files.open = BTreeMap::from([(2, OpenFile::Registrar(1)), (3, OpenFile::Blank)]);
    (fs.files.last, fs.blobs.last) = (3, 2);
    let asks = [
        What::Read { blob: 1, at: 4096, bytes: PAGE },
        What::Wait { file: 1, sequence: 5, timeout: 9 },
        What::Await { blob: 1, timeout: 9 },
    ];
    let tokens: Vec<Token> = (0..3u16)
        .zip(asks)
        .map(|(head, what)| {
            let token = waiting.new_token();
            waiting.insert(token, Ticket::detached(1, head, 4096), Asked { unique: 1, what });
            token
        })
        .collect();
    let fence = waiting.new_token();
    fs.files.fences.insert(fence, (1, 5));
    if let Some(session) = fs.files.sessions.get_mut(&1) {
        session.open.insert(5, vec![tokens[1]]);
    }
    let part = Part { bytes: PAGE, token: tokens[0], pages: None, charge: None };
    let blob = |backing, stage, bytes| Blob { owner: 1, bytes, backing, stage, awaited: Vec::new() };
    let parts = BTreeMap::from([(4096, part)]);
    fs.blobs.by_name.insert(1, blob(Backing::Pages { parts }, Stage::Waits, 8192));
    fs.blobs.by_name.insert(2, blob(Backing::Aperture { offset: 4096 }, Stage::Ready, 8192));
    assert!(fs.aperture.take_at(4096, 8192));
    (fs, waiting)
}

fn state() -> Vec<u8> {
    let (fs, waiting) = busy();
    SavedFs::of(&fs, &waiting).unwrap().encode().unwrap()
}

#[test]
fn a_state_carries_everything_but_addresses() {
    let (fs, waiting) = SavedFs::decode(&state()).unwrap().build(&options()).unwrap();
    assert_eq!((fs.files.generation, fs.files.last, fs.blobs.last, fs.parked.count), (7, 3, 2, 3));
    assert_eq!(fs.files.open, busy().0.files.open);
    assert_eq!(fs.files.sessions[&1].open[&5].len(), 1);
    assert_eq!((fs.files.sessions[&1].sequence, fs.files.sessions[&1].waits), (5, 1));
    assert_eq!(fs.blobs.registered_bytes, u64::from(PAGE));
    assert_eq!(fs.blobs.by_name[&1].awaited.len(), 1);
    let Backing::Pages { parts } = &fs.blobs.by_name[&1].backing else { panic!() };
    assert!(parts[&4096].pages.is_none(), "they are read again");
    // And once more, as it was.
    assert_eq!(SavedFs::of(&fs, &waiting).unwrap().encode().unwrap(), state());
}

/// What version 1 wrote. Never changed: what it reads as must stay.
const OLD: &str = include_str!("state-1.hex");

#[test]
fn state_of_version_one_is_read_as_ever() {
    let bytes: Vec<u8> = OLD
        .trim()
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let (fs, waiting) = SavedFs::decode(&bytes).unwrap().build(&options()).unwrap();
    assert_eq!(SavedFs::of(&fs, &waiting).unwrap().encode().unwrap(), state());
}

#[test]
fn a_state_of_another_aperture_is_refused() {
    let other = FsOptions { aperture: 0, ..options() };
    assert!(SavedFs::decode(&state()).unwrap().build(&other).unwrap_err().contains("aperture"));
}

#[test]
fn what_cannot_wait_is_refused() {
    let refused = |change: &dyn Fn(&mut Fs)| {
        let (mut fs, waiting) = busy();
        change(&mut fs);
        SavedFs::of(&fs, &waiting).unwrap().build(&options()).is_err()
    };
    assert!(!refused(&|_| {}));
    assert!(refused(&|fs| drop(fs.blobs.by_name.remove(&1))), "a read of no blob");
    assert!(refused(&|fs| fs.files.fences.clear()), "a wait for nothing");
    assert!(refused(&|fs| fs.files.sessions.clear()), "a blob without an owner");
    assert!(refused(&|fs| fs.blobs.by_name.get_mut(&1).unwrap().bytes = 4096), "a part outside of it");
    assert!(refused(&|fs| fs.blobs.by_name.get_mut(&2).unwrap().bytes = 2 << 20), "past the aperture");
    assert!(refused(&|fs| assert!(fs.files.open.insert(1, OpenFile::Blank).is_none())), "a file twice");
    assert!(refused(&|fs| assert!(fs.blobs.retired.insert(Token(9), 99).is_none())), "the end of no blob");
}

proptest! {
    #[test]
    fn no_state_is_a_crash(bytes in vec(any::<u8>(), 0..200), at in 0..2000usize, value in any::<u8>()) {
        let mut near = state();
        let place = at % near.len();
        near[place] = value;
        for hostile in [bytes, near] {
            let Ok(saved) = SavedFs::decode(&hostile) else { continue };
            let Ok((fs, _)) = saved.build(&options()) else { continue };
            prop_assert!(fs.blobs.by_name.values().all(|blob| blob.bytes > 0));
            prop_assert!(fs.parked.count <= 3);
        }
    }
}
