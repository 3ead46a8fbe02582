//! A guest: memory in a memfd, and the driver's side of split rings, written out by hand.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::atomic::fence;
use std::time::Duration;
use std::time::Instant;

use rustix::fs::MemfdFlags;
use rustix::fs::memfd_create;
use vm_memory::Bytes;
use vm_memory::FileOffset;
use vm_memory::GuestAddress;
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::epoll::ControlOperation;
use vmm_sys_util::epoll::Epoll;
use vmm_sys_util::epoll::EpollEvent;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::EFD_NONBLOCK;
use vmm_sys_util::eventfd::EventFd;

pub(crate) const RAM: u64 = 32 << 20;
/// The front-end's addresses are the guest's and this.
pub(crate) const USER: u64 = 0x7f00_0000_0000;
/// Buffers start here; what is below belongs to rings.
pub(crate) const DATA: u64 = 0x10_0000;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// A descriptor: address, length, flags, next.
pub(crate) type Desc = (u64, u32, u16, u16);

pub(crate) struct Guest {
    pub(crate) file: File,
    pub(crate) ram: GuestMemoryMmap,
}

impl Guest {
    pub(crate) fn new() -> Self {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(RAM).unwrap();
        let offset = FileOffset::new(file.try_clone().unwrap(), 0);
        let size = usize::try_from(RAM).unwrap();
        let ram = GuestMemoryMmap::from_ranges_with_files([(GuestAddress(0), size, Some(offset))]).unwrap();
        Self { file, ram }
    }
}

/// One ring, driver side.
pub(crate) struct Queue {
    pub(crate) ram: GuestMemoryMmap,
    pub(crate) index: usize,
    pub(crate) size: u16,
    pub(crate) event_idx: bool,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    calls: Epoll,
    avail: u16,
    kicked: u16,
    seen: u16,
}

impl Queue {
    pub(crate) fn new(guest: &Guest, index: usize, size: u16, event_idx: bool) -> Self {
        let (kick, call) = (EventFd::new(EFD_NONBLOCK).unwrap(), EventFd::new(EFD_NONBLOCK).unwrap());
        let ram = guest.ram.clone();
        let calls = Epoll::new().unwrap();
        calls.ctl(ControlOperation::Add, call.as_raw_fd(), EpollEvent::new(EventSet::IN, 0)).unwrap();
        let mut queue = Self { ram, index, size, event_idx, kick, call, calls, avail: 0, kicked: 0, seen: 0 };
        queue.clear();
        queue
    }

    /// The same ring and driver in the memory of another host: new descriptors, all else as it was.
    pub(crate) fn moved_to(&self, guest: &Guest) -> Self {
        let (kick, call) = (EventFd::new(EFD_NONBLOCK).unwrap(), EventFd::new(EFD_NONBLOCK).unwrap());
        let calls = Epoll::new().unwrap();
        calls.ctl(ControlOperation::Add, call.as_raw_fd(), EpollEvent::new(EventSet::IN, 0)).unwrap();
        let Self { index, size, event_idx, avail, kicked, seen, .. } = *self;
        Self { ram: guest.ram.clone(), index, size, event_idx, kick, call, calls, avail, kicked, seen }
    }

    /// The driver starts anew.
    pub(crate) fn clear(&mut self) {
        self.ram.write_slice(&[0; 0xc000], GuestAddress(self.table())).unwrap();
        (self.avail, self.kicked, self.seen) = (0, 0, 0);
    }

    pub(crate) fn table(&self) -> u64 {
        0x1_0000 * (1 + u64::try_from(self.index).unwrap())
    }

    pub(crate) fn avail_ring(&self) -> u64 {
        self.table() + 0x4000
    }

    pub(crate) fn used_ring(&self) -> u64 {
        self.table() + 0x8000
    }

    fn load(&self, address: u64, order: Ordering) -> u16 {
        self.ram.load(GuestAddress(address), order).unwrap()
    }

    pub(crate) fn store(&self, address: u64, value: u16) {
        self.ram.store(value, GuestAddress(address), Ordering::Release).unwrap();
    }

    pub(crate) fn describe_at(&self, table: u64, index: u16, (address, length, flags, next): Desc) {
        let place = GuestAddress(table + 16 * u64::from(index));
        self.ram.write_obj(address, place).unwrap();
        self.ram.write_obj(length, GuestAddress(place.0 + 8)).unwrap();
        self.ram.write_obj(flags, GuestAddress(place.0 + 12)).unwrap();
        self.ram.write_obj(next, GuestAddress(place.0 + 14)).unwrap();
    }

    pub(crate) fn describe(&self, index: u16, desc: Desc) {
        self.describe_at(self.table(), index, desc);
    }

