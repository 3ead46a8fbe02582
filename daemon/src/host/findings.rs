//! What was found of the machine, for the next process that would look for the same.
//!
//! A daemon asks engine processes what the machine can do before it serves, which takes a driver's start. One that follows another has no time
//! for that: it takes what that one has found for the same question, and notes what it asks itself. Findings of workers lie in a file of their
//! folder, those of other daemons in the descriptor store. Only what works is noted: what does not is tried again.

use std::cell::RefCell;
use std::env;
use std::fs;
use std::fs::File;
use std::io;
use std::io::Read;
use std::io::Seek;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;

use campanile_host_gpu::adapter::program::INHERITED;
use campanile_host_gpu::adapter::program::Program;
use campanile_protocol::profile::Profile;
use rustix::fs::MemfdFlags;
use rustix::fs::memfd_create;
use serde::Deserialize;
use serde::Serialize;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::probe::probe_compute;
use super::probe::probe_tracking;
use crate::fd_store;
use crate::vgpu::config::Compute;
use crate::vgpu::config::ComputeDevice;

/// Bytes of the longest file: some hundred devices.
const LONGEST: u64 = 1 << 20;
/// Findings that are kept: those of a few programs, one after the other upgraded.
const MOST: usize = 64;
/// Where the loader of the system finds drivers: another one there is another machine.
const MANIFESTS: [&str; 2] = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"];

/// Something that works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Finding {
    /// What computes, what guests are told of it, and whether that is a GPU.
    Compute { device: String, profile: Option<Vec<u8>>, is_gpu: bool },
    /// The kernel notes what engines write.
    Tracking,
}

/// What they are called in the descriptor store, of no vGPU.
const ROLE: &str = "findings";

/// Where they lie.
#[derive(Debug)]
enum Place {
    /// Nowhere: the process that follows asks anew.
    Nowhere,
    /// In a file.
    File(PathBuf),
    /// In memory that the store keeps, once there are any.
    Store(RefCell<Option<File>>),
}

/// All that was found, by what was asked.
#[derive(Debug)]
pub(super) struct Findings {
    place: Place,
    all: RefCell<Vec<(String, Finding)>>,
}

impl Findings {
    /// Those of a file, if there is to be one, or else of the descriptor store, if there is one. What cannot be read is as what is not
    /// there.
    pub(super) fn open(file: Option<&Path>) -> Self {
        let place = match file {
            Some(file) => Place::File(file.to_owned()),
            None if fd_store::is_open() => {
                Place::Store(RefCell::new(fd_store::take_one("", ROLE).map(File::from)))
            }
            None => Place::Nowhere,
        };
        Self::at(place)
    }

    fn at(place: Place) -> Self {
        let all = place.read().unwrap_or_else(|error| {
            log::warn!(
                "what was found of the machine before cannot be read, so that it is asked anew: {error}"
            );
            Vec::new()
        });
        Self { place, all: RefCell::new(all) }
    }

    /// As [`probe_compute`].
    ///
    /// # Errors
    /// No process could be started.
    pub(super) fn compute(
        &self,
        program: &Program,
        vulkan_device: Option<String>,
        sandbox: bool,
    ) -> io::Result<(Compute, bool)> {
        let key = key(program, sandbox, &format!("compute {vulkan_device:?}"));
        if let Some(Finding::Compute { device, profile, is_gpu }) = self.known(&key) {
            let of = profile.map(|bytes| Profile::read_from_bytes(&bytes).ok());
            // Of another size it is another program's.
            if of.is_none_or(|profile| profile.is_some()) {
                let profile = of.flatten();
                log::info!("what was found of the machine before holds: {device}");
                let profile = profile.map(Box::new);
                return Ok((Compute::Available(ComputeDevice { name: device, profile }), is_gpu));
            }
        }
        let (compute, is_gpu) = probe_compute(program, vulkan_device, sandbox)?;
        if let Compute::Available(ComputeDevice { name, profile }) = &compute {
            let profile = profile.as_ref().map(|profile| profile.as_bytes().to_vec());
            self.note(key, Finding::Compute { device: name.clone(), profile, is_gpu });
        }
        Ok((compute, is_gpu))
    }

    /// As [`probe_tracking`].
    ///
    /// # Errors
    /// No process could be started.
    pub(super) fn tracking(&self, program: &Program, sandbox: bool) -> io::Result<Result<(), String>> {
        let key = key(program, sandbox, "tracking");
        if self.known(&key) == Some(Finding::Tracking) {
            return Ok(Ok(()));
        }
        let found = probe_tracking(program, sandbox)?;
        if found.is_ok() {
            self.note(key, Finding::Tracking);
        }
        Ok(found)
    }

