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

use super::driver_profiles::of_libraries;
use super::error::SandboxError;

/// The newest Landlock that was tested. Older kernels enforce what they know of it: files from 5.13 on, TCP from
/// 6.7, signals and abstract sockets from 6.12.
const TESTED: ABI = ABI::V7;

/// Libraries of the system.
const LIBRARIES: &[&str] = &["/usr", "/lib", "/lib64"];

/// What loaders and all drivers read: their settings, the machine and this process.
const READ: &[&str] = &[
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/vulkan",
    "/etc/drirc",
    "/sys",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
];

/// What an engine opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// No file at all.
    Nothing,
    /// A Vulkan driver, and what that opens.
    Driver,
}

/// Leaves no file to an engine that copies by itself, and to one with a driver only what that loads, and what its [profile](super::driver_profiles) names. What
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
            let profiles = of_libraries(&drivers.names)?;
            let dev = Path::new("/dev");
            let nodes = profiles.iter().flat_map(|profile| profile.nodes_below(dev));
            let lists = profiles.iter().flat_map(|profile| &profile.lists);
            let reads = profiles.iter().flat_map(|profile| &profile.reads);
            // Paths that do not exist are left out.
            rules
                .add_rules(path_beneath_rules(LIBRARIES, load))?
                .add_rules(path_beneath_rules(drivers.libraries, load))?
                .add_rules(path_beneath_rules(drivers.manifests, read))?
                .add_rules(path_beneath_rules(READ, read))?
                .add_rules(path_beneath_rules(reads, read))?
                .add_rules(path_beneath_rules(lists, AccessFs::ReadDir))?
                .add_rules(path_beneath_rules(nodes, use_device))?
                .add_rules(path_beneath_rules(own, AccessFs::from_all(TESTED)))?
        }
    };
    match rules.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err(SandboxError::NoLandlock),
    }
}

/// Drivers and layers that are named, wherever they lie.
#[derive(Debug, Default, PartialEq, Eq)]
struct Drivers {
    manifests: Vec<PathBuf>,
    libraries: Vec<PathBuf>,
    /// File names of the libraries of drivers, empty where a manifest does not say; none where the loader looks for drivers itself.
    names: Vec<String>,
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
        for variable in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_LAYER_PATH"] {
            for named in paths(variable) {
                for manifest in manifests_at(&named) {
                    let library = library_of(&manifest);
                    drivers.libraries.extend(library.as_ref().and_then(|path| folder_of(&manifest, path)));
                    if variable != "VK_LAYER_PATH" {
                        drivers.names.push(name_of(library.as_deref()));
                    }
                }
                drivers.manifests.push(named);
            }
        }
        drivers.libraries.extend(paths("LD_LIBRARY_PATH"));
        // An empty entry means the working folder, where no driver lies.
        drivers.libraries.retain(|path| path.is_absolute());
        drivers.manifests.retain(|path| path.is_absolute());
        for paths in [&mut drivers.libraries, &mut drivers.manifests] {
            paths.sort();
            paths.dedup();
        }
        drivers.names.sort();
        drivers.names.dedup();
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

/// The library that a manifest names. One that cannot be read is the Vulkan loader's to complain about.
fn library_of(manifest: &Path) -> Option<PathBuf> {
    let Manifest { driver } = serde_json::from_slice(&fs::read(manifest).ok()?).ok()?;
    Some(driver.library_path)
}

/// Where a library and those next to it are, unless the loader searches for it.
fn folder_of(manifest: &Path, library: &Path) -> Option<PathBuf> {
    let folder = library.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    Some(manifest.parent()?.join(folder))
}

/// A name that no profile has, where there is none.
fn name_of(library: Option<&Path>) -> String {
    library.and_then(Path::file_name).map_or_else(String::new, |name| name.to_string_lossy().into_owned())
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
        assert_eq!(drivers.names, ["", "libb.so", "libc.so", "libvulkan_a.so"]);
        assert_eq!(Drivers::named_by(&|_| None), Drivers::default());
        // A folder of layers.
        fs::create_dir(at("layers")).unwrap();
        fs::write(at("layers/e.json"), r#"{"layer": {"library_path": "../e/libe.so"}}"#).unwrap();
        let layers = Drivers::named_by(&|name| (name == "VK_LAYER_PATH").then(|| at("layers").into()));
        assert_eq!(layers.libraries, [at("layers/../e")]);
        assert_eq!(layers.manifests, [at("layers")]);
        assert!(layers.names.is_empty(), "a layer is no driver");
    }
}
