//! Locks on files that the kernel lets go when a process ends, and of which it says which process has them (fcntl(2), F_SETLK, F_GETLK).

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::fs::Mode;
use rustix::fs::OFlags;
use rustix::fs::fchmod;
use rustix::fs::fcntl_lock;
use rustix::io::Errno;
use rustix::process::Flock;
use rustix::process::FlockOffsetType;
use rustix::process::FlockType;
use rustix::process::Pid;
use rustix::process::fcntl_getlk;

/// A lock that this process has until it ends, executes another program, or drops it.
#[derive(Debug)]
pub struct FileLock {
    _file: File,
}

impl FileLock {
    /// Locks a file, which is made where it is missing.
    ///
    /// # Errors
    /// Another process has it: which; or the file cannot be opened.
    pub fn take(path: &Path) -> io::Result<Self> {
        let file = options().write(true).create(true).truncate(false).open(path)?;
        // Processes of other users may read it, and so ask which process has the lock; the folder limits which users.
        fchmod(&file, Mode::from_raw_mode(0o644))?;
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(Errno::AGAIN | Errno::ACCESS) => {
                let other = match holder_of(&file)? {
                    Some(pid) => format!("process {}", pid.as_raw_nonzero()),
                    None => "another process".to_owned(),
                };
                Err(io::Error::new(io::ErrorKind::ResourceBusy, format!("{other} has it")))
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The other process that has locked a file, if one has.
///
/// # Errors
/// The file cannot be opened, though it is there.
pub fn holder(path: &Path) -> io::Result<Option<Pid>> {
    match options().open(path) {
        Ok(file) => holder_of(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn options() -> std::fs::OpenOptions {
    let mut options = File::options();
    options.read(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

fn holder_of(file: &File) -> io::Result<Option<Pid>> {
    let (typ, offset_type) = (FlockType::WriteLock, FlockOffsetType::Set);
    let all = Flock { start: 0, length: 0, pid: None, typ, offset_type };
    Ok(fcntl_getlk(file, &all)?.and_then(|found| found.pid))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::env;
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::process::Child;
    use std::process::Command;
    use std::process::Stdio;
    use std::time::Duration;
    use std::time::Instant;

    use rustix::process::Pid;

    use super::FileLock;
    use super::holder;

    /// What a process of this test locks until its standard input ends.
    const LOCKS: &str = "CAMPANILE_TEST_LOCKS";

    /// Another process that has locked a file.
    pub(crate) struct Holder(Child);

    impl Holder {
        pub(crate) fn of(path: &Path) -> Self {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["--exact", "file_lock::tests::another_process_has_a_lock", "--nocapture"]);
            command.env(LOCKS, path).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            let new = Self(command.spawn().unwrap());
            let begun = Instant::now();
            while holder(path).unwrap() != Some(new.pid()) {
                assert!(begun.elapsed() < Duration::from_secs(60), "it never locks it");
                std::thread::yield_now();
            }
            new
        }

        pub(crate) fn pid(&self) -> Pid {
            Pid::from_child(&self.0)
        }
    }

    impl Drop for Holder {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn another_process_has_a_lock() {
        if let Some(path) = env::var_os(LOCKS) {
            let _lock = FileLock::take(path.as_ref()).unwrap();
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let other = Holder::of(&path);
        let error = FileLock::take(&path).unwrap_err();
        assert_eq!(error.to_string(), format!("process {} has it", other.pid().as_raw_nonzero()));
        drop(other);
        assert_eq!(holder(&path).unwrap(), None, "the kernel has let it go");
        FileLock::take(&path).unwrap();
    }

    #[test]
    fn a_lock_that_no_other_process_has_is_taken_and_no_symlink_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        assert_eq!(holder(&path).unwrap(), None);
        drop(FileLock::take(&path).unwrap());
        assert_eq!(holder(&path).unwrap(), None);
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(FileLock::take(&link).is_err() && holder(&link).is_err());
    }
}
