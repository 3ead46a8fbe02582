//! The folder in which workers and what has started them find each other.
//!
//! | file | who makes it | what for |
//! |---|---|---|
//! | `lock` | the process of `--workers` | there is one |
//! | `schedule` | `campanile schedule` | turns between workers |
//! | `NAME.lock` | the keeper of a worker | there is one, and which process it is |
//! | `NAME.control`, `NAME.metrics` | the worker | what the operator asks it |
//! | `NAME.notify` | the process of `--workers` | the keeper says that the worker serves |
//! | `NAME.made` | the process of `--workers` | the words of a vGPU that the operator has made |

use std::fs;
use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;

use rustix::fs::FlockOperation;
use rustix::fs::chown;
use rustix::fs::fcntl_lock;
use rustix::process::Flock;
use rustix::process::FlockOffsetType;
use rustix::process::FlockType;
use rustix::process::Pid;
use rustix::process::Uid;
use rustix::process::fcntl_getlk;
use rustix::process::geteuid;

use crate::confine::cgroup::file_name;

/// Bytes of the longest path of a socket (unix(7)).
const MAX_SOCKET_PATH: usize = 107;
/// What the files of made vGPUs end with.
const MADE: &str = ".made";

/// The folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder(PathBuf);

/// A lock that this process has until it ends, or drops it.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Folder {
    /// The one of this path; nothing is looked at yet.
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// What names of files of a vGPU begin with.
    pub fn name(&self, vgpu: &str) -> String {
        file_name(vgpu)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes it where it is missing, for this user alone; or for the one as which workers serve.
    ///
    /// # Errors
    /// It cannot be made, or is of others, too.
    pub fn make(&self, user: Option<Uid>) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let found = fs::symlink_metadata(&self.0)?;
        let (mode, owner) = (found.mode() & 0o777, Uid::from_raw(found.uid()));
        let own = geteuid();
        if !found.is_dir() {
            return Err(io::Error::other("it is no folder"));
        }
        if mode & 0o022 != 0 || (owner != own && Some(owner) != user) {
            let owner = owner.as_raw();
            let why = format!(
                "it is of user {owner} with mode {mode:o}; it must be this user's, and nothing that others write"
            );
            return Err(io::Error::other(why));
        }
        if let Some(user) = user.filter(|user| *user != owner) {
            chown(&self.0, Some(user), None)?;
        }
        Ok(())
    }

    /// The socket of the schedule.
    pub fn schedule(&self) -> PathBuf {
        self.0.join("schedule")
    }

    /// Where it says that it serves.
    pub fn schedule_notify(&self) -> PathBuf {
        self.0.join("schedule-notify")
    }

    /// The control socket of the worker of a vGPU.
    pub fn control(&self, vgpu: &str) -> PathBuf {
        self.file(vgpu, ".control")
    }

    /// Where that worker has metrics.
    pub fn metrics(&self, vgpu: &str) -> PathBuf {
        self.file(vgpu, ".metrics")
    }

    /// Where its keeper says that it serves.
    pub fn notify(&self, vgpu: &str) -> PathBuf {
        self.file(vgpu, ".notify")
    }

    fn file(&self, vgpu: &str, ends: &str) -> PathBuf {
        self.0.join(format!("{}{ends}", file_name(vgpu)))
    }

    /// What is wrong with the sockets of a vGPU here, if anything is.
    pub fn objection(&self, vgpu: &str) -> Option<String> {
        let path = self.control(vgpu);
        let bytes = path.as_os_str().len();
        let which = path.display();
        (bytes > MAX_SOCKET_PATH)
            .then(|| format!("{which}: a path of {bytes} bytes; {MAX_SOCKET_PATH} are possible for a socket"))
    }

    /// The lock of the process that starts workers here.
    ///
    /// # Errors
    /// Another process has it: which; or the file cannot be made.
    pub fn lock(&self) -> io::Result<Lock> {
        lock(&self.0.join("lock"))
    }

    /// The lock of the keeper of a vGPU's worker.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub fn lock_worker(&self, vgpu: &str) -> io::Result<Lock> {
        lock(&self.file(vgpu, ".lock"))
    }

    /// The keeper of a vGPU's worker, if there is one.
    ///
    /// # Errors
    /// It cannot be found out.
    pub fn keeper(&self, vgpu: &str) -> io::Result<Option<Pid>> {
        match File::options().read(true).write(true).open(self.file(vgpu, ".lock")) {
            Ok(file) => holder(&file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes a vGPU that the operator has made, in the words in which it was made.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn note_made(&self, vgpu: &str, spec: &str) -> io::Result<()> {
        let mut draft = tempfile::Builder::new().prefix(".made.").tempfile_in(&self.0)?;
        io::Write::write_all(&mut draft, spec.as_bytes())?;
        draft.persist(self.file(vgpu, MADE))?;
        Ok(())
    }

    /// Those that were noted, in the order of their files.
    ///
    /// # Errors
    /// The folder or a file cannot be read.
    pub fn made(&self) -> io::Result<Vec<String>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ends| ends == &MADE[1..]) {
                files.push(path);
            }
        }
        files.sort();
        files.iter().map(fs::read_to_string).collect()
    }

    /// A vGPU is gone for good: nothing of it stays but its lock, which may be another keeper's by now.
    pub fn forget(&self, vgpu: &str) {
        for file in [self.file(vgpu, MADE), self.notify(vgpu)] {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    log::warn!("{}: {error}", file.display());
                }
                _ => {}
            }
        }
    }
}

