//! Decoding of packets from a copy of the buffer.

use campanile_protocol::handle::Handle;
use campanile_protocol::packet;
use campanile_protocol::packet::Binding;
use campanile_protocol::packet::Copy;
use campanile_protocol::packet::Dispatch;
use campanile_protocol::packet::DispatchBase;
use campanile_protocol::packet::DispatchIndirect;
use campanile_protocol::packet::Fault;
use campanile_protocol::packet::Fence;
use campanile_protocol::packet::Fill;
use campanile_protocol::packet::PacketHeader;
use campanile_protocol::packet::Timestamp;
use campanile_protocol::texels;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::KnownLayout;

use super::slices;

/// The grid of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grid {
    /// In the packet.
    Direct([u32; 3]),
    /// Three words at this address.
    Indirect(u64),
}

/// A dispatch, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The kernel to run.
    pub kernel: Handle,
    /// Thread groups in x, y and z.
    pub grid: Grid,
    /// Number of the first of them.
    pub base: [u32; 3],
    /// The buffers that the kernel reaches, by slot.
    pub bindings: Vec<Binding>,
    /// The bytes of its push constants.
    pub constants: Vec<u8>,
}

impl Launch {
    /// Its thread groups, one or more, where the packet says how many they are, and 64 bits can.
    pub fn groups(&self) -> Option<u64> {
        match self.grid {
            Grid::Direct(grid) => slices::count(grid).filter(|groups| *groups > 0),
            Grid::Indirect(_) => None,
        }
    }
}

/// One packet of a DMA buffer, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    /// Does nothing.
    Nop,
    /// Copies bytes.
    Copy(Copy),
    /// Fills bytes with a word.
    Fill(Fill),
    /// Runs a kernel.
    Dispatch(Launch),
    /// Waits for all packets before it.
    Barrier,
    /// Store a fence value.
    Signal(Fence),
    /// Wait for a fence value.
    Wait(Fence),
    /// Store the time.
    Timestamp(Timestamp),
}

fn exact<T: FromBytes + KnownLayout + Immutable>(body: &[u8]) -> Result<T, Fault> {
    T::read_from_bytes(body).map_err(|_| Fault::PacketSize)
}

fn launch(
    kernel: Handle,
    grid: Grid,
    binding_count: u32,
    constant_bytes: u32,
    rest: &[u8],
) -> Result<Launch, Fault> {
    if binding_count > packet::MAX_BINDINGS
        || constant_bytes > packet::MAX_CONSTANTS
        || !constant_bytes.is_multiple_of(4)
    {
        return Err(Fault::PacketField);
    }
    let bindings_end = binding_count as usize * size_of::<Binding>();
    let constants_end = bindings_end + constant_bytes as usize;
    if rest.len() != constants_end.next_multiple_of(8) {
        return Err(Fault::PacketSize);
    }
    let mut bindings = Vec::with_capacity(binding_count as usize);
    for bytes in rest[..bindings_end].chunks_exact(size_of::<Binding>()) {
        let binding: Binding = exact(bytes)?;
        let unit = match binding.format {
            0 => 4,
            format => texels::find(format).ok_or(Fault::PacketField)?.bytes,
        };
        let aligned = binding.va.is_multiple_of(packet::BINDING_ALIGNMENT)
            && binding.length.is_multiple_of(u64::from(unit));
        if !aligned || binding.length == 0 {
            return Err(Fault::PacketField);
        }
        bindings.push(binding);
    }
    Ok(Launch { kernel, grid, base: [0; 3], bindings, constants: rest[bindings_end..constants_end].to_vec() })
}