    fn known(&self, key: &str) -> Option<Finding> {
        self.all.borrow().iter().find(|(its, _)| its == key).map(|(_, finding)| finding.clone())
    }

    fn note(&self, key: String, finding: Finding) {
        let mut all = self.all.borrow_mut();
        all.retain(|(its, _)| *its != key);
        all.push((key, finding));
        let surplus = all.len().saturating_sub(MOST);
        all.drain(..surplus);
        if let Err(error) = self.place.write(&all) {
            log::warn!(
                "what was found of the machine cannot be noted, so that the next process asks anew: {error}"
            );
        }
    }
}

impl Place {
    fn read(&self) -> io::Result<Vec<(String, Finding)>> {
        let mut bytes = Vec::new();
        match self {
            Self::Nowhere => return Ok(Vec::new()),
            Self::File(path) => match File::open(path) {
                Ok(file) => file.take(LONGEST).read_to_end(&mut bytes)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                Err(error) => return Err(error),
            },
            Self::Store(file) => {
                let file = file.borrow();
                let Some(mut file) = file.as_ref() else { return Ok(Vec::new()) };
                // Where the process before this one has left off does not matter.
                file.rewind()?;
                file.take(LONGEST).read_to_end(&mut bytes)?
            }
        };
        ciborium::from_reader(bytes.as_slice()).map_err(io::Error::other)
    }

    fn write(&self, all: &[(String, Finding)]) -> io::Result<()> {
        let mut bytes = Vec::new();
        ciborium::into_writer(all, &mut bytes).map_err(io::Error::other)?;
        match self {
            Self::Nowhere => Ok(()),
            // A reader sees all of it, or what was there before.
            Self::File(path) => {
                let folder = path.parent().unwrap_or(Path::new("."));
                let mut draft = tempfile::Builder::new().prefix(".findings.").tempfile_in(folder)?;
                draft.write_all(&bytes)?;
                draft.persist(path)?;
                Ok(())
            }
            // What is cut off, of a process that is killed, cannot be read.
            Self::Store(file) => {
                let mut file = file.borrow_mut();
                let is_new = file.is_none();
                let file = match &mut *file {
                    Some(file) => file,
                    none => none.insert(File::from(memfd_create("campanile-findings", MemfdFlags::CLOEXEC)?)),
                };
                file.set_len(0)?;
                file.write_all_at(&bytes, 0)?;
                if is_new { fd_store::put("", ROLE, file.as_fd()) } else { Ok(()) }
            }
        }
    }
}

