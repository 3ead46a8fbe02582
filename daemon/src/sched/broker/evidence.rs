//! What the broker believes of a descriptor that a daemon has sent: nothing that it cannot see by itself. A file that is cut short
//! would end the broker, and a signal that waits would stop it.

use std::fs::File;
use std::os::fd::OwnedFd;

use campanile_host_gpu::event::Event;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use rustix::fs::SealFlags;
use rustix::fs::fcntl_get_seals;
use rustix::fs::fstat;

/// Memory of so many bytes, for good.
///
/// # Errors
/// `what` it is to be it is not; in words.
pub(super) fn memory(file: &File, bytes: u64, what: &str) -> Result<Mapping, String> {
    let found = fstat(file).map_err(|error| format!("{what}: {error}"))?.st_size;
    if u64::try_from(found) != Ok(bytes) {
        return Err(format!("{what} has {found} bytes, and is to have {bytes}"));
    }
    if !fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
        return Err(format!("{what} is no memory that keeps its size (F_SEAL_SHRINK)"));
    }
    let copy = file.try_clone().map_err(|error| format!("{what}: {error}"))?;
    Mapping::new(copy, 0, bytes, Access::ReadWrite).map_err(|error| format!("{what}: {error}"))
}

/// An eventfd.
///
/// # Errors
/// `what` it is to be it is not; in words.
pub(super) fn event(descriptor: OwnedFd, what: &str) -> Result<Event, String> {
    Event::foreign(descriptor).map_err(|error| format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use campanile_host_gpu::memory::vram::create_memfd;
    use rustix::fs::MemfdFlags;
    use rustix::fs::ftruncate;
    use rustix::fs::memfd_create;

    use super::memory;

    #[test]
    fn only_memory_that_keeps_its_size_is_mapped() {
        let sealed = create_memfd("sealed", 8192).unwrap();
        assert_eq!(memory(&sealed, 8192, "it").unwrap().len(), 8192);
        let open = File::from(memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap());
        ftruncate(&open, 8192).unwrap();
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(8192).unwrap();
        let wrong = [
            (&sealed, 4096, "it has 8192 bytes, and is to have 4096"),
            (&open, 8192, "it is no memory that keeps its size (F_SEAL_SHRINK)"),
            (&plain, 8192, "it is no memory that keeps its size (F_SEAL_SHRINK)"),
        ];
        for (file, bytes, why) in wrong {
            assert_eq!(memory(file, bytes, "it").unwrap_err(), why);
        }
    }
}
