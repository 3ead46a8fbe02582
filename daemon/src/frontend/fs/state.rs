//! What the fs front keeps.

use std::collections::BTreeMap;
use std::io;

use rustix::rand::GetRandomFlags;
use rustix::rand::getrandom;
use zerocopy::IntoBytes;

use super::aperture::Aperture;
use super::blobs::Blobs;
use super::files::Files;
use super::parked::Parked;

/// The fs front as the operator asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FsOptions {
    /// Bytes of the VM's aperture, an ivshmem device; 0: it has none.
    pub aperture: u64,
    /// The mount tag, where the VMM leaves it to the device (cloud-hypervisor); at most [`fs::TAG_BYTES`] bytes.
    pub tag: Option<String>,
}

/// The fs front of one connection.
#[derive(Debug)]
pub struct Fs {
    pub(super) options: FsOptions,
    pub(super) files: Files,
    pub(super) blobs: Blobs,
    pub(super) parked: Parked,
    pub(super) aperture: Aperture,
    /// By file: ranges of the aperture whose blobs were lost with a daemon, which its process may have mapped.
    pub(super) strays: BTreeMap<u32, Vec<(u64, u64)>>,
}

/// A random number, for the generation of handles.
pub(super) fn random() -> io::Result<u32> {
    let mut number = 0u32;
    getrandom(number.as_mut_bytes(), GetRandomFlags::empty())?;
    Ok(number)
}

impl Fs {
    pub(super) fn with(options: FsOptions, generation: u32) -> Self {
        let aperture = Aperture::new(options.aperture);
        let files = Files { generation, ..Files::default() };
        let (blobs, parked, strays) = (Blobs::default(), Parked::default(), BTreeMap::new());
        Self { options, files, blobs, parked, aperture, strays }
    }
}
