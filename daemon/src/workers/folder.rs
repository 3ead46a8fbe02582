//! The folder in which workers and what has started them find each other.
//!
//! | file | made by | purpose |
//! |---|---|---|
//! | `lock` | the process of `--workers` | there is one |
//! | `schedule`, `schedule-lock` | `campanile schedule` | turns between workers; there is one, and which process it is |
//! | `findings` | the first worker | what the machine can do, so that those that follow need not ask |
//! | `drained` | the process of `--workers` | no VM is taken |
//! | `NAME.lock` | the keeper of a worker | there is one, and which process it is |
//! | `NAME.control`, `NAME.metrics` | the worker | what the operator asks it |
//! | `NAME.notify` | the process of `--workers` | the keeper says that the worker serves |
//! | `NAME.made` | the process of `--workers` | the words of a vGPU that the operator has made |

use std::fs;
use std::fs::File;
use std::io;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;

use rustix::fs::OFlags;
use rustix::fs::chown;
use rustix::process::Uid;
use rustix::process::geteuid;

use crate::confine::cgroup::file_name;
use crate::file_lock::holder;

/// Bytes of the longest path of a socket (unix(7)).
const MAX_SOCKET_PATH: usize = 107;
/// What the files of made vGPUs end with.
const MADE: &str = ".made";
/// Bytes of the longest of them.
const LONGEST: u64 = 64 << 10;
/// What the files end with that keepers lock.
const LOCK: &str = ".lock";

