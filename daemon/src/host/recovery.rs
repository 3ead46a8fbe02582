//! A daemon goes on with the VMs of one that was killed.
//!
//! ```text
//!   descriptor store ─▶ ledger of each vGPU ─▶ pages of processes: lost ─▶ device with nothing in it, over the same video memory
//!       ─▶ rings where the guest has them; what was in flight is handled as if it came now ─▶ the front-end's next message
//! ```
//!
//! Nothing of the sessions is left: what engines had begun is not known. Guest processes see lost devices, and open new ones. What
//! cannot be gone on with ends as if the daemon had ended for that VM alone; the others go on.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::fs::fallocate;

use super::options::VgpuOptions;
use super::upgrade::inheritance::Arrived;
use super::upgrade::inheritance::Inheritance;
use super::upgrade::inheritance::Resumed;
use crate::fd_store;
use crate::frontend::vhost::handed::Handed;
use crate::frontend::vhost::handed::Placed;
use crate::frontend::vhost::handed::Recorded;
use crate::frontend::vhost::handed::Region;
use crate::frontend::vhost::saved::SavedRing;
use crate::ledger::log::Key;
use crate::ledger::lost::Lost;
use crate::ledger::page::PagePlace;
use crate::ledger::page::Spot;
use crate::ledger::read::CHANNEL;
use crate::ledger::read::CONNECTION;
use crate::ledger::read::EVICTED;
use crate::ledger::read::Left;
use crate::ledger::read::LeftError;
use crate::ledger::read::VRAM;
use crate::ledger::read::eventfd;
use crate::ledger::words::Words;
use crate::migration::handed::Becomes;
use crate::migration::handed::HandedDevice;
use crate::migration::pages::PAGE;
use crate::migration::pages::PageSet;
use crate::vgpu::memory::vidmm::vram::VideoMemory;

/// Where the index of a used ring is (virtio 1.3, 2.7.8).
const USED_INDEX: u64 = 2;
/// Where its entries start.
const USED_ENTRIES: u64 = 4;
/// Bytes of an entry, of which the first four are the head.
const USED_ENTRY: u64 = 8;

/// All that a daemon before this one has left of these vGPUs. What it left of others is given up.
pub(super) fn collect(vgpus: &[VgpuOptions]) -> Arc<Inheritance> {
    let inheritance = Arc::new(Inheritance::default());
    for vgpu in vgpus {
        let left = match Left::take(&vgpu.name) {
            Ok(None) => continue,
            Ok(Some(left)) => arrive(vgpu, left),
            Err(error) => Err(error.to_string()),
        };
        match left {
            Ok(arrived) => inheritance.add(vgpu.name.clone(), arrived),
            Err(why) => log::error!("vGPU {}: its VM loses the device, as the daemon before this one was killed: {why}", vgpu.name),
        }
    }
    for name in fd_store::drop_others() {
        log::warn!("descriptor store: {name}: no vGPU of the configuration; closed");
    }
    inheritance
}

/// All vGPUs are there: those that were collected go on.
pub(super) fn go_on(inheritance: &Inheritance) {
    for vgpu in inheritance.waiting() {
        let resumed = vgpu.wait().and_then(|()| {
            vgpu.go();
            vgpu.wait()
        });
        match resumed {
            Ok(()) => log::warn!("vGPU {}: its VM goes on, with lost devices: the daemon before this one was killed", vgpu.name),
            Err(why) => log::error!("vGPU {}: its VM loses the device: {why}", vgpu.name),
        }
    }
}

/// Guest memory, as files.
struct Memory<'a> {
    regions: &'a [Region],
    files: Vec<File>,
}

impl Memory<'_> {
    /// The file that `bytes` bytes from a guest-physical address on lie in, and where.
    fn find(&self, address: u64, bytes: u64) -> io::Result<(&File, u64)> {
        let found = self.regions.iter().zip(&self.files).find_map(|(region, file)| {
            let within = address.checked_sub(region.guest)?;
            let fits = within.checked_add(bytes).is_some_and(|end| end <= region.length);
            fits.then(|| Some((file, region.offset.checked_add(within)?))).flatten()
        });
        found.ok_or_else(|| io::Error::other(format!("guest memory has no {address:#x}")))
    }

    fn read<const N: usize>(&self, address: u64) -> io::Result<[u8; N]> {
        let (file, at) = self.find(address, N as u64)?;
        let mut bytes = [0; N];
        file.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }
}

/// Where a ring goes on, and what of it is handled once more.
///
/// What was taken from it has been used, or is in flight: so the guest's used index and what is in flight say how far it was.
fn ring(index: u16, placed: &Placed, memory: &Memory<'_>, words: &Arc<Words>) -> io::Result<SavedRing> {
    let mut ring = SavedRing { was_used: true, owes_interrupt: true, ..SavedRing::default() };
    let Some(words) = words.ring(index).filter(|_| placed.has_kick && placed.size > 0) else { return Ok(ring) };
    let [_, _, used] = placed.parts;
    let at = |offset: u64| used.checked_add(offset).ok_or_else(|| io::Error::other("a used ring beyond all memory"));
    let guests = u16::from_le_bytes(memory.read(at(USED_INDEX)?)?);
    ring.repeated = words.heads();
    // Those that the daemon has used before it could note it: one, if the guest has not written there.
    let missed = guests.wrapping_sub(words.used()).min(placed.size);
    for back in 1..=missed {
        let slot = guests.wrapping_sub(back) % placed.size;
        let head = u32::from_le_bytes(memory.read(at(USED_ENTRIES + USED_ENTRY * u64::from(slot))?)?);
        ring.repeated.retain(|taken| u32::from(*taken) != head);
    }
    let in_flight = u16::try_from(ring.repeated.len()).unwrap_or(u16::MAX);
    ring.position = guests.wrapping_add(in_flight);
    Ok(ring)
}

