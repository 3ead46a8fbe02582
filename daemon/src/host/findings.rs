//! What was found of the machine, for the next process that would look for the same.
//!
//! A daemon asks engine processes what the machine can do before it serves, which takes a driver's start. A worker that follows another one has no
//! time for that: where its folder has a file of findings, it takes what is there for the same question, and adds what it has asked itself. Only what
//! works is noted: what does not is tried again.

use std::cell::RefCell;
use std::env;
use std::fs;
use std::io;
use std::io::Read;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;

use campanile_host_gpu::adapter::program::INHERITED;
use campanile_host_gpu::adapter::program::Program;
use campanile_protocol::profile::Profile;
use serde::Deserialize;
use serde::Serialize;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::probe::probe_compute;
use super::probe::probe_tracking;
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

/// All that was found, by what was asked.
#[derive(Debug)]
pub(super) struct Findings {
    file: Option<PathBuf>,
    all: RefCell<Vec<(String, Finding)>>,
}

impl Findings {
    /// Those of a file, if there is to be one. One that cannot be read is as one that is not there.
    pub(super) fn open(file: Option<&Path>) -> Self {
        let read = |path: &Path| {
            let mut bytes = Vec::new();
            fs::File::open(path)?.take(LONGEST).read_to_end(&mut bytes)?;
            ciborium::from_reader(bytes.as_slice()).map_err(io::Error::other)
        };
        let all = file.map(read).transpose().unwrap_or_else(|error: io::Error| {
            if error.kind() != io::ErrorKind::NotFound {
                log::warn!("{}: {error}; the machine is asked anew", file.unwrap_or(Path::new("")).display());
            }
            None
        });
        Self { file: file.map(Path::to_owned), all: RefCell::new(all.unwrap_or_default()) }
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
        let Some(file) = &self.file else { return };
        let mut all = self.all.borrow_mut();
        all.retain(|(its, _)| *its != key);
        all.push((key, finding));
        let surplus = all.len().saturating_sub(MOST);
        all.drain(..surplus);
        if let Err(error) = write(file, &all) {
            log::warn!("{}: {error}; the next process asks the machine anew", file.display());
        }
    }
}

/// Writes all of it, so that a reader sees all or what was there before.
fn write(file: &Path, all: &[(String, Finding)]) -> io::Result<()> {
    let mut bytes = Vec::new();
    ciborium::into_writer(all, &mut bytes).map_err(io::Error::other)?;
    let folder = file.parent().unwrap_or(Path::new("."));
    let mut draft = tempfile::Builder::new().prefix(".findings.").tempfile_in(folder)?;
    draft.write_all(&bytes)?;
    draft.persist(file)?;
    Ok(())
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
    let user = program.containment.account.as_ref().map(|account| (account.uid, account.gid));
    format!(
        "{what} {sandbox} {user:?} {:?} {:?} {inherited:?} {:?} {manifests:?}",
        identity(&program.path),
        program.environment,
        named.collect::<Vec<_>>(),
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use campanile_host_gpu::adapter::program::Program;

    use super::Finding;
    use super::Findings;
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
        assert_eq!(none.known("x"), None);
    }
}
