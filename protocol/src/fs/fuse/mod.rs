//! The requests of the guest's kernel: FUSE 7.31 as plain data, of Linux's `include/uapi/linux/fuse.h`.
//!
//! ```text
//!   request:  [ InHeader | arguments ]     answer:  [ OutHeader | results ]     both without padding
//! ```
//!
//! FORGET and BATCH_FORGET are not answered: their buffers are only given back.

pub mod file;
pub mod node;
pub mod opcode;
pub mod start;

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// `struct fuse_in_header`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InHeader {
    /// Bytes of the request.
    pub length: u32,
    /// One of [`opcode`].
    pub opcode: u32,
    /// The kernel's number for the request.
    pub unique: u64,
    /// Node that it is about.
    pub node: u64,
    /// User of the process, as the guest knows it.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// The process.
    pub process: u32,
    /// 8-byte words of extensions behind the arguments, in the low half; none here.
    pub extensions: u32,
}

/// `struct fuse_out_header`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OutHeader {
    /// Bytes of the answer, this header included.
    pub length: u32,
    /// 0, or a negative error number: then nothing follows.
    pub error: i32,
    /// Of the request.
    pub unique: u64,
}

#[cfg(test)]
mod tests {
    use super::InHeader;
    use super::OutHeader;
    use super::file;
    use super::node;
    use super::start;

    #[test]
    fn sizes_are_those_of_the_kernel() {
        assert_eq!((size_of::<InHeader>(), size_of::<OutHeader>()), (40, 16));
        assert_eq!((size_of::<start::InitIn>(), size_of::<start::InitOut>()), (16, 64));
        assert_eq!((size_of::<node::Attributes>(), size_of::<node::EntryOut>()), (88, 128));
        assert_eq!((size_of::<node::AttributesOut>(), size_of::<node::StatOut>()), (104, 80));
        assert_eq!((size_of::<node::GetAttributesIn>(), size_of::<node::AccessIn>()), (16, 8));
        assert_eq!((size_of::<node::ForgetIn>(), size_of::<node::BatchForgetIn>()), (8, 8));
        assert_eq!((size_of::<node::DirectoryEntry>(), size_of::<start::InterruptIn>()), (24, 8));
        assert_eq!((size_of::<file::OpenIn>(), size_of::<file::OpenOut>()), (8, 16));
        assert_eq!((size_of::<file::ReadIn>(), size_of::<file::WriteIn>()), (40, 40));
        assert_eq!((size_of::<file::WriteOut>(), size_of::<file::ReleaseIn>()), (8, 24));
        assert_eq!((size_of::<file::IoctlIn>(), size_of::<file::IoctlOut>()), (32, 16));
        assert_eq!(size_of::<file::FlushIn>(), 24);
    }
}
