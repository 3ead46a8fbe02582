//! Descriptor tables and rings, written by a guest that does what an input says, before the queue worker of either front.
//!
//! ```text
//!   choice │ op, arguments …      choice: the front, features, size of the rings, and whether the guest writes anywhere
//! ```
//!
//! A guest that keeps its buffers out of its rings gets each chain back at most as often as it has handed it over, in a used
//! ring that is never ahead of the available one. One that writes anywhere has its own answers in its rings.

use std::sync::Arc;

use campanile_daemon::frontend::fs::state::Fs;
use campanile_daemon::frontend::gpu::device::Gpu;
use campanile_daemon::frontend::vhost::counters::Count;
use campanile_daemon::frontend::vhost::stepped::Place;
use campanile_daemon::frontend::vhost::stepped::Stepped;
use campanile_daemon::guest_ram::memory::GuestRam;
use vm_memory::Bytes;
use vm_memory::GuestAddress;

use super::conversation;
use super::input::Input;
use super::input::piece;
use super::world::Fronted;
use super::world::RAM;
use super::world::SMALL;
use super::world::config;
use super::world::device;
use super::world::memory;

/// In the first byte: the fs front.
const FS: u8 = 1;
/// `VIRTIO_F_EVENT_IDX`.
const EVENT_IDX: u8 = 2;
/// `VIRTIO_F_INDIRECT_DESC`.
const INDIRECT: u8 = 4;
/// The guest writes anywhere.
const WILD: u8 = 8;

/// A descriptor of a ring: ring, index, flags, next, place (2 bytes), length (2 bytes).
const DESCRIPTOR: u8 = 0;
/// The same in an indirect table, whose number is in the place of the ring.
const NESTED: u8 = 1;
/// A descriptor that names an indirect table: ring, index, table, entries.
const TABLE: u8 = 2;
/// Bytes of a buffer: place (2 bytes), bytes.
const BYTES: u8 = 3;
/// A head is made available: ring, head.
const AVAILABLE: u8 = 4;
/// So many heads (2 bytes) are, whatever the entries say: ring.
const JUMP: u8 = 5;
/// The rings are kicked.
const KICK: u8 = 6;
/// What the guest says of notifications: ring, flags, event index (2 bytes).
const NOTIFICATIONS: u8 = 7;
/// Bytes anywhere, where the guest writes anywhere: address (4 bytes), bytes.
const ANYWHERE: u8 = 8;
const OPS: u8 = 9;

const RINGS: usize = 2;
const BUFFERS: u64 = 0x1_0000;
const TABLES: u64 = 0x20_0000;
const PLACES: u64 = 0x30_0000;
const MAX_STEPS: usize = 400;
/// Rounds of the worker after which nothing may be left of one kick: the longest ring, and what a round takes.
const MAX_ROUNDS: u64 = 256 / 64 + 2;

const FLAG_NEXT: u16 = 1;
const FLAG_WRITE: u16 = 2;
const FLAG_INDIRECT: u16 = 4;

/// What a guest knows of one ring.
struct Ring {
    place: Place,
    /// Heads made available, as the worker may have seen them: by head, and in all.
    published: Vec<u64>,
    /// Available and used index, as they were last looked at.
    seen: (u16, u16),
    /// The available index was moved too far: the ring is at its end.
    is_broken: bool,
}

struct Guest {
    memory: Arc<GuestRam>,
    rings: Vec<Ring>,
    stepped: Stepped,
    is_wild: bool,
    used: usize,
}

