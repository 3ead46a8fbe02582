//! A daemon goes on with the VMs of one that was killed.
//!
//! ```text
//!                                         ┌─▶ its checkpoint holds: brought up to date by what engines have left ─▶ device as it was
//!   descriptor store ─▶ ledger of a vGPU ─┤
//!                                         └─▶ else: pages of processes: lost ─▶ device with nothing in it, over the same video memory;
//!                                               what was in flight is handled as if it came now
//!       ─▶ rings where the guest has them ─▶ the front-end's next message
//! ```
//!
//! A checkpoint holds as long as nothing is asked of the session (decision 122). Without one nothing of the session is left, as what engines had
//! begun is not known: guest processes see lost devices, and open new ones. What cannot be gone on with ends as if the daemon had ended for that
//! VM alone; the others go on.

use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::fs::SeekFrom;
use rustix::fs::fallocate;
use rustix::fs::seek;
use rustix::io::Errno;

use super::left_local;
use super::left_local::Wanted;
use super::options::VgpuOptions;
use super::upgrade::inheritance::Arrived;
use super::upgrade::inheritance::Inheritance;
use super::upgrade::inheritance::Resumed;
use super::upgrade::message::Changes;
use crate::fd_store;
use crate::frontend::vhost::handed::Checkpointed;
use crate::frontend::vhost::handed::Handed;
use crate::frontend::vhost::handed::HandedShell;
use crate::frontend::vhost::handed::Placed;
use crate::frontend::vhost::handed::Recorded;
use crate::frontend::vhost::handed::Region;
use crate::frontend::vhost::saved::SavedRing;
use crate::ledger::checkpoint;
use crate::ledger::log::Key;
use crate::ledger::log::Log;
use crate::ledger::log::LogError;
use crate::ledger::lost::Lost;
use crate::ledger::page::PagePlace;
use crate::ledger::page::Spot;
use crate::ledger::read::CHANNEL;
use crate::ledger::read::CHECKPOINT;
use crate::ledger::read::CONNECTION;
use crate::ledger::read::ESTATE;
use crate::ledger::read::EVICTED;
use crate::ledger::read::FENCES;
use crate::ledger::read::LOCAL;
use crate::ledger::read::Left;
use crate::ledger::read::LeftError;
use crate::ledger::read::VRAM;
use crate::ledger::read::block_of;
use crate::ledger::read::eventfd;
use crate::ledger::words::RingWords;
use crate::ledger::words::Words;
use crate::migration::checkpoint::DeviceCheckpoint;
use crate::migration::checkpoint::Overtaken;
use crate::migration::handed::Becomes;
use crate::migration::handed::HandedDevice;
use crate::migration::handed::Interrupted;
use crate::migration::handed::Otherwise;
use crate::migration::pages::PAGE;
use crate::migration::pages::PageSet;
use crate::vgpu::engines::kept_code::KeptFile;
use crate::vgpu::memory::vidmm::device_local::DeviceLocal;
use crate::vgpu::memory::vidmm::vram::VideoMemory;

/// What becomes of a VM that cannot be gone on with.
const LOST: &str = "its VM loses the device, as the daemon before this one was killed";
/// How deep maps and lists of a checkpoint may lie in each other.
const MAX_DEPTH: usize = 16;
/// Where the index of a used ring is (virtio 1.3, 2.7.8).
const USED_INDEX: u64 = 2;
/// Where its entries start.
const USED_ENTRIES: u64 = 4;
/// Bytes of an entry, of which the first four are the head.
const USED_ENTRY: u64 = 8;

/// What a daemon before this one that was killed has left of a vGPU, if anything: it arrives.
pub(super) fn collect(vgpu: &VgpuOptions, wanted: Wanted, inheritance: &Inheritance) {
    let files = fd_store::take(&vgpu.name);
    if files.is_empty() {
        return;
    }
    let roles: Vec<String> = files.keys().cloned().collect();
    let connection = files.get(CONNECTION).map(|file| file.try_clone().map(UnixStream::from));
    let arrived = Left::of(files).map_err(|error| error.to_string()).and_then(|left| {
        let local = left_local::find(&left, wanted);
        Ok((arrive(vgpu, left, &local)?, local.ok().flatten()))
    });
    match arrived {
        Ok((arrived, local)) => {
            inheritance.add(vgpu.name.clone(), arrived);
            if let Some(local) = local {
                inheritance.add_local(vgpu.name.clone(), local);
            }
        }
        Err(why) => {
            log::error!("vGPU {}: {LOST}: {why}", vgpu.name);
            give_up(&vgpu.name, &roles, connection);
        }
    }
}

/// Nothing of a vGPU is left: its VMM sees that, and can connect anew.
fn give_up(vgpu: &str, roles: &[String], connection: Option<io::Result<UnixStream>>) {
    if let Some(Ok(connection)) = connection {
        // It may have hung up.
        let _over = connection.shutdown(Shutdown::Both);
    }
    for role in roles {
        if let Err(error) = fd_store::remove(vgpu, role) {
            log::warn!("vGPU {vgpu}: descriptor store: {role}: {error}");
        }
    }
}