    /// Writes a request of two descriptors, `head` and the one after, and the answer's place: does not offer it.
    pub(crate) fn request(&self, head: u16, request: &[u8]) {
        let place = self.place(head);
        self.ram.write_slice(request, GuestAddress(place)).unwrap();
        self.ram.write_slice(&[0; 64], GuestAddress(place + 2048)).unwrap();
        self.describe(head, (place, u32::try_from(request.len()).unwrap(), NEXT, head + 1));
        self.describe(head + 1, (place + 2048, 64, WRITE, 0));
    }

    pub(crate) fn place(&self, head: u16) -> u64 {
        DATA + u64::try_from(self.index).unwrap() * (8 << 20) + u64::from(head) * 4096
    }

    pub(crate) fn response(&self, head: u16, bytes: u32) -> Vec<u8> {
        let mut response = vec![0; usize::try_from(bytes).unwrap()];
        self.ram.read_slice(&mut response, GuestAddress(self.place(head) + 2048)).unwrap();
        response
    }

    /// Makes a head available, without a kick.
    pub(crate) fn offer(&mut self, head: u16) {
        let slot = u64::from(self.avail % self.size);
        self.store(self.avail_ring() + 4 + 2 * slot, head);
        self.avail = self.avail.wrapping_add(1);
        self.store(self.avail_ring() + 2, self.avail);
    }

    /// Kicks if the device wants that, as Linux decides it. True if it kicked.
    pub(crate) fn kick(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let wanted = if self.event_idx {
            let event = self.load(self.used_ring() + 4 + 8 * u64::from(self.size), Ordering::Relaxed);
            self.avail.wrapping_sub(event).wrapping_sub(1) < self.avail.wrapping_sub(self.kicked)
        } else {
            self.load(self.used_ring(), Ordering::Relaxed) & 1 == 0
        };
        self.kicked = self.avail;
        if wanted {
            self.kick.write(1).unwrap();
        }
        wanted
    }

    /// The next used entry, if there is one.
    pub(crate) fn used(&mut self) -> Option<(u16, u32)> {
        if self.load(self.used_ring() + 2, Ordering::Acquire) == self.seen {
            return None;
        }
        let place = self.used_ring() + 4 + 8 * u64::from(self.seen % self.size);
        let head: u32 = self.ram.read_obj(GuestAddress(place)).unwrap();
        let length: u32 = self.ram.read_obj(GuestAddress(place + 4)).unwrap();
        self.seen = self.seen.wrapping_add(1);
        Some((u16::try_from(head).unwrap(), length))
    }

    /// Used entries that the device has written, read or not.
    pub(crate) fn used_index(&self) -> u16 {
        self.load(self.used_ring() + 2, Ordering::Acquire)
    }

    /// Asks for an interrupt after `more` further entries.
    pub(crate) fn want_interrupt(&self, more: u16) {
        let event = self.seen.wrapping_add(more).wrapping_sub(1);
        self.store(self.avail_ring() + 4 + 2 * u64::from(self.size), event);
        fence(Ordering::SeqCst);
    }

    /// Sets VRING_AVAIL_F_NO_INTERRUPT.
    pub(crate) fn refuse_interrupts(&self) {
        self.store(self.avail_ring(), 1);
    }

    /// Waits for the call descriptor, and takes what is there.
    pub(crate) fn interrupted(&self, timeout: Duration) -> bool {
        let timeout = i32::try_from(timeout.as_millis()).unwrap();
        self.calls.wait(timeout, &mut [EpollEvent::default()]).unwrap();
        self.call.read().is_ok()
    }

    /// Waits for an answer the way a driver does: looks, asks for an interrupt, looks again, sleeps.
    pub(crate) fn wait(&mut self) -> (u16, u32) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(used) = self.used() {
                return used;
            }
            self.want_interrupt(1);
            if let Some(used) = self.used() {
                return used;
            }
            assert!(Instant::now() < deadline, "no answer: avail {} seen {}", self.avail, self.seen);
            self.interrupted(Duration::from_millis(500));
        }
    }

    /// One command and its answer.
    pub(crate) fn round(&mut self, head: u16, request: &[u8]) -> Vec<u8> {
        self.request(head, request);
        self.offer(head);
        self.kick();
        let (used, length) = self.wait();
        assert_eq!(used, head);
        self.response(head, length)
    }

    /// The device has given this many answers, and gives none for a while.
    pub(crate) fn assert_silent_at(&self, answers: u16) {
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(self.used_index(), answers, "an answer came");
    }

    /// The driver has read every answer, and none comes for a while.
    pub(crate) fn assert_silent(&self) {
        self.assert_silent_at(self.seen);
    }
}
