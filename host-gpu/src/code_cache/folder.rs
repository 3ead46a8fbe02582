//! The folder in which a driver makes the files of its cache, while it opens.
//!
//! Files that have no name any more are found by nothing, and end with the process. An engine that has restricted itself cannot remove
//! a folder from the one that holds it: so a thread that was started before does. A process that is killed while its driver opens
//! leaves its folder behind, of 1.3 MB. The next process of the same user removes it.

use std::fs;
use std::fs::DirBuilder;
use std::fs::File;
use std::fs::OpenOptions;
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::rand::GetRandomFlags;
use xxhash_rust::xxh3::Xxh3;

use super::files::Files;

/// By which the daemon names the folder to an engine, and Mesa finds it.
pub const VARIABLE: &str = "MESA_SHADER_CACHE_DIR";
/// Where such folders are: files there are memory.
const PLACE: &str = "/dev/shm";
const PREFIX: &str = "campanile-";
/// A folder that is as old as that is no process's any more that opens its driver.
const OLD: Duration = Duration::from_secs(300);
/// The name of the data file, in a folder for driver and device.
const DATA: &str = "foz_cache.foz";
const INDEX: &str = "foz_cache_idx.foz";
/// The device of Mesa's driver of CPUs.
const CPU: &str = "llvmpipe";
/// Folders below it: Mesa's, one for the driver, one for the device.
const DEPTH: usize = 3;

/// A folder, until it is dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    remover: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

/// What a driver has made in it.
#[derive(Debug)]
pub struct Found {
    /// The files.
    pub files: Files,
    /// The numbers of the driver's own descriptors of data and index.
    pub drivers: [i32; 2],
    /// That of driver and device: code of another one is not to be run.
    pub identity: u64,
}

impl Folder {
    /// Makes it, for this user alone. Call it before the calling thread is restricted.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make(path: &Path) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(path)?;
        let (remove, removed) = mpsc::channel();
        let goes = path.to_owned();
        let remover = thread::Builder::new().name("cache-folder".to_owned()).spawn(move || {
            goes.parent().into_iter().for_each(sweep);
            // Told by the end of the channel.
            let _told = removed.recv();
            if let Err(error) = fs::remove_dir_all(&goes) {
                log::debug!("{} is left: {error}", goes.display());
            }
        });
        match remover {
            Ok(thread) => Ok(Self { path: path.to_owned(), remover: Some((remove, thread)) }),
            Err(error) => {
                fs::remove_dir(path)?;
                Err(error)
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the driver of CPUs made in it, or that of GPUs. `device` says which device and driver that is, in more words than the names
    /// of folders: a driver of CPUs has one folder, however long the vectors are that it compiles for.
    ///
    /// # Errors
    /// None has, or several drivers of GPUs have; files cannot be read.
    pub fn find(&self, is_cpu: bool, device: &str) -> io::Result<Found> {
        let mut folders = Vec::new();
        list(&self.path, DEPTH, &mut folders);
        folders.retain(|folder| folder.ends_with(CPU) == is_cpu);
        let [folder] = folders.as_slice() else {
            let text = format!("the driver has made {} caches in a file each", folders.len());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        };
        let (data, index) = (folder.join(DATA), folder.join(INDEX));
        let open = |path: &Path| OpenOptions::new().read(true).append(true).open(path);
        let drivers = [number_of(&data)?, number_of(&index)?];
        let files = Files::new(open(&data)?, open(&index)?)?;
        let name = folder.strip_prefix(&self.path).unwrap_or(folder);
        let mut identity = Xxh3::new();
        identity.write(name.as_os_str().as_encoded_bytes());
        identity.write(&[0]);
        identity.write(device.as_bytes());
        // Zero is a log that no process has claimed.
        Ok(Found { files, drivers, identity: identity.finish().max(1) })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some((told, thread)) = self.remover.take() {
            drop(told);
            let _joined = thread.join();
        }
    }
}

/// A name for a folder that is not there.
///
/// # Errors
/// The kernel has no random numbers.
pub fn fresh() -> io::Result<PathBuf> {
    let mut number = [0; 8];
    let _whole = rustix::rand::getrandom(&mut number, GetRandomFlags::empty())?;
    Ok(Path::new(PLACE).join(format!("{PREFIX}{:016x}", u64::from_ne_bytes(number))))
}

/// Removes what processes of this user have left.
fn sweep(place: &Path) {
    let own = rustix::process::geteuid().as_raw();
    let is_left = |entry: &fs::DirEntry| {
        let is_named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let is_old = |metadata: &fs::Metadata| {
            let age = metadata.modified().ok().and_then(|modified| modified.elapsed().ok());
            metadata.is_dir() && metadata.uid() == own && age.is_some_and(|age| age > OLD)
        };
        is_named && entry.metadata().is_ok_and(|metadata| is_old(&metadata))
    };
    for entry in fs::read_dir(place).into_iter().flatten().flatten().filter(is_left) {
        if let Err(error) = fs::remove_dir_all(entry.path()) {
            log::debug!("{} is left: {error}", entry.path().display());
        }
    }
}

/// The folders below that have data.
fn list(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    if folder.join(DATA).is_file() {
        found.push(folder.to_owned());
    }
    if depth == 0 {
        return;
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list(&entry.path(), depth - 1, found);
        }
    }
}

/// The number of this process's descriptor of a file.
fn number_of(file: &Path) -> io::Result<i32> {
    let is_it = |entry: &fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|target| target == file);
    let entry = fs::read_dir("/proc/self/fd")?.flatten().find(is_it);
    let number = entry.and_then(|entry| entry.file_name().to_str()?.parse().ok());
    number.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{} is not open", file.display())))
}

