//! Files that hold memory.

use std::fs::File;
use std::io;

use rustix::fs::MemfdFlags;
use rustix::fs::SealFlags;

/// A memfd of `length` zero bytes that can neither shrink nor grow: nobody who maps it can be made to fault by
/// a peer that truncates it.
pub fn create_memfd(name: &str, length: u64) -> io::Result<File> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, length)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd.into())
}

#[cfg(test)]
mod tests {
    use super::create_memfd;

    #[test]
    fn the_size_of_video_memory_is_sealed() {
        let file = create_memfd("test", 8192).unwrap();
        assert!(file.set_len(4096).is_err());
        assert!(file.set_len(16384).is_err());
        assert_eq!(file.metadata().unwrap().len(), 8192);
    }
}