fn lock(path: &Path) -> io::Result<Lock> {
    let file = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock { _file: file }),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => {
            let other = holder(&file)?;
            let other = other.map_or_else(
                || "another process".to_owned(),
                |pid| format!("process {}", pid.as_raw_nonzero()),
            );
            Err(io::Error::new(io::ErrorKind::ResourceBusy, format!("{other} has it")))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// The process that has a lock of all of a file.
fn holder(file: &File) -> io::Result<Option<Pid>> {
    let all = Flock {
        start: 0,
        length: 0,
        pid: None,
        typ: FlockType::WriteLock,
        offset_type: FlockOffsetType::Set,
    };
    Ok(fcntl_getlk(file, &all)?.and_then(|found| found.pid))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::Folder;

    #[test]
    fn names_of_vgpus_become_names_of_files_and_no_two_the_same() {
        let folder = Folder::new("/run/w".as_ref());
        assert_eq!(folder.control("a").to_str(), Some("/run/w/a.control"));
        assert_eq!(folder.control("../x").to_str(), Some("/run/w/%2e%2e%2fx.control"));
        assert_ne!(folder.metrics("a b"), folder.metrics("a%20b"));
        assert_eq!(folder.objection("a"), None);
        let why = folder.objection(&"é".repeat(32)).unwrap();
        assert!(why.contains("a path of 207 bytes; 107 are possible"), "{why}");
    }

    #[test]
    fn a_folder_that_others_write_to_is_refused() {
        let outer = tempfile::tempdir().unwrap();
        let folder = Folder::new(&outer.path().join("a/b"));
        folder.make(None).unwrap();
        folder.make(None).unwrap();
        assert_eq!(fs::metadata(folder.path()).unwrap().permissions().mode() & 0o777, 0o700);
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o770)).unwrap();
        let why = folder.make(None).unwrap_err().to_string();
        assert!(why.contains("with mode 770"), "{why}");
        fs::write(outer.path().join("file"), "").unwrap();
        assert!(Folder::new(&outer.path().join("file")).make(None).is_err());
    }

    #[test]
    fn vgpus_that_the_operator_has_made_are_noted_and_forgotten() {
        let outer = tempfile::tempdir().unwrap();
        let folder = Folder::new(outer.path());
        folder.note_made("b", "name=b,socket=/b,vram=64M").unwrap();
        folder.note_made("a/1", "name=a/1,socket=/a,vram=64M").unwrap();
        folder.note_made("b", "name=b,socket=/c,vram=64M").unwrap();
        assert_eq!(folder.made().unwrap(), ["name=a/1,socket=/a,vram=64M", "name=b,socket=/c,vram=64M"]);
        folder.forget("a/1");
        folder.forget("none");
        assert_eq!(folder.made().unwrap(), ["name=b,socket=/c,vram=64M"]);
    }

    #[test]
    fn a_lock_that_no_process_has_is_taken_and_tells_of_no_keeper() {
        let outer = tempfile::tempdir().unwrap();
        let folder = Folder::new(outer.path());
        assert_eq!(folder.keeper("a").unwrap(), None);
        drop(folder.lock_worker("a").unwrap());
        assert_eq!(folder.keeper("a").unwrap(), None);
    }
}
