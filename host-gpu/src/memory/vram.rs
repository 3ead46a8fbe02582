//! Files that hold memory.
//!
//! | | size | new writers |
//! |---|---|---|
//! | [`create_memfd`] | fixed | any holder of the descriptor |
//! | [`create_read_only_memfd`] | fixed | none: the mapping that is made with it stays the only one that can be written |
//! | [`create_constant_memfd`] | fixed | none, and the bytes stay what they are |
//!
//! The kernel refuses a refused writer's `write`, `fallocate`, writable `mmap` and `mprotect`, also through a descriptor that
//! was opened again in `/proc/self/fd`: seals belong to the file, and cannot be taken off.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::MemfdFlags;
use rustix::fs::SealFlags;

use super::mapping::Access;
use super::mapping::Mapping;

/// A memfd of `length` zero bytes that can neither shrink nor grow: no process that maps it can be made to fault by
/// a peer that truncates it.
pub fn create_memfd(name: &str, length: u64) -> io::Result<File> {
    let file = unsealed(name, length)?;
    seal(&file, SealFlags::empty())?;
    Ok(file)
}

/// A memfd as [`create_memfd`] makes it that is written through the returned mapping only, for files whose reader is
/// not trusted.
pub fn create_read_only_memfd(name: &str, length: u64) -> io::Result<(File, Mapping)> {
    let file = unsealed(name, length)?;
    let mapping = Mapping::new(file.try_clone()?, 0, length, Access::ReadWrite).map_err(io::Error::other)?;
    seal(&file, SealFlags::FUTURE_WRITE)?;
    Ok((file, mapping))
}

/// A memfd of these bytes, for good.
pub fn create_constant_memfd(name: &str, bytes: &[u8]) -> io::Result<File> {
    let file = unsealed(name, bytes.len() as u64)?;
    file.write_all_at(bytes, 0)?;
    seal(&file, SealFlags::WRITE)?;
    Ok(file)
}

fn unsealed(name: &str, length: u64) -> io::Result<File> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, length)?;
    Ok(file.into())
}

fn seal(file: &File, more: SealFlags) -> io::Result<()> {
    let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    Ok(rustix::fs::fcntl_add_seals(file, size | more)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test stops here")]

    use std::fs;
    use std::fs::OpenOptions;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::Ordering;

    use rustix::fs::FallocateFlags;
    use rustix::fs::fallocate;

    use super::*;

    #[test]
    fn the_size_of_video_memory_is_sealed() {
        let file = create_memfd("test", 8192).unwrap();
        assert!(file.set_len(4096).is_err());
        assert!(file.set_len(16384).is_err());
        assert_eq!(file.metadata().unwrap().len(), 8192);
    }

    /// Whether `mprotect` could make a mapping writable, as the kernel tells of each (`mw`).
    fn may_become_writable(mapping: &Mapping) -> bool {
        let start = format!("{:x}-", mapping.host_pointer().addr());
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let of = maps.lines().skip_while(|line| !line.starts_with(&start));
        let flags = of.filter_map(|line| line.strip_prefix("VmFlags:")).next().unwrap();
        flags.split_whitespace().any(|flag| flag == "mw")
    }

    /// Every way to change the file that its descriptor could offer.
    fn is_refused_to_writers(file: &File) {
        let again = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .unwrap();
        for file in [file, &again] {
            assert_eq!(file.write_all_at(&[7], 0).unwrap_err().raw_os_error(), Some(libc::EPERM));
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            assert_eq!(fallocate(file, hole, 0, 4096), Err(rustix::io::Errno::PERM));
            assert!(file.set_len(0).is_err());
            let map = |access| Mapping::new(file.try_clone().unwrap(), 0, 4096, access);
            assert!(map(Access::ReadWrite).is_err());
            assert!(!may_become_writable(&map(Access::ReadOnly).unwrap()));
            let seals = SealFlags::empty();
            assert_eq!(rustix::fs::fcntl_add_seals(file, seals), Err(rustix::io::Errno::PERM));
        }
    }

    #[test]
    fn a_read_only_file_is_written_through_its_first_mapping_alone() {
        let (file, mapping) = create_read_only_memfd("test", 4096).unwrap();
        is_refused_to_writers(&file);
        let seen = Mapping::new(file, 0, 4096, Access::ReadOnly).unwrap();
        mapping.word(8).unwrap().store(3, Ordering::Release);
        assert_eq!(seen.word(8).unwrap().load(Ordering::Acquire), 3);
    }

    #[test]
    fn a_constant_file_keeps_its_bytes() {
        let file = create_constant_memfd("test", &[5; 4096]).unwrap();
        is_refused_to_writers(&file);
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [5; 4096]);
    }

    #[test]
    fn an_ordinary_file_has_other_writers() {
        let file = create_memfd("test", 4096).unwrap();
        assert!(may_become_writable(&Mapping::new(file, 0, 4096, Access::ReadOnly).unwrap()));
    }
}
