//! Which files an engine can open.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

use landlock::ABI;
use landlock::Access;
use landlock::AccessFs;
use landlock::AccessNet;
use landlock::BitFlags;
use landlock::Ruleset;
use landlock::RulesetAttr;
use landlock::RulesetCreatedAttr;
use landlock::RulesetStatus;
use landlock::Scope;
use landlock::path_beneath_rules;
use serde::Deserialize;

use super::error::SandboxError;

/// The newest Landlock that was tested. Older kernels enforce what they know of it: files from 5.13 on, TCP from
/// 6.7, signals and abstract sockets from 6.12.
const TESTED: ABI = ABI::V7;

/// Libraries of the system.
const LIBRARIES: &[&str] = &["/usr", "/lib", "/lib64"];

/// What loaders and drivers read: their settings, the machine and this process.
const READ: &[&str] = &[
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/vulkan",
    "/etc/drirc",
    "/etc/nvidia",
    "/sys",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/devices",
    "/proc/modules",
    "/proc/driver/nvidia",
];

/// GPUs under `/dev`, by the start of their names.
const DEVICES: &[&str] = &["dri", "nvidia", "kfd", "mali"];

/// What an engine opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// No file at all.
    Nothing,
    /// A Vulkan driver, and what that opens.
    Driver,
}

/// Leaves no file to an engine that copies by itself, and to one with a driver only what that loads and the nodes of GPUs. What
/// is open already stays usable. Call it before the first thread: it binds the calling one and those it starts. Below `own`, a folder
/// of this process, everything may be done as long as that is there.
pub fn restrict_files(needs: Needs, own: Option<&Path>) -> Result<(), SandboxError> {
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(TESTED))?
        .handle_access(AccessNet::from_all(TESTED))?
        .scope(Scope::from_all(TESTED))?
        .create()?;
    let rules = match needs {
        Needs::Nothing => rules,
        Needs::Driver => {
            let load: BitFlags<AccessFs> = AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir;
            let read = AccessFs::ReadFile | AccessFs::ReadDir;
            let use_device = read | AccessFs::WriteFile | AccessFs::IoctlDev;
            let drivers = Drivers::of_environment();
            // Paths that do not exist are left out.
            rules
                .add_rules(path_beneath_rules(LIBRARIES, load))?
                .add_rules(path_beneath_rules(drivers.libraries, load))?
                .add_rules(path_beneath_rules(drivers.manifests, read))?
                .add_rules(path_beneath_rules(READ, read))?
                .add_rules(path_beneath_rules(devices(Path::new("/dev")), use_device))?
                .add_rules(path_beneath_rules(own, AccessFs::from_all(TESTED)))?
        }
    };
    match rules.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err(SandboxError::NoLandlock),
    }
}

fn devices(folder: &Path) -> Vec<PathBuf> {
    let is_device = |name: &str| DEVICES.iter().any(|start| name.starts_with(start));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_device))
        .map(|entry| entry.path())
        .collect()
}

/// Drivers and layers outside the system's folders.
#[derive(Debug, Default, PartialEq, Eq)]
struct Drivers {
    manifests: Vec<PathBuf>,
    libraries: Vec<PathBuf>,
}

/// What a manifest says of interest here.
#[derive(Deserialize)]
struct Manifest {
    #[serde(rename = "ICD", alias = "layer")]
    driver: ManifestDriver,
}

#[derive(Deserialize)]
struct ManifestDriver {
    library_path: PathBuf,
}

impl Drivers {
    fn of_environment() -> Self {
        Self::named_by(&|variable| env::var_os(variable))
    }

    fn named_by(variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let paths = |name| {
            variable(name).map(|value| env::split_paths(&value).collect::<Vec<_>>()).unwrap_or_default()
        };
        let mut drivers = Self::default();
        for named in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_LAYER_PATH"].into_iter().flat_map(paths) {
            for manifest in manifests_at(&named) {
                drivers.libraries.extend(library_folder(&manifest));
            }
            drivers.manifests.push(named);
        }
        drivers.libraries.extend(paths("LD_LIBRARY_PATH"));
        // An empty entry means the working folder, where no driver lies.
        drivers.libraries.retain(|path| path.is_absolute());
        drivers.manifests.retain(|path| path.is_absolute());
        for paths in [&mut drivers.libraries, &mut drivers.manifests] {
            paths.sort();
            paths.dedup();
        }
        drivers
    }
}

/// The manifest itself, or those of a folder.
fn manifests_at(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return vec![path.to_owned()] };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect()
}

/// Where the driver's library and those next to it are, unless the loader searches for it. A manifest that cannot
/// be read is the Vulkan loader's to complain about.
fn library_folder(manifest: &Path) -> Option<PathBuf> {
    let Manifest { driver } = serde_json::from_slice(&fs::read(manifest).ok()?).ok()?;
    let folder = driver.library_path.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    Some(manifest.parent()?.join(folder))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test stops here")]

    use super::*;

    #[test]
    fn folders_of_libraries_are_found_through_manifests() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (name, library) in
            [("a.json", "lib/libvulkan_a.so"), ("b.json", "/opt/b/libb.so"), ("c.json", "libc.so")]
        {
            fs::write(at(name), format!(r#"{{"ICD": {{"library_path": "{library}"}}}}"#)).unwrap();
        }
        fs::write(at("broken.json"), "{").unwrap();
        let list = env::join_paths([at("a.json"), at("b.json"), at("c.json"), at("broken.json")]).unwrap();
        let drivers = Drivers::named_by(&|name| match name {
            "VK_DRIVER_FILES" => Some(list.clone()),
            "VK_ICD_FILENAMES" => Some(at("a.json").into()),
            "LD_LIBRARY_PATH" => Some("/opt/lib::relative".into()),
            _ => None,
        });
        let mut libraries = vec!["/opt/b".into(), "/opt/lib".into(), at("lib")];
        libraries.sort();
        assert_eq!(drivers.libraries, libraries);
        assert_eq!(drivers.manifests, [at("a.json"), at("b.json"), at("broken.json"), at("c.json")]);
        assert_eq!(Drivers::named_by(&|_| None), Drivers::default());
        // A folder of layers.
        fs::create_dir(at("layers")).unwrap();
        fs::write(at("layers/e.json"), r#"{"layer": {"library_path": "../e/libe.so"}}"#).unwrap();
        let layers = Drivers::named_by(&|name| (name == "VK_LAYER_PATH").then(|| at("layers").into()));
        assert_eq!(layers.libraries, [at("layers/../e")]);
        assert_eq!(layers.manifests, [at("layers")]);
    }

    #[test]
    fn only_gpus_are_devices() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["dri", "nvidiactl", "nvidia0", "kfd", "sda", "mem", "kvm", "null"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let mut found = devices(folder.path());
        found.sort();
        assert_eq!(found, ["dri", "kfd", "nvidia0", "nvidiactl"].map(|name| folder.path().join(name)));
    }
}
