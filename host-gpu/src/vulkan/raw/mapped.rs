//! Memory of a device's own, where the host sees it.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use vm_memory::VolatileSlice;

/// Memory that Vulkan has mapped.
pub(super) struct Mapped {
    start: NonNull<u8>,
    /// Bytes.
    length: u64,
}

// SAFETY: it is an address; what is done with it is done with volatile accesses, from any thread.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// `length` bytes from `start`; none of a null pointer.
    ///
    /// # Safety
    ///
    /// They can be read and written as long as anything uses this.
    pub(super) unsafe fn new(start: *mut u8, length: u64) -> Option<Self> {
        Some(Self { start: NonNull::new(start)?, length })
    }

    /// The bytes `offset .. offset + length`; none where that is not all inside.
    pub(super) fn slice(&self, offset: u64, length: u64) -> Option<VolatileSlice<'_>> {
        offset.checked_add(length).filter(|end| *end <= self.length)?;
        let (offset, length) = (usize::try_from(offset).ok()?, usize::try_from(length).ok()?);
        // SAFETY: `length` bytes from there are mapped, as was just checked, as long as `self` is used.
        Some(unsafe { VolatileSlice::new(self.start.as_ptr().wrapping_add(offset), length) })
    }
}

#[cfg(test)]
mod tests {
    use super::Mapped;

    #[test]
    fn a_slice_is_where_it_is_said_to_be_and_none_leaves_the_memory() {
        let mut bytes = [0; 64];
        // SAFETY: the bytes are there until the end, and nothing else uses them before.
        let mapped = unsafe { Mapped::new(bytes.as_mut_ptr(), 64) }.unwrap();
        for (offset, length) in [(0, 64), (60, 4), (64, 0)] {
            assert_eq!(mapped.slice(offset, length).map(|slice| slice.len() as u64), Some(length));
        }
        for (offset, length) in [(0, 65), (61, 4), (65, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(mapped.slice(offset, length).is_none(), "{length} bytes at {offset}");
        }
        mapped.slice(60, 2).unwrap().copy_from(&[7_u8, 8]);
        assert_eq!(bytes[59..63], [0, 7, 8, 0]);
        // SAFETY: none is used.
        assert!(unsafe { Mapped::new(std::ptr::null_mut(), 64) }.is_none());
    }
}
