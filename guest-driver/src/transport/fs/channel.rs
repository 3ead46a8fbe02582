//! The file `gpu`: which one it is, and calls through it.

use std::fs;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_protocol::capset::Capset;
use campanile_protocol::fs::NAME;
use campanile_protocol::fs::body::About;
use campanile_protocol::fs::call;
use campanile_protocol::fs::call::Call;
use campanile_protocol::fs::call::ReplyHeader;
use campanile_protocol::fs::call::RequestHeader;
use rustix::io::Errno;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use super::ioctl;
use super::mounts;
use super::mounts::Mount;
use crate::transport::error::Refusal;
use crate::transport::error::TransportError;

/// Says which device is meant, by its tag, where a VM has several.
pub const TAG_VARIABLE: &str = "CAMPANILE_FS_TAG";
/// Where newer kernels list virtio-fs devices.
const DEVICES: &str = "/sys/fs/virtiofs";

/// An opened command channel, which is a session of the device. Dropping it ends the session.
#[derive(Debug)]
pub struct FsChannel {
    pub(super) file: File,
    path: PathBuf,
    about: About,
    /// ioctls and writes that went to the daemon.
    sent: AtomicU64,
    /// The session is gone.
    lost: AtomicBool,
}

/// What [`Call::Capset`] answers.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct AboutAndCapset {
    about: About,
    capset: Capset,
}

impl FsChannel {
    /// The first one among the virtiofs mounts of this process, or the one whose tag [`TAG_VARIABLE`] has.
    ///
    /// # Errors
    /// `NoChannel`, which says of every mount why it is not the one.
    pub fn find() -> Result<Self, TransportError> {
        let list = fs::read(mounts::MOUNT_INFO).unwrap_or_default();
        let tag = std::env::var(TAG_VARIABLE).ok().filter(|tag| !tag.is_empty());
        Self::find_in(&mounts::virtiofs(&list), tag.as_deref(), Path::new(DEVICES))
    }

    /// Whether some virtiofs mount has a file of that name, without opening it: that would begin a session.
    pub fn is_there() -> bool {
        let list = fs::read(mounts::MOUNT_INFO).unwrap_or_default();
        let name = String::from_utf8_lossy(NAME);
        mounts::virtiofs(&list).iter().any(|mount| mount.channel(&name).exists())
    }

    /// What to do where it [is not there](Self::is_there).
    pub fn nowhere() -> TransportError {
        let mounts = mounts::virtiofs(&fs::read(mounts::MOUNT_INFO).unwrap_or_default());
        let why = match mounts.first() {
            None => advice(&mounts, None, Path::new(DEVICES)),
            Some(first) => format!("{} of {} has none", first.point.display(), first.tag),
        };
        TransportError::NoChannel { why }
    }

    /// The one at `path`.
    ///
    /// # Errors
    /// `NoChannel`, where it is not Campanile's.
    pub fn at(path: &Path) -> Result<Self, TransportError> {
        let refused = |reason| TransportError::NoChannel { why: format!("{}: {reason}", path.display()) };
        Self::open(path).map_err(refused)
    }

    fn find_in(mounts: &[Mount], tag: Option<&str>, devices: &Path) -> Result<Self, TransportError> {
        let mut reasons = Vec::new();
        let name = String::from_utf8_lossy(NAME);
        for mount in mounts.iter().filter(|mount| tag.is_none_or(|tag| tag == mount.tag)) {
            let path = mount.channel(&name);
            match Self::open(&path) {
                Ok(channel) => return Ok(channel),
                Err(reason) => reasons.push(format!("{}: {reason}", path.display())),
            }
        }
        let why = if reasons.is_empty() { advice(mounts, tag, devices) } else { reasons.join("; ") };
        Err(TransportError::NoChannel { why })
    }

    /// Opens this file and has the daemon say what it is, or says why it is not one of Campanile.
    fn open(path: &Path) -> Result<Self, String> {
        let file =
            OpenOptions::new().read(true).write(true).open(path).map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    "permission denied; see who may enter the mount's folder".to_owned()
                }
                _ => error.to_string(),
            })?;
        let (path, about) = (path.to_owned(), About::default());
        let mut channel = Self { file, path, about, sent: AtomicU64::new(1), lost: AtomicBool::new(false) };
        channel.about = channel.ask_about().map_err(|error| format!("is not Campanile's ({error})"))?.about;
        Ok(channel)
    }

    fn ask_about(&self) -> Result<AboutAndCapset, TransportError> {
        self.ask("CAPSET", Call::Capset, &(), &[])
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the aperture that the daemon has found.
    pub(super) fn aperture_bytes(&self) -> u64 {
        self.about.aperture_bytes
    }

    /// Capability set 24, as the device reports it now.
    pub(super) fn capset(&self) -> Result<Capset, TransportError> {
        Ok(self.ask_about()?.capset)
    }

    /// ioctls and writes so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Whether the daemon has said that the session is gone.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Counts what went to the daemon, and takes note of the end of the session.
    pub(super) fn done<T>(&self, what: &'static str, result: Result<T, Errno>) -> Result<T, TransportError> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        result.map_err(|errno| match errno {
            Errno::NODEV => {
                self.lost.store(true, Ordering::Relaxed);
                TransportError::DeviceReset
            }
            // The mount was taken down by force.
            Errno::NOTCONN | Errno::CONNABORTED => {
                self.lost.store(true, Ordering::Relaxed);
                TransportError::Disconnected
            }
            _ => TransportError::System { what, source: errno.into() },
        })
    }

    /// One call: `body` and what follows it go out, an `A` comes back.
    pub(super) fn ask<A: FromBytes>(
        &self,
        what: &'static str,
        call: Call,
        body: &(impl IntoBytes + Immutable),
        behind: &[u8],
    ) -> Result<A, TransportError> {
        self.ask_on(&self.file, what, call, body, behind)
    }

    /// As [`Self::ask`], on another open file of the same device.
    pub(super) fn ask_on<A: FromBytes>(
        &self,
        file: &File,
        what: &'static str,
        call: Call,
        body: &(impl IntoBytes + Immutable),
        behind: &[u8],
    ) -> Result<A, TransportError> {
        let asked = size_of::<RequestHeader>() + body.as_bytes().len() + behind.len();
        let answered = size_of::<ReplyHeader>() + size_of::<A>();
        let header = RequestHeader { size: u32::try_from(asked).unwrap_or(u32::MAX), reserved: 0 };
        let mut bytes = Vec::with_capacity(asked.max(answered));
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(body.as_bytes());
        bytes.extend_from_slice(behind);
        bytes.resize(asked.max(answered), 0);
        self.done(what, ioctl::call(file.as_fd(), call, &mut bytes))?;
        read_answer(what, &bytes)
    }
}