/// All on which the answer depends: the program and its account, the driver's environment and manifests, and what is asked.
fn key(program: &Program, sandbox: bool, what: &str) -> String {
    let identity = |path: &Path| {
        let found = fs::metadata(path).ok()?;
        Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
    };
    let inherited = INHERITED.map(env::var_os);
    let manifests = MANIFESTS.map(|folder| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut all: Vec<_> = entries.map(|entry| (entry.path(), identity(&entry.path()))).collect();
        all.sort();
        all
    });
    let named = program.environment.iter().map(|(_, value)| identity(Path::new(value)));
    // A user that is one vGPU's alone, and the group of its number, own no file: the number says nothing.
    let user = program.containment.account.as_ref().map(|account| {
        let is_one_vgpus = account.tasks.is_some();
        let groups = account.groups.iter().filter(|group| !is_one_vgpus || **group != account.gid);
        ((!is_one_vgpus).then_some((account.uid, account.gid)), groups.collect::<Vec<_>>())
    });
    format!(
        "{what} {sandbox} {user:?} {:?} {:?} {inherited:?} {:?} {manifests:?}",
        identity(&program.path),
        program.environment,
        named.collect::<Vec<_>>(),
    )
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;
    use std::sync::Arc;

    use campanile_host_gpu::adapter::containment::Account;
    use campanile_host_gpu::adapter::containment::Containment;
    use campanile_host_gpu::adapter::program::Program;

    use super::Finding;
    use super::Findings;
    use super::Place;
    use super::key;
    use crate::vgpu::config::Compute;

    /// What never comes up: it ends before it is told anything, or after that.
    fn program() -> Program {
        Program::new("/bin/false".into(), Vec::new())
    }

    fn computes(findings: &Findings, program: &Program, device: Option<&str>) -> bool {
        let found = findings.compute(program, device.map(str::to_owned), false);
        matches!(found, Ok((Compute::Available(_), _)))
    }

    fn tracks(findings: &Findings, program: &Program, sandbox: bool) -> bool {
        matches!(findings.tracking(program, sandbox), Ok(Ok(())))
    }

    #[test]
    fn what_was_found_is_not_asked_again_and_what_was_not_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("findings");
        let program = program();
        let before = Findings::open(Some(&file));
        assert!(!computes(&before, &program, None));
        assert!(!tracks(&before, &program, false));
        assert!(!file.exists(), "what does not work is tried again");
        let device = Finding::Compute { device: "card".to_owned(), profile: None, is_gpu: true };
        before.note(key(&program, false, "compute None"), device);
        before.note(key(&program, false, "tracking"), Finding::Tracking);
        let after = Findings::open(Some(&file));
        let Ok((Compute::Available(found), true)) = after.compute(&program, None, false) else {
            panic!("{after:?}")
        };
        assert_eq!((found.name.as_str(), found.profile), ("card", None));
        assert!(tracks(&after, &program, false));
        // Another question, or the same of something else.
        assert!(!computes(&after, &program, Some("card")));
        assert!(!tracks(&after, &program, true));
        let other = Program { environment: vec![("A".to_owned(), "b".to_owned())], ..program };
        assert!(!tracks(&after, &other, false));
    }

    #[test]
    fn users_that_are_one_vgpus_alone_are_alike_and_others_are_not() {
        let of = |uid: u32, groups: &[u32], tasks| {
            let account = Account { uid, gid: uid, groups: groups.to_vec(), tasks };
            let containment = Containment { account: Some(Arc::new(account)), ..Containment::default() };
            key(&Program { containment, ..program() }, true, "compute")
        };
        assert_eq!(of(61_000, &[44, 61_000], Some(9)), of(61_001, &[44, 61_001], Some(9)));
        assert_ne!(of(61_000, &[44, 61_000], Some(9)), of(61_001, &[45, 61_001], Some(9)));
        assert_ne!(of(1000, &[44], None), of(1001, &[44], None));
        assert_ne!(of(1000, &[44], None), of(1000, &[44, 45], None));
        assert_ne!(of(61_000, &[], Some(9)), of(61_000, &[], None));
    }

    #[test]
    fn what_the_descriptor_store_keeps_is_read_by_the_next_process_whatever_is_written_to_it() {
        let program = program();
        let before = Findings::at(Place::Store(RefCell::default()));
        before.note("other".to_owned(), Finding::Tracking);
        before.note(key(&program, false, "tracking"), Finding::Tracking);
        let Place::Store(kept) = before.place else { panic!("{before:?}") };
        let file = kept.into_inner().unwrap();
        let next = Findings::at(Place::Store(RefCell::new(Some(file.try_clone().unwrap()))));
        assert!(tracks(&next, &program, false));
        file.set_len(7).unwrap();
        let cut = Findings::at(Place::Store(RefCell::new(Some(file))));
        assert!(!tracks(&cut, &program, false));
        cut.note("x".to_owned(), Finding::Tracking);
        assert_eq!(Findings::at(cut.place).known("x"), Some(Finding::Tracking));
    }

    #[test]
    fn a_program_that_was_replaced_is_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, "one").unwrap();
        let program = Program::new(path.clone(), Vec::new());
        let before = key(&program, true, "x");
        assert_eq!(key(&program, true, "x"), before);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "other").unwrap();
        assert_ne!(key(&program, true, "x"), before);
    }

    #[test]
    fn a_file_that_is_cut_or_no_file_of_findings_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("findings");
        let program = program();
        Findings::open(Some(&file)).note(key(&program, false, "tracking"), Finding::Tracking);
        let whole = fs::read(&file).unwrap();
        for bytes in [&whole[..whole.len() - 1], b"", b"\x00\xff nonsense"] {
            fs::write(&file, bytes).unwrap();
            let found = Findings::open(Some(&file));
            assert!(!tracks(&found, &program, false));
        }
        let findings = Findings::open(Some(&file));
        (0..2 * super::MOST).for_each(|number| findings.note(number.to_string(), Finding::Tracking));
        assert_eq!((findings.known("0"), findings.all.borrow().len()), (None, super::MOST));
        assert_eq!(findings.known(&(2 * super::MOST - 1).to_string()), Some(Finding::Tracking));
        // One without a file keeps nothing.
        let none = Findings::open(None);
        none.note("x".to_owned(), Finding::Tracking);
        assert_eq!(Findings::open(None).known("x"), None);
    }
}