/// Decodes the packet that `bytes` begins with, and its size.
pub fn decode(bytes: &[u8]) -> Result<(Packet, usize), Fault> {
    let (header, _) = PacketHeader::read_from_prefix(bytes).map_err(|_| Fault::PacketSize)?;
    let size = usize::try_from(header.size).map_err(|_| Fault::PacketSize)?;
    if size < size_of::<PacketHeader>() || !size.is_multiple_of(8) || size > bytes.len() {
        return Err(Fault::PacketSize);
    }
    if header.flags != 0 {
        return Err(Fault::PacketField);
    }
    let body = &bytes[size_of::<PacketHeader>()..size];
    let packet = match header.opcode {
        packet::NOP => Packet::Nop,
        packet::COPY => Packet::Copy(exact(body)?),
        packet::FILL => {
            let fill: Fill = exact(body)?;
            if fill.reserved != 0 || !fill.target_va.is_multiple_of(4) || !fill.size.is_multiple_of(4) {
                return Err(Fault::PacketField);
            }
            Packet::Fill(fill)
        }
        packet::DISPATCH => {
            let (head, rest) = Dispatch::read_from_prefix(body).map_err(|_| Fault::PacketSize)?;
            if head.reserved != 0 {
                return Err(Fault::PacketField);
            }
            Packet::Dispatch(launch(
                head.kernel,
                Grid::Direct(head.groups),
                head.binding_count,
                head.constant_bytes,
                rest,
            )?)
        }
        packet::DISPATCH_BASE => {
            let (head, rest) = DispatchBase::read_from_prefix(body).map_err(|_| Fault::PacketSize)?;
            let DispatchBase { dispatch, base, reserved } = head;
            if dispatch.reserved != 0 || reserved != 0 {
                return Err(Fault::PacketField);
            }
            let grid = Grid::Direct(dispatch.groups);
            let launch =
                launch(dispatch.kernel, grid, dispatch.binding_count, dispatch.constant_bytes, rest)?;
            Packet::Dispatch(Launch { base, ..launch })
        }
        packet::DISPATCH_INDIRECT => {
            let (head, rest) = DispatchIndirect::read_from_prefix(body).map_err(|_| Fault::PacketSize)?;
            if !head.groups_va.is_multiple_of(4) {
                return Err(Fault::PacketField);
            }
            let grid = Grid::Indirect(head.groups_va);
            Packet::Dispatch(launch(head.kernel, grid, head.binding_count, head.constant_bytes, rest)?)
        }
        packet::BARRIER if body.is_empty() => Packet::Barrier,
        packet::BARRIER => return Err(Fault::PacketSize),
        packet::FENCE_SIGNAL => Packet::Signal(exact(body)?),
        packet::FENCE_WAIT => Packet::Wait(exact(body)?),
        packet::TIMESTAMP => Packet::Timestamp(exact(body)?),
        _ => return Err(Fault::UnknownPacket),
    };
    Ok((packet, size))
}

#[cfg(test)]
mod tests {
    use campanile_protocol::packet;
    use campanile_protocol::packet::Fault;
    use campanile_protocol::packet::PacketHeader;
    use proptest::prelude::any;
    use proptest::proptest;
    use zerocopy::IntoBytes;

    use super::decode;

    fn with_size(opcode: u16, size: u32, bytes: usize) -> Vec<u8> {
        let mut packet = PacketHeader { opcode, flags: 0, size }.as_bytes().to_vec();
        packet.resize(bytes, 0);
        packet
    }

    #[test]
    fn a_packet_that_lies_about_its_size_is_refused() {
        for (size, bytes) in [(0, 8), (4, 8), (12, 32), (40, 32), (u32::MAX, 64)] {
            assert_eq!(
                decode(&with_size(packet::COPY, size, bytes)),
                Err(Fault::PacketSize),
                "{size} in {bytes}"
            );
        }
        assert_eq!(decode(&with_size(packet::COPY, 24, 32)), Err(Fault::PacketSize));
        assert_eq!(decode(&with_size(packet::COPY, 40, 40)), Err(Fault::PacketSize));
        assert_eq!(decode(&[1, 2, 3]), Err(Fault::PacketSize));
    }

    #[test]
    fn a_dispatch_that_counts_wrongly_is_refused() {
        let mut dispatch = with_size(packet::DISPATCH, 40, 40);
        dispatch[28] = 1;
        assert_eq!(decode(&dispatch), Err(Fault::PacketSize), "one binding said, none there");
        dispatch[28] = 200;
        assert_eq!(decode(&dispatch), Err(Fault::PacketField), "more bindings than allowed");
    }

    #[test]
    fn unknown_packets_and_flags_are_refused() {
        assert_eq!(decode(&with_size(99, 8, 8)), Err(Fault::UnknownPacket));
        let mut nop = with_size(packet::NOP, 8, 8);
        nop[2] = 1;
        assert_eq!(decode(&nop), Err(Fault::PacketField));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fault(bytes in proptest::collection::vec(any::<u8>(), 0..128), opcode in 0u16..11, size in 0u32..20) {
            let mut bytes = bytes;
            if bytes.len() >= 8 {
                bytes[..8].copy_from_slice(PacketHeader { opcode, flags: 0, size: size * 8 }.as_bytes());
            }
            if let Ok((_, size)) = decode(&bytes) {
                assert!(size >= 8 && size <= bytes.len());
            }
        }
    }
}
