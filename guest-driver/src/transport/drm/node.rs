//! Which render node is Campanile's.

use std::fs;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;

use campanile_protocol::capset::CAPSET_ID;
use campanile_protocol::virtio_gpu::DEVICE_ID;
use rustix::io::Errno;

use super::ioctl;
use super::wire;
use crate::transport::error::TransportError;

/// Where the guest's kernel puts its render nodes.
const FOLDER: &str = "/dev/dri";

/// Where it lists virtio devices.
const BUS: &str = "/sys/bus/virtio/devices";

/// What to do about a guest without render node, from the virtio devices that it has.
fn bus_advice(bus: &Path) -> String {
    let entries = fs::read_dir(bus).into_iter().flatten().flatten();
    let ids: Vec<u32> = entries
        .filter_map(|entry| fs::read_to_string(entry.path().join("device")).ok())
        .filter_map(|id| u32::from_str_radix(id.trim().trim_start_matches("0x"), 16).ok())
        .collect();
    if ids.contains(&DEVICE_ID) {
        return format!(
            "a virtio device of id {DEVICE_ID} is there, but no driver has it: load virtio_gpu (modprobe virtio_gpu), \
             or see in dmesg why it refused the device (\"failed to find virt queues\": the VMM needs num_vqs=2)"
        );
    }
    let found = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let found = if found.is_empty() { "none".to_owned() } else { found };
    format!(
        "virtio devices of this VM: {found}; Campanile's needs virtio-id={DEVICE_ID} on the VMM's command line"
    )
}

/// An opened render node of a Campanile device.
#[derive(Debug)]
pub struct RenderNode {
    pub(super) file: File,
    path: PathBuf,
    host_visible: bool,
}

/// What a node is, apart from its name, which the next device may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeIdentity {
    path: PathBuf,
    inode: u64,
}

impl NodeIdentity {
    /// Of an open node.
    pub(super) fn of(node: &RenderNode) -> Option<Self> {
        Some(Self { path: node.path.clone(), inode: node.file.metadata().ok()?.ino() })
    }

    fn is_at(&self, path: &Path) -> bool {
        self.path == path && fs::metadata(path).is_ok_and(|metadata| metadata.ino() == self.inode)
    }
}

impl RenderNode {
    /// Whether its device was unplugged.
    pub(super) fn is_gone(&self) -> bool {
        ioctl::parameter(self.file.as_fd(), wire::PARAM_HOST_VISIBLE) == Err(Errno::NODEV)
    }

    /// The first one that is Campanile's, but for one that was left, which is not even opened.
    pub(super) fn find_other(left: Option<&NodeIdentity>) -> Option<Self> {
        let mut paths = Self::paths(Path::new(FOLDER));
        paths.retain(|path| left.is_none_or(|left| !left.is_at(path)));
        paths.iter().find_map(|path| Self::open(path).ok())
    }

    fn paths(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.retain(|path| path.to_string_lossy().contains("/renderD"));
        paths.sort();
        paths
    }

    /// The first one that offers capability set 24.
    ///
    /// # Errors
    /// `NoRenderNode`, which says of every node why it is not the one.
    pub fn find() -> Result<Self, TransportError> {
        Self::find_in(Path::new(FOLDER))
    }

    /// The one at `path`.
    ///
    /// # Errors
    /// `NoRenderNode`, where it is not Campanile's.
    pub fn at(path: &Path) -> Result<Self, TransportError> {
        Self::open(path)
            .map_err(|reason| TransportError::NoRenderNode { why: format!("{}: {reason}", path.display()) })
    }

    fn find_in(folder: &Path) -> Result<Self, TransportError> {
        let paths = Self::paths(folder);
        if paths.is_empty() {
            let why = format!("{} has none; {}", folder.display(), bus_advice(Path::new(BUS)));
            return Err(TransportError::NoRenderNode { why });
        }
        let mut reasons = Vec::new();
        for path in paths {
            match Self::open(&path) {
                Ok(node) => return Ok(node),
                Err(reason) => reasons.push(format!("{}: {reason}", path.display())),
            }
        }
        Err(TransportError::NoRenderNode { why: reasons.join("; ") })
    }

    /// Opens this node, or says why it is not one of Campanile.
    fn open(path: &Path) -> Result<Self, String> {
        let file =
            OpenOptions::new().read(true).write(true).open(path).map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    "permission denied; add this user to the node's group, render as a rule".to_owned()
                }
                _ => error.to_string(),
            })?;
        let node = file.as_fd();
        let name = ioctl::driver_name(node).map_err(|errno| format!("is no DRM device ({errno})"))?;
        if name != "virtio_gpu" {
            return Err(format!("belongs to the driver {name}"));
        }
        let parameter = |param| match ioctl::parameter(node, param) {
            Ok(value) => Ok(value),
            Err(Errno::INVAL) => Ok(0),
            Err(errno) => Err(format!("the driver does not answer ({errno})")),
        };
        if parameter(wire::PARAM_CONTEXT_INIT)? == 0 || parameter(wire::PARAM_RESOURCE_BLOB)? == 0 {
            let why =
                "the driver, or the device, has no blobs or context types; Linux 5.16 or newer is needed";
            return Err(why.to_owned());
        }
        if parameter(wire::PARAM_SUPPORTED_CAPSETS)? & (1 << CAPSET_ID) == 0 {
            return Err("a virtio-gpu device without capability set 24: not Campanile's".to_owned());
        }
        let host_visible = parameter(wire::PARAM_HOST_VISIBLE)? != 0;
        Ok(Self { path: path.to_owned(), file, host_visible })
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the VM has a window onto video memory.
    pub fn is_host_visible(&self) -> bool {
        self.host_visible
    }
}

#[cfg(test)]
mod tests {
    use super::RenderNode;
    use super::TransportError;
    use super::bus_advice;

    #[test]
    fn a_guest_without_node_is_told_what_to_change() {
        let bus = tempfile::tempdir().unwrap();
        assert!(bus_advice(bus.path()).contains("virtio-id=16"));
        let device = bus.path().join("virtio0");
        std::fs::create_dir(&device).unwrap();
        std::fs::write(device.join("device"), "0x0011\n").unwrap();
        assert!(bus_advice(bus.path()).contains("17; Campanile's needs virtio-id=16"));
        std::fs::write(device.join("device"), "0x0010\n").unwrap();
        assert!(bus_advice(bus.path()).contains("modprobe virtio_gpu"));
    }

    #[test]
    fn each_node_that_is_not_the_one_is_named_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let message = |found: Result<RenderNode, TransportError>| found.unwrap_err().to_string();
        assert!(message(RenderNode::find_in(folder.path())).contains("has none"));
        std::fs::write(folder.path().join("renderD128"), "").unwrap();
        let said = message(RenderNode::find_in(folder.path()));
        assert!(said.contains("renderD128: is no DRM device"), "{said}");
    }
}
