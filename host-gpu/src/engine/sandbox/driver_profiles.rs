//! What drivers of GPUs open and ask, as data: a file for each driver in `profiles/`, which say of themselves where they are from.
//!
//! ```text
//!   profiles/NAME.toml ─▶ parse ─▶ DriverProfile ─┬─ nodes, lists, reads ─▶ Landlock, before the driver is opened: by the names of
//!                                                 │                        libraries in driver manifests, where these are named
//!                                                 └─ requests ─▶ seccomp, after it was: by the driver's own name
//! ```
//!
//! A driver that no file names, or that is not known yet, has what all of them together have.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use serde::Deserialize;

/// The files, by name.
const FILES: [(&str, &str); 6] = [
    ("nvidia.toml", include_str!("profiles/nvidia.toml")),
    ("radv.toml", include_str!("profiles/radv.toml")),
    ("anv.toml", include_str!("profiles/anv.toml")),
    ("nouveau.toml", include_str!("profiles/nouveau.toml")),
    ("lavapipe.toml", include_str!("profiles/lavapipe.toml")),
    ("other.toml", include_str!("profiles/other.toml")),
];
/// Where nodes of devices are.
const DEV: &str = "/dev/";
/// In the name of a node: a decimal number.
const NUMBER: char = '#';

/// What a driver opens and asks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverProfile {
    /// Its names, as Vulkan has them (`driverName`).
    pub drivers: Vec<String>,
    /// File names of its library, as manifests have them.
    pub libraries: Vec<String>,
    /// Device nodes, which it reads, writes and asks; a `#` at the end of one is a decimal number.
    pub nodes: Vec<String>,
    /// Folders whose names it reads, and nothing in them.
    pub lists: Vec<PathBuf>,
    /// Files, and folders with all that is in them, that it reads.
    pub reads: Vec<PathBuf>,
    /// What it asks of its nodes by `ioctl`.
    pub requests: Vec<Requests>,
}

/// Requests of one family: bits 8 to 15 of what `ioctl` is given.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requests {
    /// The family.
    pub family: u8,
    /// Whose it is, in words.
    pub of: String,
    /// First and last of each range of numbers, bits 0 to 7 of the request; none for all of them.
    pub numbers: Option<Vec<[u8; 2]>>,
}

/// A file that is no profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("driver profile {file}, line {line}: {reason}")]
pub struct ProfileError {
    /// Its name.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// What is wrong there.
    pub reason: String,
}

/// Reads the text of a file.
///
/// # Errors
/// A field that is unknown, missing or of another type; a node that is not below `/dev`; a range that ends before it begins.
pub fn parse(file: &str, text: &str) -> Result<DriverProfile, ProfileError> {
    let line_of = |at: usize| 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
    let refused = |line: usize, reason: String| ProfileError { file: file.to_owned(), line, reason };
    let profile: DriverProfile = toml::from_str(text).map_err(|error| {
        refused(line_of(error.span().map_or(0, |span| span.start)), error.message().to_owned())
    })?;
    // The first line on which the words stand.
    let line_with = |words: &str| text.find(words).map_or(1, line_of);
    for node in &profile.nodes {
        let name = node.strip_prefix(DEV).unwrap_or_default();
        let fixed = name.strip_suffix(NUMBER).unwrap_or(name);
        if fixed.is_empty() || fixed.contains(NUMBER) || fixed.split('/').any(|part| part == "..") {
            let reason = format!("`{node}` is no node below {DEV}, with a {NUMBER} at its end at most");
            return Err(refused(line_with(node), reason));
        }
    }
    for Requests { of, numbers, .. } in &profile.requests {
        if let Some([first, last]) = numbers.iter().flatten().find(|[first, last]| first > last) {
            let reason = format!("{of}: the range from {first:#x} to {last:#x} ends before it begins");
            return Err(refused(line_with(of), reason));
        }
    }
    Ok(profile)
}

/// All that there are.
///
/// # Errors
/// None: they are read in tests.
pub fn all() -> Result<Vec<DriverProfile>, ProfileError> {
    FILES.into_iter().map(|(file, text)| parse(file, text)).collect()
}

/// Those of drivers whose libraries have these file names; all, where there is none, or one that no profile has.
///
/// # Errors
/// As [`all`].
pub fn of_libraries(libraries: &[String]) -> Result<Vec<DriverProfile>, ProfileError> {
    let all = all()?;
    let has = |profile: &DriverProfile, library: &String| profile.libraries.contains(library);
    if libraries.is_empty() || !libraries.iter().all(|library| all.iter().any(|it| has(it, library))) {
        return Ok(all);
    }
    Ok(all.into_iter().filter(|it| libraries.iter().any(|library| has(it, library))).collect())
}

/// What a driver of this name asks; what any does, where no profile has the name.
///
/// # Errors
/// As [`all`].
pub fn requests_of(driver: &str) -> Result<Vec<Requests>, ProfileError> {
    let all = all()?;
    let known = all.iter().find(|profile| profile.drivers.iter().any(|name| name == driver));
    Ok(known
        .map_or_else(|| all.iter().flat_map(|it| it.requests.clone()).collect(), |it| it.requests.clone()))
}

impl DriverProfile {
    /// The nodes that there are, where `/dev` is this folder.
    pub fn nodes_below(&self, dev: &Path) -> Vec<PathBuf> {
        let names = self.nodes.iter().filter_map(|node| node.strip_prefix(DEV));
        names.flat_map(|name| nodes_called(dev, name)).collect()
    }
}

/// The nodes of a name, which may end with a number.
fn nodes_called(dev: &Path, name: &str) -> Vec<PathBuf> {
    let Some(start) = name.strip_suffix(NUMBER) else {
        return Some(dev.join(name)).filter(|path| path.exists()).into_iter().collect();
    };
    let (folder, start) =
        start.rsplit_once('/').map_or((dev.to_owned(), start), |(folder, start)| (dev.join(folder), start));
    let is_one = |name: &str| {
        name.strip_prefix(start)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let found = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_one));
    found.map(|entry| entry.path()).collect()
}

impl Requests {
    /// Masks and values of the lower 16 bits of all of them: a request is one where it has the value under a mask.
    pub fn masks(&self) -> Vec<(u64, u64)> {
        let family = u64::from(self.family) << 8;
        let Some(numbers) = &self.numbers else { return vec![(0xff00, family)] };
        let blocks = numbers.iter().flat_map(|[first, last]| blocks(u64::from(*first), u64::from(*last)));
        blocks.map(|(start, length)| (0xffff & !(length - 1), family | start)).collect()
    }
}

/// A range of numbers as blocks whose lengths are powers of two, of which their starts are multiples.
fn blocks(mut first: u64, last: u64) -> Vec<(u64, u64)> {
    let mut blocks = Vec::new();
    while first <= last {
        let mut length = 1;
        while first.is_multiple_of(2 * length) && first + 2 * length - 1 <= last {
            length *= 2;
        }
        blocks.push((first, length));
        first += length;
    }
    blocks
}

#[cfg(test)]
mod tests;