impl Guest {
    fn new<F: Fronted + 'static>(choice: u8) -> Self {
        let memory = memory(F::IS_FS);
        let size = 1 << (choice >> 4).min(8);
        let places: Vec<Place> = (0..RINGS as u64)
            .map(|ring| {
                let table = PLACES + ring * 0x1_0000;
                Place { size, table, available: table + 0x2000, used: table + 0x4000 }
            })
            .collect();
        let mut features = 1 << 32;
        for (bit, feature) in [(EVENT_IDX, 1 << 29), (INDIRECT, 1 << 28)] {
            features |= if choice & bit == 0 { 0 } else { feature };
        }
        let device = Box::new(device::<F>(&config(SMALL)));
        let stepped = Stepped::new(device, &memory, features, &places).unwrap();
        let ring = |place| Ring { place, published: vec![0; size.into()], seen: (0, 0), is_broken: false };
        let rings = places.into_iter().map(ring).collect();
        Self { memory, rings, stepped, is_wild: choice & WILD != 0, used: 0 }
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        // Where there is no memory, nothing is written.
        let _written = self.memory.write_slice(bytes, GuestAddress(address));
    }

    fn half(&self, address: u64) -> u16 {
        self.memory.read_obj::<u16>(GuestAddress(address)).map_or(0, u16::from_le)
    }

    fn word(&self, address: u64) -> u32 {
        self.memory.read_obj::<u32>(GuestAddress(address)).map_or(0, u32::from_le)
    }

    /// A descriptor at `place`, as an input has it.
    fn descriptor(&self, place: u64, rest: &mut Input<'_>) {
        let (flags, next) = (rest.byte().unwrap_or(0), rest.byte().unwrap_or(0));
        let (at, length) = (u64::from(rest.short()), u32::from(rest.short()));
        let address = match flags >> 4 & 3 {
            0 | 1 => BUFFERS + at * 16,
            2 => RAM - 8 + at,
            _ => u64::MAX - at,
        };
        let address = if self.is_wild && flags & 16 != 0 { PLACES + at } else { address };
        let length = if flags & 64 == 0 { length } else { length << 14 };
        self.put(place, address, length, u16::from(flags & 7), u16::from(next));
    }

    fn put(&self, place: u64, address: u64, length: u32, flags: u16, next: u16) {
        let bytes = [
            &address.to_le_bytes()[..],
            &length.to_le_bytes()[..],
            &flags.to_le_bytes()[..],
            &next.to_le_bytes()[..],
        ];
        self.write(place, &bytes.concat());
    }

    /// What the worker will see as handed over.
    fn publish(&mut self) {
        for at in 0..self.rings.len() {
            let Place { size, available, .. } = self.rings[at].place;
            let index = self.half(available + 2);
            let count = index.wrapping_sub(self.rings[at].seen.0);
            if count > size || self.rings[at].is_broken {
                self.rings[at].is_broken = true;
                continue;
            }
            for entry in 0..count {
                let slot = u64::from(self.rings[at].seen.0.wrapping_add(entry) % size);
                let head = usize::from(self.half(available + 4 + slot * 2));
                self.rings[at].published.get_mut(head).into_iter().for_each(|count| *count += 1);
            }
            self.rings[at].seen.0 = index;
        }
    }

    /// Takes what was given back; true where there was something.
    fn take(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.rings.len() {
            let Place { size, used, .. } = self.rings[at].place;
            let index = self.half(used + 2);
            let count = index.wrapping_sub(self.rings[at].seen.1);
            assert!(count <= size, "{count} chains came back at once of a ring of {size}");
            for entry in 0..count {
                let slot = u64::from(self.rings[at].seen.1.wrapping_add(entry) % size);
                let head = self.word(used + 4 + slot * 8);
                let published = &mut self.rings[at].published[usize::try_from(head).unwrap()];
                *published = published.checked_sub(1).expect("a chain comes back that was not handed over");
                self.used += 1;
            }
            any |= count > 0;
            self.rings[at].seen.1 = index;
        }
        any
    }

    fn kick(&mut self) {
        let counted = |guest: &Self| {
            let counters = guest.stepped.counters();
            [Count::Commands, Count::Malformed, Count::Answers].map(|count| counters.get(count))
        };
        if !self.is_wild {
            self.publish();
        }
        let mut rounds = 0;
        loop {
            let before = counted(self);
            self.stepped.step();
            let after = counted(self);
            assert!(after[2] <= after[0] + after[1], "more answers than chains");
            let any = !self.is_wild && self.take();
            if !any && before == after {
                break;
            }
            rounds += 1;
            // One that writes its own available ring by its answers has work for as long as it likes.
            if self.is_wild && rounds > MAX_ROUNDS {
                break;
            }
            assert!(rounds <= MAX_ROUNDS, "a kick leads to work without end");
        }
    }

    fn step(&mut self, op: u8, rest: &mut Input<'_>) {
        let ring = usize::from(rest.byte().unwrap_or(0));
        let place = self.rings[ring % RINGS].place;
        match op {
            DESCRIPTOR => {
                let index = u64::from(rest.byte().unwrap_or(0)) % u64::from(place.size);
                self.descriptor(place.table + index * 16, rest);
            }
            NESTED => {
                let index = u64::from(rest.byte().unwrap_or(0));
                self.descriptor(TABLES + (ring as u64 % 16) * 0x1000 + index * 16, rest);
            }
            TABLE => {
                let index = u64::from(rest.byte().unwrap_or(0)) % u64::from(place.size);
                let (table, entries) = (rest.byte().unwrap_or(0), rest.byte().unwrap_or(0));
                let bytes = u32::from(entries) * 16 + u32::from(table >> 7);
                let flags = FLAG_INDIRECT | u16::from(table >> 6 & 1);
                self.put(
                    place.table + index * 16,
                    TABLES + u64::from(table % 16) * 0x1000,
                    bytes,
                    flags,
                    u16::from(ring.to_le_bytes()[0]),
                );
            }
            BYTES => {
                let at = u64::from(rest.short());
                self.write(BUFFERS + at * 16, rest.piece());
            }
            AVAILABLE => {
                let head = u16::from(rest.byte().unwrap_or(0));
                let index = self.half(place.available + 2);
                let slot = u64::from(index % place.size);
                self.write(place.available + 4 + slot * 2, &head.to_le_bytes());
                self.write(place.available + 2, &index.wrapping_add(1).to_le_bytes());
            }
            JUMP => {
                let index = self.half(place.available + 2).wrapping_add(rest.short());
                self.write(place.available + 2, &index.to_le_bytes());
            }
            KICK => self.kick(),
            NOTIFICATIONS => {
                self.write(place.available, &u16::from(rest.byte().unwrap_or(0)).to_le_bytes());
                let event = place.available + 4 + u64::from(place.size) * 2;
                self.write(event, &rest.short().to_le_bytes());
            }
            _ => {
                let at = u64::from(rest.short()) << 16 | u64::from(rest.short());
                let bytes = rest.piece();
                if self.is_wild {
                    self.write(at % RAM, bytes);
                }
            }
        }
    }

    fn run(mut self, bytes: &[u8]) -> usize {
        let mut rest = Input(bytes);
        for _ in 0..MAX_STEPS {
            let Some(op) = rest.byte() else { break };
            self.step(op % OPS, &mut rest);
        }
        self.kick();
        self.used
    }
}

