//! Memory that the VMM gave to VM and daemon: the BAR of an `ivshmem-plain` device.

use std::fs;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use vm_memory::FileOffset;
use vm_memory::MmapRegion;

/// Where the guest's kernel lists PCI devices.
pub(super) const BUS: &str = "/sys/bus/pci/devices";
/// Vendor and device id of `ivshmem-plain`.
const IDS: [&str; 2] = ["0x1af4", "0x1110"];
/// Names of BAR 2, the better one first.
const BARS: [&str; 2] = ["resource2_wc", "resource2"];

/// A BAR that this process can map.
#[derive(Debug)]
pub(super) struct Aperture {
    region: Arc<MmapRegion>,
    path: PathBuf,
}

impl Aperture {
    /// The first of the VM's that has so many bytes.
    ///
    /// # Errors
    /// For each device of this kind why it is not the one: another size, no permission, kernel lockdown.
    pub(super) fn find(bus: &Path, bytes: u64) -> Result<Self, String> {
        let mut reasons = Vec::new();
        let mut folders: Vec<PathBuf> = fs::read_dir(bus)
            .map(|entries| entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect())
            .unwrap_or_default();
        folders.sort();
        for folder in folders.iter().filter(|folder| is_ivshmem(folder)) {
            for name in BARS {
                let path = folder.join(name);
                match open(&path, bytes) {
                    Ok(region) => return Ok(Self { region: Arc::new(region), path }),
                    Err(reason) => reasons.push(format!("{}: {reason}", path.display())),
                }
            }
        }
        if reasons.is_empty() {
            return Err("this VM has no ivshmem-plain device".to_owned());
        }
        Err(reasons.join("; "))
    }

    /// The whole of it.
    pub(super) fn region(&self) -> &Arc<MmapRegion> {
        &self.region
    }

    /// Its name.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

fn is_ivshmem(folder: &Path) -> bool {
    let reads = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    [reads("vendor").trim(), reads("device").trim()] == IDS
}

fn open(path: &Path, bytes: u64) -> Result<MmapRegion, String> {
    let file: File =
        OpenOptions::new().read(true).write(true).open(path).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "permission denied (give this user the file, or none)".to_owned()
            }
            _ => error.to_string(),
        })?;
    let there = file.metadata().map_err(|error| error.to_string())?.len();
    if there != bytes {
        return Err(format!("has {there} bytes, and the daemon's has {bytes}"));
    }
    let length = usize::try_from(bytes).map_err(|error| error.to_string())?;
    MmapRegion::from_file(FileOffset::new(file, 0), length).map_err(|error| format!("is not mapped: {error}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Aperture;

    fn device(bus: &Path, name: &str, ids: [&str; 2], bytes: u64) {
        let folder = bus.join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("vendor"), format!("{}\n", ids[0])).unwrap();
        std::fs::write(folder.join("device"), format!("{}\n", ids[1])).unwrap();
        std::fs::File::create(folder.join("resource2")).unwrap().set_len(bytes).unwrap();
    }

    #[test]
    fn the_bar_of_the_right_size_is_found_among_others() {
        let bus = tempfile::tempdir().unwrap();
        assert!(Aperture::find(bus.path(), 8192).unwrap_err().contains("no ivshmem-plain"));
        device(bus.path(), "0000:00:01.0", ["0x8086", "0x1110"], 8192);
        device(bus.path(), "0000:00:02.0", ["0x1af4", "0x1110"], 4096);
        let said = Aperture::find(bus.path(), 8192).unwrap_err();
        assert!(said.contains("00:02.0/resource2: has 4096 bytes, and the daemon's has 8192"), "{said}");
        device(bus.path(), "0000:00:03.0", ["0x1af4", "0x1110"], 8192);
        let found = Aperture::find(bus.path(), 8192).unwrap();
        assert_eq!(found.region().size(), 8192);
        assert!(found.path().ends_with("0000:00:03.0/resource2"));
        assert!(Aperture::find(Path::new("/no/such/bus"), 8192).is_err());
    }
}
