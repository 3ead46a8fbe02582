//! Where this process sees virtiofs file systems.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The kernel's list of this process's mounts (`proc_pid_mountinfo(5)`).
pub(super) const MOUNT_INFO: &str = "/proc/self/mountinfo";
/// The type of file system that the stock driver serves.
const TYPE: &[u8] = b"virtiofs";

/// One virtiofs file system that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// What the VMM called it.
    pub(super) tag: String,
    /// Which of its files is mounted: `/`, or one file of it by a bind mount.
    pub(super) root: PathBuf,
    /// Where.
    pub(super) point: PathBuf,
}

impl Mount {
    /// The command channel of this mount, as this process sees it.
    pub(super) fn channel(&self, name: &str) -> PathBuf {
        if self.root == std::path::Path::new("/") { self.point.join(name) } else { self.point.clone() }
    }
}

/// The virtiofs mounts of a mount list, in its order. Lines of another shape are passed over.
pub(super) fn virtiofs(list: &[u8]) -> Vec<Mount> {
    list.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// `36 35 98:0 /root /point options [optional fields…] - type source super-options`
fn mount(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-").filter(|dash| *dash >= 6)?;
    if *fields.get(dash + 1)? != TYPE {
        return None;
    }
    let tag = unescape(fields.get(dash + 2)?);
    Some(Mount {
        tag: String::from_utf8_lossy(&tag).into_owned(),
        root: OsString::from_vec(unescape(fields.get(3)?)).into(),
        point: OsString::from_vec(unescape(fields.get(4)?)).into(),
    })
}

/// Space, tab, line feed, backslash and `#` come as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let escaped = (*first == b'\\').then(|| behind.first_chunk::<3>()).flatten().and_then(octal);
        match escaped {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

fn octal(digits: &[u8; 3]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::any;
    use proptest::proptest;

    use super::Mount;
    use super::virtiofs;

    fn one(line: &str) -> Mount {
        let mut found = virtiofs(line.as_bytes());
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[test]
    fn the_tag_and_the_place_are_read_from_a_mount_list() {
        let list = b"\
            22 27 0:20 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw\n\
            27 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro\n\
            61 27 0:44 / /run/campanile rw,relatime shared:310 - virtiofs gpu0 rw\n";
        let mount = Mount { tag: "gpu0".into(), root: "/".into(), point: "/run/campanile".into() };
        assert_eq!(virtiofs(list), [mount]);
    }

    #[test]
    fn optional_fields_may_be_missing_or_many() {
        assert_eq!(one("61 27 0:44 / /a rw - virtiofs x rw").tag, "x");
        assert_eq!(one("61 27 0:44 / /a rw shared:3 master:4 propagate_from:2 - virtiofs x rw").tag, "x");
        assert_eq!(one("61 27 0:44 / /a rw unbindable - virtiofs x rw").point, Path::new("/a"));
    }

    #[test]
    fn escaped_characters_are_read_as_they_are() {
        let mount = one(r"61 27 0:44 / /a\040b\011c\134d\043 rw - virtiofs my\040gpu rw");
        assert_eq!(mount.point, Path::new("/a b\tc\\d#"));
        assert_eq!(mount.tag, "my gpu");
        assert_eq!(one(r"1 2 0:4 / /a\04 rw - virtiofs x rw").point, Path::new(r"/a\04"));
        assert_eq!(one(r"1 2 0:4 / /a\777 rw - virtiofs x rw").point, Path::new(r"/a\777"));
    }

    #[test]
    fn a_file_that_is_mounted_by_itself_is_the_channel() {
        assert_eq!(one("1 2 0:4 / /mnt rw - virtiofs x rw").channel("gpu"), Path::new("/mnt/gpu"));
        assert_eq!(one("1 2 0:4 /gpu /dev/gpu rw - virtiofs x rw").channel("gpu"), Path::new("/dev/gpu"));
    }

    #[test]
    fn what_is_no_mount_of_virtiofs_is_passed_over() {
        let list = b"\n61 27 0:44 / /a rw - \n- virtiofs x rw\n61 27 0:44 / - virtiofs x rw\n1 - virtiofs\n";
        assert_eq!(virtiofs(list), []);
        assert_eq!(virtiofs(b"61 27 0:44 / /virtiofs rw - ext4 virtiofs rw"), []);
    }

    proptest! {
        #[test]
        fn no_list_is_too_strange(list in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _mounts = virtiofs(&list);
        }
    }
}
