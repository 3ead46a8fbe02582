//! Mappings that are lost together, and their parts.

use std::io;
use std::sync::Arc;

use vm_memory::MmapRegion;
use vm_memory::bitmap::Bitmap;

use super::registry::REGISTRY;
use super::signal;

/// Mappings that are lost together: those of one front-end.
#[derive(Debug)]
pub struct FaultDomain {
    number: usize,
}

/// A mapping that takes part. Dropping it ends that; best before the mapping goes.
#[derive(Debug)]
pub struct Registration {
    slot: usize,
    domain: Arc<FaultDomain>,
}

fn full() -> io::Error {
    io::Error::new(io::ErrorKind::QuotaExceeded, "too many mappings of files of other processes")
}

impl FaultDomain {
    /// One without mappings and faults. The first one of a process installs the handler.
    ///
    /// # Errors
    /// The kernel refuses the handler, or `QuotaExceeded`: there are too many domains.
    pub fn new() -> io::Result<Arc<Self>> {
        signal::install()?;
        let number = REGISTRY.add_domain().ok_or_else(full)?;
        Ok(Arc::new(Self { number }))
    }

    /// From now on a fault in `region`, which must not be divided or moved, is one of this domain.
    ///
    /// # Errors
    /// `QuotaExceeded`: there are too many registrations.
    pub fn register<B: Bitmap>(self: &Arc<Self>, region: &MmapRegion<B>) -> io::Result<Registration> {
        let page = rustix::param::page_size();
        let length = region.size().checked_next_multiple_of(page).ok_or_else(full)?;
        let slot = REGISTRY.add(region.as_ptr().addr(), length, self.number).ok_or_else(full)?;
        Ok(Registration { slot, domain: Arc::clone(self) })
    }

    /// The host address of the first access that failed, if one has.
    pub fn fault(&self) -> Option<usize> {
        REGISTRY.fault(self.number)
    }
}

impl Drop for FaultDomain {
    fn drop(&mut self) {
        REGISTRY.remove_domain(self.number);
    }
}

impl Registration {
    /// Whose it is.
    pub fn domain(&self) -> &Arc<FaultDomain> {
        &self.domain
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        REGISTRY.remove(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::sync::atomic::Ordering;

    use rustix::fs::MemfdFlags;
    use rustix::fs::memfd_create;

    use super::FaultDomain;
    use crate::memory::mapping::Mapping;
    use crate::memory::view::FileRange;

    const PAGE: u64 = 4096;

    fn file(pages: u64) -> File {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(pages * PAGE).unwrap();
        file
    }

    fn view(file: &File, domain: Option<&std::sync::Arc<FaultDomain>>) -> Mapping {
        let range = |page| FileRange { file, offset: page * PAGE, length: PAGE };
        Mapping::of_foreign_ranges(&[range(2), range(0)], domain).unwrap()
    }

    #[test]
    fn memory_of_a_file_that_is_cut_short_reads_as_zeros_and_its_domain_alone_has_a_fault() {
        let (file, healthy_file) = (file(3), file(3));
        let (domain, healthy) = (FaultDomain::new().unwrap(), FaultDomain::new().unwrap());
        let (mapping, other) = (view(&file, Some(&domain)), view(&healthy_file, Some(&healthy)));
        for view in [&mapping, &other] {
            view.word(0).unwrap().store(1, Ordering::Relaxed);
            view.word(PAGE).unwrap().store(2, Ordering::Relaxed);
        }
        assert_eq!(domain.fault(), None);
        file.set_len(PAGE).unwrap();
        assert_eq!(mapping.word(PAGE).unwrap().load(Ordering::Relaxed), 2, "this page is there still");
        assert_eq!(domain.fault(), None);
        assert_eq!(mapping.word(8).unwrap().load(Ordering::Relaxed), 0);
        assert_eq!(domain.fault(), Some(mapping.host_pointer().addr() + 8));
        // All of the view is given up at once, so that a fault costs one signal a mapping.
        assert_eq!(mapping.word(PAGE).unwrap().load(Ordering::Relaxed), 0);
        mapping.word(PAGE).unwrap().store(3, Ordering::Relaxed);
        assert_eq!(mapping.word(PAGE).unwrap().load(Ordering::Relaxed), 3);
        assert_eq!(domain.fault(), Some(mapping.host_pointer().addr() + 8), "the first one");
        assert_eq!(other.word(0).unwrap().load(Ordering::Relaxed), 1);
        assert_eq!(healthy.fault(), None);
    }

    #[test]
    fn a_domain_is_new_when_it_takes_the_place_of_one_that_had_a_fault() {
        for _ in 0..100 {
            let (file, domain) = (file(3), FaultDomain::new().unwrap());
            let mapping = view(&file, Some(&domain));
            assert_eq!(domain.fault(), None);
            file.set_len(0).unwrap();
            assert_eq!(mapping.word(0).unwrap().load(Ordering::Relaxed), 0);
            assert!(domain.fault().is_some());
        }
    }

    #[test]
    #[ignore = "ends its process: run by the test below"]
    fn touches_memory_that_is_not_registered() {
        let _handler = FaultDomain::new().unwrap();
        let file = file(3);
        let mapping = view(&file, None);
        file.set_len(0).unwrap();
        mapping.word(0).unwrap().load(Ordering::Relaxed);
    }

    #[test]
    fn a_fault_in_memory_that_is_not_registered_ends_the_process() {
        let name = "memory::truncation::domain::tests::touches_memory_that_is_not_registered";
        let mut command = Command::new(std::env::current_exe().unwrap());
        let output = command.args(["--ignored", "--exact", name]).output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
    }
}