/// A guest that does what an input says; how many chains it got back, where it keeps its buffers out of its rings.
///
/// # Panics
/// Something is wrong with the daemon.
pub(crate) fn run(bytes: &[u8]) -> usize {
    let Some((&choice, rest)) = bytes.split_first() else { return 0 };
    if choice & FS == 0 { Guest::new::<Gpu>(choice).run(rest) } else { Guest::new::<Fs>(choice).run(rest) }
}

/// A descriptor as [`Guest::descriptor`] takes it.
fn buffer(flags: u16, next: u8, at: u16, length: u16) -> Vec<u8> {
    let flags = flags.to_le_bytes()[0];
    [vec![flags, next], at.to_le_bytes().to_vec(), length.to_le_bytes().to_vec()].concat()
}

/// One request in a chain of two, and in an indirect table.
fn asked(choice: u8, ring: u8) -> Vec<u8> {
    let hello = conversation::hello(choice & FS != 0);
    // Behind queue and room.
    let request = Input(&hello[4..]).piece();
    let length = u16::try_from(request.len()).unwrap();
    let pair = |op: u8, ring: u8| {
        [
            vec![op, ring, 0],
            buffer(FLAG_NEXT, 1, 0, length),
            vec![op, ring, 1],
            buffer(FLAG_WRITE, 0, 0x1000, 4096),
        ]
        .concat()
    };
    let mut all = vec![choice];
    all.extend([vec![BYTES, 0, 0, 0], piece(request)].concat());
    if choice & INDIRECT == 0 {
        all.extend(pair(DESCRIPTOR, ring));
    } else {
        all.extend(pair(NESTED, 3));
        all.extend([TABLE, ring, 0, 3, 2]);
    }
    for _ in 0..3 {
        all.extend([AVAILABLE, ring, 0, KICK, 0]);
    }
    all
}

/// Inputs that are right, and some that are wrong in a way of their own.
pub(crate) fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for choice in 0..8u8 {
        let ring = choice & FS;
        all.push((format!("asked-{choice}"), asked(choice | 0x40, ring)));
    }
    let with = |name: &str, ops: &[Vec<u8>]| (name.to_owned(), [asked(0x40, 0), ops.concat()].concat());
    let kick = vec![AVAILABLE, 0, 2, KICK, 0];
    all.push(with("loop", &[vec![DESCRIPTOR, 0, 2], buffer(FLAG_NEXT, 2, 0, 16), kick.clone()]));
    all.push(with("beyond", &[vec![DESCRIPTOR, 0, 2], buffer(0x20, 0, 0, 64), kick.clone()]));
    all.push(with("far", &[vec![DESCRIPTOR, 0, 2], buffer(0x30, 0, 3, 64), kick.clone()]));
    all.push(with("huge", &[vec![DESCRIPTOR, 0, 2], buffer(0x40, 0, 0, 0xffff), kick.clone()]));
    all.push(with("nothing", &[vec![DESCRIPTOR, 0, 2], buffer(FLAG_WRITE, 0, 0, 0), kick.clone()]));
    all.push(with("twice", &[vec![AVAILABLE, 0, 0, AVAILABLE, 0, 0], kick.clone()]));
    all.push(with("jump", &[vec![JUMP, 0, 0xff, 0x7f, KICK, 0], kick.clone()]));
    all.push(with("no-head", &[vec![AVAILABLE, 0, 200], kick]));
    let wild =
        [asked(0x40 | WILD, 0), vec![ANYWHERE, 0, 0x30, 0, 0x20, 0], piece(&[0xff; 64]), vec![KICK, 0]];
    all.push(("wild".to_owned(), wild.concat()));
    all
}
