//! A compute pipeline as the source of CREATE_KERNEL: a SPIR-V module, and what the pipeline fixes of it (version 1.1).
//!
//! ```text
//!   [ Head ][ Constant ] × constant_count [ SPIR-V words ]
//! ```
//!
//! It is one source among others: kept, charged, moved and compiled again like any.

use core::fmt;

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// Most specialisation constants of a pipeline.
pub const MAX_CONSTANTS: u32 = 1024;

/// Bytes of the longest module, once it is inflated.
pub const MAX_MODULE_BYTES: u32 = 1 << 20;

/// Opens the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Head {
    /// Invocations of each subgroup, a power of two that the device offers; 0 for the device's choice.
    pub subgroup_size: u32,
    /// [`Constant`]s that follow, at most [`MAX_CONSTANTS`].
    pub constant_count: u32,
    /// Zero.
    pub reserved: [u32; 2],
}

/// The value of a specialisation constant. Those of an id that the module does not have are ignored, as in Vulkan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Constant {
    /// `SpecId` of the constant. Each id stands once, in ascending order.
    pub id: u32,
    /// Zero.
    pub reserved: u32,
    /// Its bits, as many of the lowest as its type has; for a bool 0 is false, all else true.
    pub value: u64,
}

/// Why bytes are no pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// They end within the head or the constants.
    Short,
    /// A reserved field is not zero.
    Reserved,
    /// More constants than there may be: so many.
    Count(u32),
    /// The constant of this id comes after one of the same or a higher id.
    Order(u32),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => write!(f, "the pipeline ends within its head or its specialisation constants"),
            Self::Reserved => write!(f, "a reserved field of the pipeline is not zero"),
            Self::Count(count) => {
                write!(f, "{count} specialisation constants, there may be {MAX_CONSTANTS}")
            }
            Self::Order(id) => {
                write!(f, "specialisation constant {id} comes after one of the same or a higher id")
            }
        }
    }
}

impl core::error::Error for Malformed {}

/// A pipeline, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts<'a> {
    /// As in [`Head`].
    pub subgroup_size: u32,
    constants: &'a [u8],
    /// The module, of which nothing was checked.
    pub words: &'a [u8],
}

impl<'a> Parts<'a> {
    /// Takes `bytes` apart.
    pub fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (head, rest) = Head::read_from_prefix(bytes).map_err(|_| Malformed::Short)?;
        if head.reserved != [0; 2] {
            return Err(Malformed::Reserved);
        }
        if head.constant_count > MAX_CONSTANTS {
            return Err(Malformed::Count(head.constant_count));
        }
        let end = head.constant_count as usize * size_of::<Constant>();
        let (constants, words) = rest.split_at_checked(end).ok_or(Malformed::Short)?;
        let parts = Self { subgroup_size: head.subgroup_size, constants, words };
        let mut last = None;
        for constant in parts.constants() {
            if constant.reserved != 0 {
                return Err(Malformed::Reserved);
            }
            if last.is_some_and(|last| last >= constant.id) {
                return Err(Malformed::Order(constant.id));
            }
            last = Some(constant.id);
        }
        Ok(parts)
    }

    /// Its specialisation constants, ascending by id.
    pub fn constants(&self) -> impl Iterator<Item = Constant> + use<'a> {
        self.constants
            .chunks_exact(size_of::<Constant>())
            .filter_map(|bytes| Constant::read_from_bytes(bytes).ok())
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::Constant;
    use super::Head;
    use super::MAX_CONSTANTS;
    use super::Malformed;
    use super::Parts;

    fn constant(id: u32) -> Constant {
        Constant { id, reserved: 0, value: u64::from(id) << 32 | 7 }
    }

    fn head(constant_count: u32) -> Head {
        Head { constant_count, ..Head::default() }
    }

    fn bytes(head: &Head, constants: &[Constant], words: &[u8]) -> Vec<u8> {
        [head.as_bytes(), constants.as_bytes(), words].concat()
    }

    #[test]
    fn the_layout_stays_as_it_is() {
        let mut written = vec![0x11, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        written.extend([5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 5, 0, 0, 0, 0xaa]);
        assert_eq!(bytes(&Head { subgroup_size: 0x11, ..head(1) }, &[constant(5)], &[0xaa]), written);
        let parts = Parts::read(&written).unwrap();
        assert_eq!((parts.subgroup_size, parts.words), (0x11, [0xaa].as_slice()));
        assert_eq!(parts.constants().collect::<Vec<_>>(), [constant(5)]);
    }

    #[test]
    fn bytes_that_end_too_early_are_refused_wherever_they_end() {
        let whole = bytes(&head(2), &[constant(1), constant(2)], &[]);
        for end in 0..whole.len() {
            assert_eq!(Parts::read(&whole[..end]), Err(Malformed::Short));
        }
        assert!(Parts::read(&whole).unwrap().words.is_empty());
    }

    #[test]
    fn each_wrong_field_is_named() {
        for reserved in [[1, 0], [0, 1]] {
            let wrong = bytes(&Head { reserved, ..head(0) }, &[], &[]);
            assert_eq!(Parts::read(&wrong), Err(Malformed::Reserved));
        }
        let odd = Constant { reserved: 1, ..constant(1) };
        assert_eq!(Parts::read(&bytes(&head(1), &[odd], &[])), Err(Malformed::Reserved));
        for second in [1, 2] {
            let order = bytes(&head(2), &[constant(2), constant(second)], &[]);
            assert_eq!(Parts::read(&order), Err(Malformed::Order(second)));
        }
        let many: Vec<Constant> = (0..=MAX_CONSTANTS).map(constant).collect();
        let wrong = bytes(&head(MAX_CONSTANTS + 1), &many, &[]);
        assert_eq!(Parts::read(&wrong), Err(Malformed::Count(MAX_CONSTANTS + 1)));
        assert!(Parts::read(&bytes(&head(MAX_CONSTANTS), &many[1..], &[])).is_ok());
    }
}