/// The folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder(PathBuf);

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
        if mode & 0o077 != 0 || (owner != own && Some(owner) != user) {
            let owner = owner.as_raw();
            let why =
                format!("it is of user {owner} with mode {mode:o}; it must be this user's alone (0700)");
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

    /// What it has locked.
    pub fn schedule_lock(&self) -> PathBuf {
        self.0.join("schedule-lock")
    }

    /// Where it says that it serves.
    pub fn schedule_notify(&self) -> PathBuf {
        self.0.join("schedule-notify")
    }

    /// What the first worker has found of the machine, for those that follow.
    pub fn findings(&self) -> PathBuf {
        self.0.join("findings")
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
        let longest = [self.control(vgpu), self.schedule_notify()];
        let path = longest.into_iter().max_by_key(|path| path.as_os_str().len())?;
        let bytes = path.as_os_str().len();
        let which = path.display();
        (bytes > MAX_SOCKET_PATH)
            .then(|| format!("{which}: a path of {bytes} bytes; {MAX_SOCKET_PATH} are possible for a socket"))
    }

    /// What the process that starts workers here has locked.
    pub fn starter(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// What the keeper of a vGPU's worker has locked.
    pub fn keeper(&self, vgpu: &str) -> PathBuf {
        self.file(vgpu, LOCK)
    }

    /// The vGPUs whose workers have keepers.
    ///
    /// # Errors
    /// The folder or a file cannot be read.
    pub fn kept(&self) -> io::Result<Vec<String>> {
        let mut all = Vec::new();
        for path in self.files(LOCK)? {
            let vgpu = path.file_stem().and_then(|name| name.to_str()).and_then(vgpu_of);
            if let Some(vgpu) = vgpu
                && holder(&path)?.is_some()
            {
                all.push(vgpu);
            }
        }
        Ok(all)
    }

    /// Whether no VM is taken.
    pub fn is_drained(&self) -> bool {
        self.drained().exists()
    }

    /// Notes whether no VM is taken.
    ///
    /// # Errors
    /// It cannot be noted.
    pub fn set_drained(&self, is_drained: bool) -> io::Result<()> {
        if is_drained {
            return File::create(self.drained()).map(drop);
        }
        match fs::remove_file(self.drained()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn drained(&self) -> PathBuf {
        self.0.join("drained")
    }

    /// The files that end so, in their order.
    fn files(&self, ends: &str) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            if path.extension().is_some_and(|its| its == &ends[1..]) {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
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
        self.files(MADE)?.iter().map(read).collect()
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

/// The text of a file that this process has written.
fn read(path: &PathBuf) -> io::Result<String> {
    let mut text = String::new();
    let no_symlink = OFlags::NOFOLLOW.bits().cast_signed();
    let file = File::options().read(true).custom_flags(no_symlink).open(path)?;
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

/// The name that a name of a file was made of.
fn vgpu_of(name: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), name);
    while let Some(character) = rest.chars().next() {
        if character == '%' {
            bytes.push(u8::from_str_radix(rest.get(1..3)?, 16).ok()?);
            rest = rest.get(3..)?;
        } else {
            bytes.extend(character.to_string().bytes());
            rest = &rest[character.len_utf8()..];
        }
    }
    String::from_utf8(bytes).ok().filter(|vgpu| file_name(vgpu) == name)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::fs::PermissionsExt;

    use rustix::process::Uid;
    use rustix::process::geteuid;

    use super::Folder;
    use super::file_name;
    use super::vgpu_of;
    use crate::file_lock::tests::Holder;

    #[test]
    fn names_of_vgpus_become_names_of_files_and_no_two_the_same() {
        let folder = Folder::new("/run/w".as_ref());
        assert_eq!(folder.control("a").to_str(), Some("/run/w/a.control"));
        assert_eq!(folder.control("../x").to_str(), Some("/run/w/%2e%2e%2fx.control"));
        assert_ne!(folder.metrics("a b"), folder.metrics("a%20b"));
        assert_eq!(folder.notify("a").to_str(), Some("/run/w/a.notify"));
        assert_eq!(folder.name("a.b"), "a%2eb");
        let all = [folder.schedule(), folder.starter(), folder.findings(), folder.schedule_notify()];
        assert_eq!(
            all.map(|path| path.to_str().unwrap().to_owned()),
            ["/run/w/schedule", "/run/w/lock", "/run/w/findings", "/run/w/schedule-notify"]
        );
        assert_eq!(folder.objection("a"), None);
        let at_limit = "a".repeat(107 - "/run/w/.control".len());
        assert_eq!(folder.objection(&at_limit), None);
        assert!(folder.objection(&format!("{at_limit}a")).is_some());
        let why = folder.objection(&"é".repeat(32)).unwrap();
        assert!(why.contains("a path of 207 bytes; 107 are possible"), "{why}");
        let deep = Folder::new(format!("/{}", "d".repeat(92)).as_ref());
        assert!(deep.objection("a").unwrap().contains("schedule-notify"));
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
        if geteuid().is_root() {
            let user = Uid::from_raw(54321);
            fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
            folder.make(Some(user)).unwrap();
            assert_eq!(fs::metadata(folder.path()).unwrap().uid(), 54321, "it is that user's from there on");
            folder.make(Some(user)).unwrap();
            let why = folder.make(None).unwrap_err().to_string();
            assert!(why.contains("it is of user 54321"), "{why}");
        }
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
    fn a_name_is_found_by_its_file_and_no_other_file_is_one_of_a_vgpu() {
        for name in ["a", "../x", "a b", "é", "100%", "A-1_b"] {
            assert_eq!(vgpu_of(&file_name(name)).as_deref(), Some(name));
        }
        for wrong in ["a b", "%", "%2", "%zz", "%61", "é", "%ff"] {
            assert_eq!(vgpu_of(wrong), None, "{wrong}");
        }
        let outer = tempfile::tempdir().unwrap();
        let folder = Folder::new(outer.path());
        fs::write(folder.keeper("a"), "").unwrap();
        assert_eq!(folder.kept().unwrap(), [""; 0], "nothing has locked it");
        fs::write(folder.keeper("b"), "").unwrap();
        let _keepers = ["a b", "c"].map(|vgpu| Holder::of(&folder.keeper(vgpu)));
        assert_eq!(folder.kept().unwrap(), ["a b", "c"]);
    }

    #[test]
    fn a_drain_is_noted_until_it_ends() {
        let outer = tempfile::tempdir().unwrap();
        let folder = Folder::new(outer.path());
        for is_drained in [false, true, true, false, false] {
            folder.set_drained(is_drained).unwrap();
            assert_eq!(Folder::new(outer.path()).is_drained(), is_drained);
        }
        fs::create_dir(outer.path().join("drained")).unwrap();
        assert!(folder.set_drained(false).is_err(), "it is no file");
    }
}