/// What the operator had changed there.
pub(super) fn changes() -> Changes {
    let Some(file) = fd_store::take("").remove(ESTATE) else { return Changes::default() };
    Log::open(File::from(file)).and_then(|log| log.get(Key::Estate)).unwrap_or_else(|error| {
        log::error!("what was changed at run time is as in the configuration again: {error}");
        Changes::default()
    })
}

/// All vGPUs are there: those that were collected go on, and what is left is given up.
pub(super) fn go_on(inheritance: &Inheritance) {
    for vgpu in inheritance.waiting() {
        let resumed = vgpu.wait().and_then(|()| {
            vgpu.go();
            vgpu.wait()
        });
        match resumed {
            Ok(()) => log::warn!("vGPU {}: its VM goes on: the daemon before this one was killed", vgpu.name),
            Err(why) => log::error!("vGPU {}: {LOST}: {why}", vgpu.name),
        }
    }
    for name in fd_store::drop_others() {
        log::warn!("descriptor store: {name}: no vGPU that is served; closed");
    }
}

/// Guest memory, as files.
struct Memory {
    regions: Vec<Region>,
    files: Vec<File>,
}

impl Memory {
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
fn ring(index: u16, placed: &Placed, memory: &Memory, words: &Arc<Words>) -> io::Result<SavedRing> {
    let mut ring = SavedRing { was_used: true, owes_interrupt: true, ..SavedRing::default() };
    // One that is stopped, as its VM is paused, may have some in flight.
    let may_have = |words: &RingWords| placed.size > 0 && (placed.has_kick || !words.heads().is_empty());
    let Some(words) = words.ring(index).filter(may_have) else {
        return Ok(ring);
    };
    let [_, _, used] = placed.parts;
    let at = |offset: u64| {
        used.checked_add(offset).ok_or_else(|| io::Error::other("a used ring beyond all memory"))
    };
    let guests = u16::from_le_bytes(memory.read(at(USED_INDEX)?)?);
    ring.repeated = words.heads();
    // Those that the daemon has used before it could note it: one, if the guest has not written there.
    let missed = guests.wrapping_sub(words.used()).min(placed.size);
    for back in 1..=missed {
        let slot = guests.wrapping_sub(back) % placed.size;
        let head = u32::from_le_bytes(memory.read(at(USED_ENTRIES + USED_ENTRY * u64::from(slot))?)?);
        ring.repeated.retain(|taken| u32::from(*taken) != head);
        // Or one that is killed next would have it in flight for ever: the index that is noted from here on counts it.
        if let Ok(head) = u16::try_from(head) {
            words.give_back(head);
        }
    }
    let in_flight = u16::try_from(ring.repeated.len()).unwrap_or(u16::MAX);
    ring.position = guests.wrapping_add(in_flight);
    Ok(ring)
}

/// The device pages of guest processes, and the memory that they lie in.
struct Pages {
    pages: Vec<(Key, Result<PagePlace, LogError>)>,
    guest: Memory,
    vram: File,
}

impl Pages {
    /// Tells the processes that their devices are lost. The keys of those that were told.
    fn lose(self, vgpu: &str) -> Vec<Key> {
        let Self { pages, guest, vram } = self;
        let mut told = Vec::new();
        for (key, place) in pages {
            let lost = place.map_err(io::Error::other).and_then(|place| {
                place.lose(|spot, word| {
                    let (file, at) = match spot {
                        Spot::Video(at) => (&vram, at),
                        Spot::Guest(address) => guest.find(address, 8)?,
                    };
                    file.write_all_at(&word.to_le_bytes(), at)
                })
            });
            match lost {
                Ok(()) => told.push(key),
                Err(error) => log::warn!(
                    "vGPU {vgpu}: {key:?}: a process may not learn that its device is lost: {error}"
                ),
            }
        }
        told
    }
}

/// Frees what no guest sees: all but the window.
fn forget_contents(vram_bytes: u64, vram: &File, evicted: &File) -> io::Result<()> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let aperture = VideoMemory::aperture_of(vram_bytes);
    for (file, from) in [(vram, aperture), (evicted, 0)] {
        if let Some(bytes) = file.metadata()?.len().checked_sub(from).filter(|bytes| *bytes > 0) {
            fallocate(file, punch, from, bytes)?;
        }
    }
    Ok(())
}

/// Pages of a file that have ever been written: the others are holes.
fn written_pages(file: &File) -> io::Result<PageSet> {
    let bytes = file.metadata()?.len();
    let mut set = PageSet::none(bytes / PAGE);
    let mut at = 0;
    while at < bytes {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole is left.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        at = seek(file, SeekFrom::Hole(start))?;
        set.insert(start / PAGE..at.div_ceil(PAGE).min(bytes / PAGE));
    }
    Ok(set)
}

/// The device as it was when its last engine had ended, and what was in flight then.
struct Whole {
    device: Overtaken,
    rings: Vec<SavedRing>,
}