/// Checks the answer to a call, and takes its body.
fn read_answer<A: FromBytes>(command: &'static str, bytes: &[u8]) -> Result<A, TransportError> {
    let bad = |why| TransportError::BadAnswer { command, why };
    let (header, body) = ReplyHeader::read_from_prefix(bytes).map_err(|_| bad("it has no header"))?;
    if header.status != call::OK {
        let refusal = Refusal::from_code(header.status).ok_or(bad("its status is none"))?;
        return Err(TransportError::Refused { command, refusal });
    }
    // A daemon that knows more says more.
    if (header.size as usize) < size_of::<ReplyHeader>() + size_of::<A>() {
        return Err(bad("it is too short"));
    }
    A::read_from_prefix(body).map(|(answer, _)| answer).map_err(|_| bad("it is too short"))
}

/// What to do where nothing fits that is mounted.
fn advice(mounts: &[Mount], tag: Option<&str>, devices: &Path) -> String {
    let entries = fs::read_dir(devices).into_iter().flatten().flatten();
    let tags = entries.filter_map(|entry| fs::read_to_string(entry.path().join("tag")).ok());
    let tags: Vec<String> = tags.map(|tag| tag.trim().to_owned()).collect();
    if let Some(tag) = tag {
        let mounted: Vec<&str> = mounts.iter().map(|mount| mount.tag.as_str()).collect();
        let mounted = if mounted.is_empty() { "none".to_owned() } else { mounted.join(", ") };
        return format!("{TAG_VARIABLE} says {tag}; mounted are: {mounted}");
    }
    match tags.first() {
        Some(tag) => format!(
            "no virtiofs file system is mounted; this VM has these: {}; mount one, as root: mount -t virtiofs {tag} /mnt",
            tags.join(", ")
        ),
        None => "no virtiofs file system is mounted, and this VM seems to have none; Campanile's needs a \
                 vhost-user-fs-pci device on the VMM's command line, and: mount -t virtiofs TAG /mnt"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use campanile_protocol::fs::body::Submitted;
    use campanile_protocol::fs::call::ReplyHeader;
    use campanile_protocol::virtio_gpu::response;
    use zerocopy::IntoBytes;

    use super::FsChannel;
    use super::Mount;
    use super::TransportError;
    use super::read_answer;

    fn why(mounts: &[Mount], tag: Option<&str>, devices: &Path) -> String {
        FsChannel::find_in(mounts, tag, devices).unwrap_err().to_string()
    }

    #[test]
    fn a_guest_without_mount_is_told_what_to_do() {
        let devices = tempfile::tempdir().unwrap();
        assert!(why(&[], None, devices.path()).contains("vhost-user-fs-pci"));
        std::fs::create_dir(devices.path().join("5")).unwrap();
        std::fs::write(devices.path().join("5/tag"), "mygpu\n").unwrap();
        let said = why(&[], None, devices.path());
        assert!(said.contains("mount -t virtiofs mygpu /mnt"), "{said}");
        assert!(why(&[], Some("other"), devices.path()).contains("says other; mounted are: none"));
    }

    #[test]
    fn each_mount_that_is_not_the_one_is_named_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let mount = |tag: &str| Mount { tag: tag.into(), root: "/".into(), point: folder.path().into() };
        let said = why(&[mount("a")], None, folder.path());
        assert!(said.contains("gpu: No such file"), "{said}");
        std::fs::write(folder.path().join("gpu"), "").unwrap();
        let said = why(&[mount("a")], None, folder.path());
        assert!(said.contains("gpu: is not Campanile's"), "{said}");
        let said = why(&[mount("a")], Some("b"), folder.path());
        assert!(said.contains("says b; mounted are: a"), "{said}");
    }

    fn answer(status: u32, size: u32) -> Result<Submitted, TransportError> {
        let mut bytes = ReplyHeader { status, size }.as_bytes().to_vec();
        bytes.extend_from_slice(7_u64.as_bytes());
        read_answer("SUBMIT", &bytes)
    }

    #[test]
    fn answers_are_taken_whole_or_not_at_all() {
        assert_eq!(answer(0, 16).unwrap().sequence, 7);
        assert_eq!(answer(0, 24).unwrap().sequence, 7);
        assert!(matches!(answer(0, 15), Err(TransportError::BadAnswer { .. })));
        assert!(matches!(answer(1, 16), Err(TransportError::BadAnswer { .. })));
        let refused = answer(response::ERR_OUT_OF_MEMORY, 8).unwrap_err().to_string();
        assert_eq!(refused, "SUBMIT was refused: out of memory");
    }
}