/// The file that a driver's descriptors become when its cache ends: it can neither be locked nor read.
///
/// # Errors
/// It cannot be opened.
pub fn closed() -> io::Result<File> {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open("/proc/self", flags, rustix::fs::Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::time::Duration;
    use std::time::SystemTime;

    use super::CPU;
    use super::DATA;
    use super::Folder;
    use super::INDEX;
    use super::OLD;
    use super::PLACE;
    use super::fresh;

    const HEAD: &[u8] = b"\x81FOSSILIZEDB\0\0\0\x06";

    /// What a driver makes for a device; its own descriptors.
    fn driver(folder: &Folder, device: &str) -> [File; 2] {
        let own = folder.path().join("mesa_shader_cache_sf/driver").join(device);
        fs::create_dir_all(&own).unwrap();
        [DATA, INDEX].map(|name| {
            fs::write(own.join(name), HEAD).unwrap();
            File::open(own.join(name)).unwrap()
        })
    }

    fn made() -> (tempfile::TempDir, Folder) {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().canonicalize().unwrap().join("folder");
        (above, Folder::make(&path).unwrap())
    }

    #[test]
    fn what_a_driver_has_made_is_found_and_nothing_is_left() {
        let (above, folder) = made();
        let path = folder.path().to_owned();
        assert!(Folder::make(&path).is_err(), "it is another's");
        assert!(folder.find(true, "a device").is_err(), "nothing was made");
        let [data, index] = driver(&folder, CPU);
        let found = folder.find(true, "a device").unwrap();
        assert_eq!(found.drivers, [data.as_raw_fd(), index.as_raw_fd()]);
        assert!(folder.find(false, "a device").is_err(), "none of a GPU's driver");
        drop(folder);
        assert!(!path.exists());
        drop(above);
    }

    #[test]
    fn drivers_of_cpus_and_of_gpus_are_told_apart_and_two_of_gpus_are_not() {
        let (_above, folder) = made();
        let cpu = driver(&folder, CPU);
        let gpu = driver(&folder, "another");
        let [of_cpu, of_gpu] = [true, false].map(|is_cpu| folder.find(is_cpu, "a device").unwrap());
        assert_eq!((of_cpu.drivers[0], of_gpu.drivers[0]), (cpu[0].as_raw_fd(), gpu[0].as_raw_fd()));
        assert_ne!(of_cpu.identity, of_gpu.identity);
        assert_eq!(folder.find(true, "a device").unwrap().identity, of_cpu.identity);
        let other = folder.find(true, "another").unwrap();
        assert_ne!(other.identity, of_cpu.identity, "the same folder, and other vectors");
        let _third = driver(&folder, "a third");
        assert!(folder.find(false, "a device").is_err());
        assert!(folder.find(true, "a device").is_ok());
    }

    #[test]
    fn what_a_process_has_left_is_removed_by_the_next_one_and_nothing_else() {
        let above = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - OLD - Duration::from_secs(60);
        let at = |name: &str, modified: SystemTime| {
            let path = above.path().join(name);
            fs::create_dir_all(path.join("below")).unwrap();
            File::open(&path).unwrap().set_modified(modified).unwrap();
            path
        };
        let (left, other) = (at("campanile-1", old), at("other", old));
        let young = at("campanile-2", SystemTime::now());
        drop(Folder::make(&above.path().join("folder")).unwrap());
        assert!(!left.exists() && other.exists() && young.exists());
    }

    #[test]
    fn a_name_is_for_one_folder() {
        let [first, second] = [(), ()].map(|()| fresh().unwrap());
        assert_ne!(first, second);
        assert!(first.starts_with(PLACE) && !first.exists());
    }

    #[test]
    fn a_cache_that_is_not_open_in_this_process_is_none() {
        let (_above, folder) = made();
        drop(driver(&folder, CPU));
        assert!(folder.find(true, "a device").is_err());
    }
}