/// What the checkpoint of a vGPU says, where that holds; its rings are, by their words, as `found`.
fn overtaken(
    vgpu: &str,
    left: &Left,
    (shell, epoch): (&HandedShell, u64),
    found: &[SavedRing],
) -> Result<Whole, String> {
    let text = |error: LeftError| error.to_string();
    let file = File::from(left.file(CHECKPOINT).map_err(text)?);
    let bytes = checkpoint::take(&file).map_err(|error| error.to_string())?;
    let bytes = bytes.ok_or("something was being asked of it")?;
    let broken = |error: &dyn std::error::Error| format!("the checkpoint is damaged: {error}");
    let Checkpointed { vgpu: its, mut rings, epoch: its_epoch, device } =
        ciborium::de::from_reader_with_recursion_limit(bytes.as_slice(), MAX_DEPTH)
            .map_err(|error| broken(&error))?;
    if its != vgpu {
        return Err(format!("the checkpoint is of vGPU {its}"));
    }
    if its_epoch != epoch {
        return Err("the guest has reset the device since its checkpoint".to_owned());
    }
    if rings.len() != found.len() {
        return Err(format!("the checkpoint has {} queues, not {}", rings.len(), found.len()));
    }
    for (index, ((ring, found), placed)) in rings.iter_mut().zip(found).zip(&shell.rings).enumerate() {
        let heads = |of: &[u16]| of.iter().copied().collect::<BTreeSet<u16>>();
        let parked: Vec<u16> = ring.in_flight.iter().map(|parked| parked.head).collect();
        // Of one that is stopped the front-end says the position when it starts.
        let is_where_it_was = !placed.has_kick || ring.position == found.position;
        if !is_where_it_was || heads(&parked) != heads(&found.repeated) {
            return Err(format!("queue {index} has moved on since its checkpoint"));
        }
        // The guest may not have been told of the last ones.
        ring.owes_interrupt = true;
    }
    let device: DeviceCheckpoint =
        ciborium::de::from_reader_with_recursion_limit(device.0.as_slice(), MAX_DEPTH)
            .map_err(|error| broken(&error))?;
    let fences = File::from(left.file(FENCES).map_err(text)?);
    let block = |place: u32| left.file(&block_of(place)).map(File::from).map_err(text);
    Ok(Whole { device: device.overtake(block, &fences)?, rings })
}

/// A device's memory is not gone on with: nothing keeps it any longer.
fn forget_local(vgpu: &str, left: &mut Left, stored: &mut BTreeSet<String>) {
    if let Err(error) = left.log.remove(Key::Local) {
        log::warn!("vGPU {vgpu}: {:?}: {error}", Key::Local);
    }
    if stored.remove(LOCAL)
        && let Err(error) = fd_store::remove(vgpu, LOCAL)
    {
        log::warn!("vGPU {vgpu}: descriptor store: {LOCAL}: {error}");
    }
}

