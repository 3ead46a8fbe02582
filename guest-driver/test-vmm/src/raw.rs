//! What no driver does: raw access to RAM and rings, for hostile tests.

use std::sync::Arc;
use std::time::Duration;

use vm_memory::MmapRegion;
use vm_memory::VolatileMemory;

use super::command::Command;
use super::guest_ram::RamBlock;
use super::options::PageLayout;
use super::request::Chain;
use super::request::Request;
use super::split_ring::Descriptor;
use super::split_ring::Links;
use super::virt_queue::VirtQueue;
use super::vm::LoopbackVm;
use super::window::WINDOW_BASE;
use campanile_guest_driver::transport::error::TransportError;
use campanile_guest_driver::transport::shared_memory::SharedMemory;

/// One descriptor, said in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawDescriptor {
    /// Guest-physical address.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// 1 NEXT, 2 WRITE, 4 INDIRECT, and what else there is to try.
    pub flags: u16,
    /// With NEXT: a place in the chain, from 0. What is no place in it goes onto the ring as it is.
    pub next: u16,
}

/// A raw chain under way. Its descriptors stay taken until the device has used it or is reset.
#[derive(Debug, Clone)]
pub struct RawChain {
    queue: Arc<VirtQueue>,
    request: Arc<Request>,
}

impl RawChain {
    /// Blocks until the device has used the chain; the bytes that it says it wrote.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<u32, TransportError> {
        self.queue.wait(&self.request, timeout)?;
        Ok(self.request.answer()?.0)
    }

    /// Whether the outcome is known.
    pub fn is_done(&self) -> bool {
        self.queue.poll(&self.request)
    }
}

/// Pages of guest RAM for a test to fill; given back when it and every mapping of it is dropped.
#[derive(Debug, Clone)]
pub struct RawRam {
    block: Arc<RamBlock>,
}

impl RawRam {
    /// Guest-physical address.
    pub fn address(&self) -> u64 {
        self.block.address()
    }

    /// The bytes.
    pub fn memory(&self) -> SharedMemory {
        self.block.shared()
    }
}

/// A VM, for what no driver does.
#[derive(Debug, Clone, Copy)]
pub struct RawAccess<'a> {
    vm: &'a LoopbackVm,
}

impl LoopbackVm {
    /// Access to RAM and rings as no driver has it.
    pub fn raw(&self) -> RawAccess<'_> {
        RawAccess { vm: self }
    }
}

impl RawAccess<'_> {
    /// Sends any bytes as a command of the control queue. Gives back what the device wrote, at most `response_len`.
    pub fn command(&self, bytes: &[u8], response_len: usize) -> Result<Vec<u8>, TransportError> {
        self.vm.command(&Command {
            name: "a raw command",
            body: bytes,
            payload: &[],
            response_bytes: response_len,
        })
    }

    /// Guest-physical address of the host-visible window.
    pub fn window_base(&self) -> u64 {
        WINDOW_BASE
    }

    /// Zeroed guest RAM in one run.
    pub fn ram(&self, bytes: u64) -> Result<RawRam, TransportError> {
        let block = self.vm.ram.allocate(bytes, PageLayout::Contiguous)?;
        block.zero();
        Ok(RawRam { block: Arc::new(block) })
    }

    /// Puts any chain on a queue (0 control, 1 cursor), and kicks where the device asked for that.
    pub fn chain(&self, queue: u16, descriptors: &[RawDescriptor]) -> Result<RawChain, TransportError> {
        let queue = self.vm.rings.queue(queue)?;
        let descriptors = descriptors
            .iter()
            .map(|raw| Descriptor {
                address: raw.address,
                length: raw.length,
                flags: raw.flags,
                next: raw.next,
            })
            .collect();
        let name = "a raw chain";
        let chain =
            Chain { name, descriptors, links: Links::AsSaid, block: None, _payload: None, response: (0, 0) };
        let request = queue.submit(chain, self.vm.options.command_timeout)?;
        Ok(RawChain { queue: Arc::clone(queue), request })
    }

    /// Shows the device a head that is none, and kicks. What the device says of it is ignored.
    pub fn head(&self, queue: u16, head: u16) -> Result<(), TransportError> {
        self.vm.rings.queue(queue)?.abuse(|ring| {
            let _kicked_anyway = ring.publish(head);
        });
        Ok(())
    }

    /// Moves the available index on over entries that were never written, and kicks.
    pub fn advance(&self, queue: u16, entries: u16) -> Result<(), TransportError> {
        self.vm.rings.queue(queue)?.abuse(|ring| {
            let _kicked_anyway = ring.advance(entries);
        });
        Ok(())
    }

    /// Kicks a queue on which nothing new lies.
    pub fn kick(&self, queue: u16) -> Result<(), TransportError> {
        self.vm.rings.queue(queue)?.abuse(|_| ());
        Ok(())
    }

    /// A number that depends on every byte of guest RAM, and of what the window shows.
    pub fn checksum(&self) -> u64 {
        checksum(self.window_checksum(), self.vm.ram.region())
    }

    /// A number that depends on every byte that the window shows.
    pub fn window_checksum(&self) -> u64 {
        let maps = self.vm.window().maps().regions();
        maps.iter().fold(FNV_START, |sum, (_, map)| checksum(sum, &map.mapping))
    }
}

/// Where FNV-1a of 64 bits begins.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a over words, page by page.
fn checksum(sum: u64, region: &MmapRegion) -> u64 {
    let mut page = [0_u64; 512];
    (0..region.size()).step_by(4096).fold(sum, |sum, place| {
        if let Ok(slice) = region.get_slice(place, 4096) {
            slice.copy_to(&mut page);
        }
        page.iter().fold(sum, |sum, word| (sum ^ word).wrapping_mul(0x100_0000_01b3))
    })
}