/// Tells the processes of the guest that their devices are lost. How many were told.
fn lose_devices(vgpu: &str, left: &mut Left, memory: &Memory<'_>, vram: &File) -> u64 {
    let pages: Vec<Key> = left.log.keys().filter(|key| matches!(key, Key::Page(_))).collect();
    let mut told = 0;
    for key in pages {
        let place: Result<PagePlace, _> = left.log.get(key);
        let lost = place.map_err(io::Error::other).and_then(|place| {
            place.lose(|spot, word| {
                let (file, at) = match spot {
                    Spot::Video(at) => (vram, at),
                    Spot::Guest(address) => memory.find(address, 8)?,
                };
                file.write_all_at(&word.to_le_bytes(), at)
            })
        });
        match lost.and_then(|()| left.log.remove(key)) {
            Ok(()) => told += 1,
            Err(error) => log::warn!("vGPU {vgpu}: {key:?}: a process may not learn that its device is lost: {error}"),
        }
    }
    told
}

/// Frees what no guest sees: all but the window.
fn forget_contents(vgpu: &VgpuOptions, vram: &File, evicted: &File) -> io::Result<()> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let aperture = VideoMemory::aperture_of(vgpu.vram_bytes);
    for (file, from) in [(vram, aperture), (evicted, 0)] {
        if let Some(bytes) = file.metadata()?.len().checked_sub(from).filter(|bytes| *bytes > 0) {
            fallocate(file, punch, from, bytes)?;
        }
    }
    Ok(())
}

/// A vGPU as it goes on.
fn arrive(vgpu: &VgpuOptions, mut left: Left) -> Result<Arrived, String> {
    if left.words.is_busy() {
        return Err("its VMM was in the middle of a message".to_owned());
    }
    let text = |error: LeftError| error.to_string();
    let io = |error: io::Error| error.to_string();
    let Recorded { mut shell, memory } = left.log.get(Key::Connection).map_err(|error| error.to_string())?;
    shell.window = left.log.get(Key::Window).ok();
    if memory.len() != shell.regions.len() {
        return Err(format!("{} regions of guest memory, {} files", shell.regions.len(), memory.len()));
    }
    let memory: Result<Vec<OwnedFd>, String> = memory.iter().map(|role| left.memory(role).map_err(text)).collect();
    let memory = memory?;
    let mut files = VecDeque::new();
    if shell.has_back_channel {
        files.push_back(left.file(CHANNEL).map_err(text)?);
    }
    let copies: io::Result<Vec<File>> = memory.iter().map(|file| Ok(File::from(file.try_clone()?))).collect();
    files.extend(memory);
    let guest = Memory { regions: &shell.regions, files: copies.map_err(io)? };
    let [vram, evicted] = [VRAM, EVICTED].map(|role| left.file(role).map(File::from).map_err(text));
    let (vram, evicted) = (vram?, evicted?);
    let stored = left.roles();
    let lost = lose_devices(&vgpu.name, &mut left, &guest, &vram);
    let mut rings = Vec::with_capacity(shell.rings.len());
    for (index, placed) in (0..).zip(&shell.rings) {
        rings.push(ring(index, placed, &guest, &left.words).map_err(|error| format!("queue {index}: {error}"))?);
        for (what, is_there) in [("kick", placed.has_kick), ("call", placed.has_call), ("error", placed.has_error)] {
            if is_there {
                files.push_back(left.file(&eventfd(what, index)).map_err(text)?);
            }
        }
    }
    shell.shell.rings = rings;
    forget_contents(vgpu, &vram, &evicted).map_err(io)?;
    let written = [(&vram, VideoMemory::aperture_of(vgpu.vram_bytes)), (&evicted, 0)].map(|(file, bytes)| {
        let mut set = PageSet::none(file.metadata()?.len() / PAGE);
        set.insert(0..bytes / PAGE);
        Ok::<_, io::Error>(set)
    });
    let [of_vram, of_evicted] = written;
    let written = [of_vram.map_err(io)?, of_evicted.map_err(io)?];
    let stream = UnixStream::from(left.file(CONNECTION).map_err(text)?);
    let connection = Handed { stream, shell, files };
    let state = Becomes::Lost(Lost::of(&left.log).map_err(|error| error.to_string())?);
    let device = HandedDevice { state, files: [vram, evicted], written };
    let ledger = Resumed { log: left.log, words: left.words, stored, lost };
    Ok(Arrived { connection, device, ledger: Some(ledger) })
}