/// A vGPU as it goes on, over the `local` memory of a device that was left, if that is what it had.
fn arrive(
    vgpu: &VgpuOptions,
    mut left: Left,
    local: &Result<Option<DeviceLocal>, String>,
) -> Result<Arrived, String> {
    if left.words.is_busy() {
        return Err("its VMM was in the middle of a message".to_owned());
    }
    let text = |error: LeftError| error.to_string();
    let io = |error: io::Error| error.to_string();
    let Recorded { mut shell, memory, epoch } =
        left.log.get(Key::Connection).map_err(|error| error.to_string())?;
    shell.window = left.log.get(Key::Window).ok();
    if memory.len() != shell.regions.len() {
        return Err(format!("{} regions of guest memory, {} files", shell.regions.len(), memory.len()));
    }
    let memory: Result<Vec<OwnedFd>, String> =
        memory.iter().map(|role| left.memory(role).map_err(text)).collect();
    let memory = memory?;
    let mut files = VecDeque::new();
    if shell.has_back_channel {
        files.push_back(left.file(CHANNEL).map_err(text)?);
    }
    let copies: io::Result<Vec<File>> = memory.iter().map(|file| Ok(File::from(file.try_clone()?))).collect();
    files.extend(memory);
    let guest = Memory { regions: shell.regions.clone(), files: copies.map_err(io)? };
    let [vram, evicted] = [VRAM, EVICTED].map(|role| left.file(role).map(File::from).map_err(text));
    let (vram, evicted) = (vram?, evicted?);
    let mut stored = left.roles();
    left.words.count_end();
    let mut rings = Vec::with_capacity(shell.rings.len());
    for (index, placed) in (0..).zip(&shell.rings) {
        rings.push(
            ring(index, placed, &guest, &left.words).map_err(|error| format!("queue {index}: {error}"))?,
        );
        for (what, is_there) in
            [("kick", placed.has_kick), ("call", placed.has_call), ("error", placed.has_error)]
        {
            if is_there {
                files.push_back(left.file(&eventfd(what, index)).map_err(text)?);
            }
        }
    }
    let keys: Vec<Key> = left.log.keys().filter(|key| matches!(key, Key::Page(_))).collect();
    let pages = keys.into_iter().map(|key| (key, left.log.get(key))).collect();
    let pages = Pages { pages, guest, vram: vram.try_clone().map_err(io)? };
    let names = Lost::of(&left.log).map_err(|error| error.to_string())?;
    let stream = UnixStream::from(left.file(CONNECTION).map_err(text)?);
    let mut lost = 0;
    let whole = overtaken(&vgpu.name, &left, (&shell, epoch), &rings);
    let whole = match local {
        Ok(_) => whole,
        Err(why) => {
            forget_local(&vgpu.name, &mut left, &mut stored);
            Err(why.clone())
        }
    };
    let (state, interrupted, written) = match whole {
        Ok(Whole { device, rings }) => {
            let Overtaken { state, devices, lost } = device;
            log::warn!(
                "vGPU {}: {} devices go on as they were, and {} are lost: their work was under way",
                vgpu.name,
                devices.saturating_sub(lost.len()),
                lost.len()
            );
            shell.shell.rings = rings;
            let mut written = [written_pages(&vram).map_err(io)?, written_pages(&evicted).map_err(io)?];
            // Of a device's memory that is not known.
            if let Ok(Some(_)) = local {
                let from = VideoMemory::aperture_of(vgpu.vram_bytes);
                written[0].insert(from / PAGE..vgpu.vram_bytes / PAGE);
            }
            let (name, bytes) = (vgpu.name.clone(), vgpu.vram_bytes);
            let memories = [vram.try_clone().map_err(io)?, evicted.try_clone().map_err(io)?];
            let otherwise = Otherwise::new(move || {
                let told = pages.lose(&name).len();
                forget_contents(bytes, &memories[0], &memories[1])?;
                Ok((names, told as u64))
            });
            (Becomes::Whole(state), Interrupted { lost, otherwise: Some(otherwise) }, written)
        }
        Err(why) => {
            let told = pages.lose(&vgpu.name);
            log::warn!("vGPU {}: {} devices are lost: {why}", vgpu.name, told.len());
            for key in &told {
                if let Err(error) = left.log.remove(*key) {
                    log::warn!("vGPU {}: {key:?}: {error}", vgpu.name);
                }
            }
            lost = told.len() as u64;
            shell.shell.rings = rings;
            forget_contents(vgpu.vram_bytes, &vram, &evicted).map_err(io)?;
            let window = VideoMemory::aperture_of(vgpu.vram_bytes);
            let written = [(&vram, window), (&evicted, 0)].map(|(file, bytes)| {
                let mut set = PageSet::none(file.metadata()?.len() / PAGE);
                set.insert(0..bytes / PAGE);
                Ok::<_, io::Error>(set)
            });
            let [of_vram, of_evicted] = written;
            let written = [of_vram.map_err(io)?, of_evicted.map_err(io)?];
            (Becomes::Lost(names), Interrupted::default(), written)
        }
    };
    let connection = Handed { stream, shell, files };
    let code: io::Result<Vec<KeptFile>> =
        left.code().map(|(engine, file)| Ok(KeptFile { engine, file: file.try_clone()?.into() })).collect();
    let device =
        HandedDevice { state, interrupted, files: [vram, evicted], written, code: code.map_err(io)? };
    let ledger = Resumed { log: left.log, words: left.words, stored, lost };
    Ok(Arrived { connection, device, ledger: Some(ledger) })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt;
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;
    use std::sync::Arc;

    use rustix::event::EventfdFlags;
    use rustix::event::eventfd;
    use rustix::fs::MemfdFlags;
    use rustix::fs::memfd_create;

    use super::Checkpointed;
    use super::DeviceCheckpoint;
    use super::DeviceLocal;
    use super::Inheritance;
    use super::Left;
    use super::Memory;
    use super::PAGE;
    use super::Recorded;
    use super::Region;
    use super::SavedRing;
    use super::VgpuOptions;
    use super::Wanted;
    use super::arrive;
    use super::collect;
    use super::overtaken;
    use super::ring;
    use crate::fd_store;
    use crate::frontend::vhost::handed::HandedShell;
    use crate::frontend::vhost::handed::Placed;
    use crate::frontend::vhost::saved::Parked;
    use crate::frontend::vhost::saved::SavedShell;
    use crate::ids::FrontContext;
    use crate::ids::GuestProcess;
    use crate::ledger::checkpoint::Checkpoint;
    use crate::ledger::checkpoint::take;
    use crate::ledger::log::Key;
    use crate::ledger::log::Log;
    use crate::ledger::lost::Lost;
    use crate::ledger::page::PagePlace;
    use crate::ledger::words::Words;
    use crate::migration::handed::Becomes;
    use crate::migration::state;
    use crate::migration::state::State;
    use crate::service_manager::tests::HeardStore;
    use crate::vgpu::memory::vidmm::vram::VideoMemory;
    use crate::vgpu::state::saved::SavedSession;
    use crate::vgpu::state::saved::at_work::SavedAtWork;
    use crate::vgpu::state::saved::bytes::Bytes;
    use crate::vgpu::state::saved::row::SavedFence;
    use crate::vgpu::testing::golden;
    use campanile_host_gpu::memory::local::Passport;
    use campanile_protocol::device_page;
    use campanile_protocol::engine::fences::MAX_FENCES;

    /// Where guest memory and its used ring begin.
    const RAM: u64 = 1 << 30;
    const USED: u64 = RAM + 0x2000;
    const SIZE: u16 = 4;

    fn placed() -> Placed {
        let parts = [RAM, RAM + 0x1000, USED];
        Placed { size: SIZE, parts, is_enabled: true, has_kick: true, has_call: true, has_error: false }
    }

    fn region(length: u64) -> Region {
        Region { guest: RAM, length, user: 0x7000_0000, offset: 0 }
    }

    fn memfd(length: u64) -> File {
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(length).unwrap();
        file
    }

    /// Guest memory whose used ring has these heads, the last of which makes its index this one.
    fn used(index: u16, heads: &[u16]) -> File {
        let file = memfd(1 << 16);
        let start = USED - RAM;
        file.write_all_at(&index.to_le_bytes(), start + 2).unwrap();
        for (back, head) in (1..).zip(heads.iter().rev()) {
            let slot = u64::from(index.wrapping_sub(back) % SIZE);
            file.write_all_at(&u32::from(*head).to_le_bytes(), start + 4 + 8 * slot).unwrap();
        }
        file
    }

    #[test]
    fn cont_15_what_was_in_flight_is_handled_again_in_its_order_but_for_what_the_guest_has_back() {
        // What the daemon noted, the guest's used index and last heads; what is repeated, and where the ring goes on.
        type Case<'a> = (u16, u16, &'a [u16], &'a [u16], u16);
        let cases: [Case<'_>; 5] = [
            (7, 7, &[], &[3, 0, 2], 10),
            (7, 8, &[0], &[3, 2], 10),
            (7, 10, &[2, 3, 0], &[], 10),
            (u16::MAX, 0, &[3], &[0, 2], 2),
            (u16::MAX - 1, u16::MAX - 1, &[], &[3, 0, 2], 1),
        ];
        for (noted, index, heads, repeated, position) in cases {
            let words = Arc::new(Words::new().unwrap());
            let its = words.ring(1).unwrap();
            its.note_used(noted);
            for (order, head) in [(1, 3), (2, 0), (3, 2)] {
                its.take(head, order);
            }
            let regions = [region(1 << 16)];
            let memory = Memory { regions: regions.to_vec(), files: vec![used(index, heads)] };
            let found = ring(1, &placed(), &memory, &words).unwrap();
            assert_eq!((found.repeated.as_slice(), found.position), (repeated, position), "{noted}, {index}");
            // As the daemon that goes on notes it, which is killed as well.
            its.note_used(index);
            let again = ring(1, &placed(), &memory, &words).unwrap();
            assert_eq!((again.repeated.as_slice(), again.position), (repeated, position), "killed twice");
            assert!(found.owes_interrupt, "the guest may have been told of nothing");
            assert!(found.was_used, "the front-end may say that it begins anew");
            let stopped = Placed { has_kick: false, ..placed() };
            let again = ring(1, &stopped, &memory, &words).unwrap();
            assert_eq!(again.repeated, repeated, "its VM is paused");
            let none = Arc::new(Words::new().unwrap());
            assert_eq!(ring(1, &stopped, &memory, &none).unwrap().position, 0, "it had not begun");
        }
        let nowhere = Memory { regions: Vec::new(), files: Vec::new() };
        let error = ring(1, &placed(), &nowhere, &Arc::new(Words::new().unwrap())).unwrap_err().to_string();
        assert!(error.contains("guest memory has no 0x40002002"), "{error}");
    }

    /// What a daemon has left of a vGPU with one ring and a device page in each kind of memory, and the guest's end of its connection.
    fn left(vgpu: &VgpuOptions) -> (BTreeMap<String, OwnedFd>, UnixStream) {
        let (own, its) = UnixStream::pair().unwrap();
        let file_bytes = VideoMemory::file_bytes_of(vgpu.vram_bytes);
        let mut log = Log::new().unwrap();
        let shell = HandedShell {
            shell: SavedShell::default(),
            protocol: 0,
            has_asked: true,
            is_greeted: true,
            window: None,
            has_back_channel: false,
            regions: vec![region(1 << 20)],
            rings: vec![placed()],
        };
        let recorded = Recorded { shell, memory: vec!["ram-1-2".to_owned()], epoch: 5 };
        log.put(Key::Connection, &recorded).unwrap();
        log.put(Key::Window, &true).unwrap();
        log.put(Key::Page(GuestProcess::new(3)), &PagePlace::Video(0x10000)).unwrap();
        log.put(Key::Page(GuestProcess::new(4)), &PagePlace::Guest(vec![(RAM + 0x40000, 0x20000)])).unwrap();
        log.put(Key::Context(FrontContext::new(3)), &()).unwrap();
        let event = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let files: [(&str, OwnedFd); 8] = [
            ("log", log.file().try_clone().unwrap().into()),
            ("words", Words::new().unwrap().file().try_clone().unwrap().into()),
            ("connection", own.into()),
            ("ram-1-2", memfd(1 << 20).into()),
            ("vram", memfd(file_bytes).into()),
            ("evicted", memfd(1 << 20).into()),
            ("kick-0", event()),
            ("call-0", event()),
        ];
        (files.map(|(role, file)| (role.to_owned(), file)).into(), its)
    }

    fn vgpu() -> VgpuOptions {
        VgpuOptions::new("a".to_owned(), PathBuf::from("/run/a"), 64 << 20)
    }

    #[test]
    fn cont_12_processes_are_told_wherever_their_pages_lie_and_what_no_guest_sees_is_freed() {
        let vgpu = vgpu();
        let (files, _its) = left(&vgpu);
        let [vram, ram] = ["vram", "ram-1-2"].map(|role| File::from(files[role].try_clone().unwrap()));
        let hidden = VideoMemory::aperture_of(vgpu.vram_bytes) + 0x5000;
        for at in [0x5000, hidden] {
            vram.write_all_at(b"secret", at).unwrap();
        }
        let arrived = arrive(&vgpu, Left::of(files).unwrap(), &Ok(None)).unwrap();
        let word = |file: &File, at: u64| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at).unwrap();
            u64::from_le_bytes(bytes)
        };
        assert_eq!(word(&vram, 0x10000 + device_page::DEVICE_STATUS), device_page::DEVICE_STOPPED);
        assert_eq!(word(&ram, 0x40000 + device_page::DEVICE_STATUS), device_page::DEVICE_STOPPED);
        assert_ne!(word(&vram, 0x5000), 0, "a process of the guest has it mapped");
        assert_eq!(word(&vram, hidden), 0);
        let Becomes::Lost(lost) = arrived.device.state else { panic!("it has no state") };
        assert_eq!(lost, Lost { contexts: vec![FrontContext::new(3)], ..Lost::default() });
        let ledger = arrived.ledger.unwrap();
        assert_eq!(ledger.lost, 2);
        assert!(ledger.log.get::<PagePlace>(Key::Page(GuestProcess::new(3))).is_err(), "it is told once");
        assert_eq!(arrived.connection.shell.window, Some(true));
        assert_eq!(arrived.connection.files.len(), 3, "memory, kick, call");
        let pages = VideoMemory::aperture_of(vgpu.vram_bytes) / PAGE;
        let [of_vram, of_evicted] = arrived.device.written.map(|set| set.count());
        assert_eq!((of_vram, of_evicted), (pages, 0), "the window may have anything in it");
    }

    /// The same, with a checkpoint of the golden state that holds, changed so.
    fn at_work(
        vgpu: &VgpuOptions,
        change: impl FnOnce(&mut Checkpointed, &mut DeviceCheckpoint),
    ) -> (BTreeMap<String, OwnedFd>, UnixStream) {
        let (mut files, its) = left(vgpu);
        // The guest has had one chain back, and one is in flight.
        File::from(files["ram-1-2"].try_clone().unwrap())
            .write_all_at(&1u16.to_le_bytes(), USED - RAM + 2)
            .unwrap();
        let words = Arc::new(Words::open(files["words"].try_clone().unwrap().into()).unwrap());
        words.ring(0).unwrap().note_used(1);
        words.ring(0).unwrap().take(3, 2);
        // As one that is killed while it handles that.
        words.ring(0).unwrap().handle(3);
        let state = State { session: golden(), ..State::default() }.encode().unwrap();
        let mut device = DeviceCheckpoint { state: Bytes(state), at_work: SavedAtWork::default() };
        let parked = Parked { head: 3, shape: 7, answer: None };
        let ring = SavedRing { position: 2, was_used: true, in_flight: vec![parked], ..SavedRing::default() };
        let mut checkpointed =
            Checkpointed { vgpu: vgpu.name.clone(), rings: vec![ring], epoch: 5, device: Bytes::default() };
        change(&mut checkpointed, &mut device);
        if checkpointed.device.is_empty() {
            ciborium::into_writer(&device, &mut checkpointed.device.0).unwrap();
        }
        let mut bytes = Vec::new();
        ciborium::into_writer(&checkpointed, &mut bytes).unwrap();
        let checkpoint = Checkpoint::new().unwrap();
        checkpoint.write(&bytes).unwrap();
        files.insert("checkpoint".to_owned(), checkpoint.file().try_clone().unwrap().into());
        files.insert("fences".to_owned(), memfd(u64::from(MAX_FENCES) * PAGE).into());
        (files, its)
    }

    #[test]
    fn cont_21_a_vgpu_whose_checkpoint_holds_is_as_it_was_and_nothing_of_it_is_told_or_freed() {
        let vgpu = vgpu();
        let (files, _its) = at_work(&vgpu, |_, _| {});
        let [vram, ram, checkpoint] =
            ["vram", "ram-1-2", "checkpoint"].map(|role| File::from(files[role].try_clone().unwrap()));
        let hidden = VideoMemory::aperture_of(vgpu.vram_bytes) + 0x5000;
        vram.write_all_at(b"secret", hidden).unwrap();
        let arrived = arrive(&vgpu, Left::of(files).unwrap(), &Ok(None)).unwrap();
        let Becomes::Whole(state) = arrived.device.state else { panic!("it is lost") };
        let expected: Vec<SavedFence> =
            golden().fences.iter().map(|fence| SavedFence(fence.0, fence.1, fence.2, 0)).collect();
        assert_eq!(state::decode(&state).unwrap().session, SavedSession { fences: expected, ..golden() });
        let mut kept = [0; 6];
        vram.read_exact_at(&mut kept, hidden).unwrap();
        assert_eq!(&kept, b"secret");
        let mut status = [0; 8];
        ram.read_exact_at(&mut status, 0x40000 + device_page::DEVICE_STATUS).unwrap();
        assert_eq!(u64::from_le_bytes(status), 0, "no process is told");
        let ring = &arrived.connection.shell.shell.rings[0];
        assert_eq!((ring.in_flight.len(), ring.repeated.len(), ring.owes_interrupt), (1, 0, true));
        let [of_vram, of_evicted] = &arrived.device.written;
        assert_eq!((of_vram.runs()[0].start, of_vram.count(), of_evicted.count()), (hidden / PAGE, 1, 0));
        let ledger = arrived.ledger.unwrap();
        assert_eq!((ledger.lost, ledger.log.keys().count()), (0, 5), "it goes on");
        assert_eq!(take(&checkpoint).unwrap(), None, "another daemon does not take it");
        // Where it cannot be taken over, it is as without one.
        let (lost, told) = arrived.device.interrupted.otherwise.unwrap().lose().unwrap();
        assert_eq!((lost.contexts, told), (vec![FrontContext::new(3)], 2));
        ram.read_exact_at(&mut status, 0x40000 + device_page::DEVICE_STATUS).unwrap();
        assert_eq!(u64::from_le_bytes(status), device_page::DEVICE_STOPPED);
        vram.read_exact_at(&mut kept, hidden).unwrap();
        assert_eq!(kept, [0; 6]);
    }

    #[test]
    fn cont_21_of_a_devices_memory_that_goes_on_all_counts_as_written() {
        let vgpu = vgpu();
        let passport = Passport { length: vgpu.local_bytes(), ..Passport::default() };
        let local = DeviceLocal::handed(memfd(passport.length).into(), passport, false);
        let (files, _its) = at_work(&vgpu, |_, _| {});
        let arrived = arrive(&vgpu, Left::of(files).unwrap(), &Ok(Some(local))).unwrap();
        assert!(matches!(arrived.device.state, Becomes::Whole(_)));
        let [of_vram, of_evicted] = &arrived.device.written;
        let all = VideoMemory::aperture_of(vgpu.vram_bytes) / PAGE..vgpu.vram_bytes / PAGE;
        assert_eq!((of_vram.runs(), of_evicted.count()), (vec![all], 0));
    }

    #[test]
    fn cont_21_devices_are_lost_whose_local_memory_does_not_go_on_and_nothing_keeps_that_any_longer() {
        let store = HeardStore::open();
        let vgpu = vgpu();
        let (mut files, _its) = at_work(&vgpu, |_, _| {});
        let checkpoint = File::from(files["checkpoint"].try_clone().unwrap());
        files.insert("local".to_owned(), memfd(1 << 20).into());
        let mut left = Left::of(files).unwrap();
        left.log.put(Key::Local, &Passport::default()).unwrap();
        let arrived = arrive(&vgpu, left, &Err("why".to_owned())).unwrap();
        assert!(matches!(arrived.device.state, Becomes::Lost(_)));
        let ledger = arrived.ledger.unwrap();
        assert!(ledger.log.get::<Passport>(Key::Local).is_err() && !ledger.stored.contains("local"));
        assert_eq!(take(&checkpoint).unwrap(), None, "no daemon takes it once more");
        let removed = "FDSTOREREMOVE=1\nFDNAME=campanile.a.local";
        assert_eq!(store.heard().filter(|said| said == removed).count(), 1);
    }

    #[test]
    fn cont_14_cont_21_devices_whose_checkpoint_does_not_hold_or_cannot_be_used_are_lost_for_a_reason() {
        type Change = fn(&mut Checkpointed, &mut DeviceCheckpoint);
        let changes: [(&str, Change); 8] = [
            ("the guest has reset the device since its checkpoint", |checkpointed, _| checkpointed.epoch = 4),
            ("the checkpoint is of vGPU b", |checkpointed, _| "b".clone_into(&mut checkpointed.vgpu)),
            ("the checkpoint has 0 queues, not 1", |checkpointed, _| checkpointed.rings.clear()),
            ("queue 0 has moved on since its checkpoint", |checkpointed, _| {
                checkpointed.rings[0].position = 1
            }),
            ("queue 0 has moved on since its checkpoint", |checkpointed, _| {
                checkpointed.rings[0].in_flight.clear()
            }),
            ("the checkpoint is damaged", |checkpointed, _| checkpointed.device = Bytes(vec![1, 2, 3])),
            ("this is not the state of a vGPU", |_, device| device.state.0.clear()),
            ("a descriptor is missing in the store: block-1", |_, device| device.at_work.engines = vec![1]),
        ];
        let vgpu = vgpu();
        let lost = |files: BTreeMap<String, OwnedFd>| {
            let left = Left::of(files).unwrap();
            let Recorded { shell, epoch, .. } = left.log.get(Key::Connection).unwrap();
            let ring = SavedRing { position: 2, repeated: vec![3], ..SavedRing::default() };
            let why = overtaken(&vgpu.name, &left, (&shell, epoch), &[ring]).err().expect("it is whole");
            let arrived = arrive(&vgpu, left, &Ok(None)).unwrap();
            assert!(matches!(arrived.device.state, Becomes::Lost(_)), "{why}");
            let words = &arrived.ledger.as_ref().unwrap().words;
            assert_eq!(words.ring(0).unwrap().ends(3), 1, "{why}: an end in the handling of its chain");
            assert_eq!(
                arrived.connection.shell.shell.rings[0].repeated,
                [3],
                "what was in flight is handled again"
            );
            why
        };
        for (expected, change) in changes {
            let why = lost(at_work(&vgpu, change).0);
            assert!(why.contains(expected), "{why}");
        }
        let (mut files, _its) = at_work(&vgpu, |_, _| {});
        File::from(files["checkpoint"].try_clone().unwrap()).write_all_at(&[0; 8], 16).unwrap();
        assert_eq!(lost(files), "something was being asked of it");
        for role in ["checkpoint", "fences"] {
            (files, _) = at_work(&vgpu, |_, _| {});
            files.remove(role);
            assert_eq!(lost(files), format!("a descriptor is missing in the store: {role}"));
        }
        (files, _) = at_work(&vgpu, |_, _| {});
        files.insert("fences".to_owned(), memfd(4).into());
        assert_eq!(lost(files), "the value of native fence 0 is missing");
    }

    #[test]
    fn cont_14_a_vgpu_of_which_something_is_missing_or_wrong_is_refused_by_name() {
        let vgpu = vgpu();
        let refused = |change: &dyn Fn(&mut BTreeMap<String, OwnedFd>)| {
            let (mut files, mut its) = left(&vgpu);
            change(&mut files);
            let why = Left::of(files)
                .map_err(|error| error.to_string())
                .and_then(|left| arrive(&vgpu, left, &Ok(None)))
                .unwrap_err();
            assert_eq!(its.read(&mut [0; 1]).unwrap(), 0, "its connection is closed");
            why
        };
        for role in ["log", "words", "connection", "ram-1-2", "vram", "evicted", "kick-0", "call-0"] {
            let why = refused(&|files| drop(files.remove(role)));
            assert_eq!(why, format!("a descriptor is missing in the store: {role}"));
        }
        let why = refused(&|files| drop(files.insert("log".to_owned(), memfd(100).into())));
        assert_eq!(why, "the ledger does not begin as one");
        let why = refused(&|files| drop(files.insert("words".to_owned(), memfd(100).into())));
        assert!(why.starts_with("the words of its rings have 100 bytes"), "{why}");
        let why = refused(&|files| {
            Words::open(files["words"].try_clone().unwrap().into()).unwrap().set_busy(true);
        });
        assert_eq!(why, "its VMM was in the middle of a message");
        let why = refused(&|files| {
            let mut log = Log::open(files["log"].try_clone().unwrap().into()).unwrap();
            log.put(Key::Connection, &7u32).unwrap();
        });
        assert!(why.starts_with("Connection of the ledger: "), "{why}");
        let why = refused(&|files| {
            let mut log = Log::open(files["log"].try_clone().unwrap().into()).unwrap();
            let mut recorded: Recorded = log.get(Key::Connection).unwrap();
            recorded.memory.clear();
            log.put(Key::Connection, &recorded).unwrap();
        });
        assert_eq!(why, "1 regions of guest memory, 0 files");
    }

    #[test]
    fn cont_14_of_a_vgpu_that_cannot_go_on_nothing_is_left_and_its_vmm_sees_that() {
        let store = HeardStore::open();
        let vgpu = vgpu();
        let (mut files, mut its) = left(&vgpu);
        files.remove("words");
        // A store has the connection, too.
        let _stored = files["connection"].try_clone().unwrap();
        let roles: Vec<String> = files.keys().cloned().collect();
        fd_store::deliver(files.into_iter().map(|(role, file)| (format!("campanile.a.{role}"), file)));
        let inheritance = Inheritance::default();
        collect(&vgpu, Wanted::Host, &inheritance);
        assert_eq!(inheritance.unclaimed(), None);
        assert_eq!(its.read(&mut [0; 1]).unwrap(), 0, "its connection is closed");
        let said = store.heard().filter(|said| said.contains("FDNAME=campanile.a."));
        let expected = roles.iter().map(|role| format!("FDSTOREREMOVE=1\nFDNAME=campanile.a.{role}"));
        assert_eq!(said.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}
