//! Side files: bundles that travel through a folder that both daemons see.
//!
//! The file is the right to run: the daemon that removes it has it. So no two ever do, whichever dies when.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::path::PathBuf;

use super::write::wrong;
use crate::migration::error::MigrationError;
use crate::migration::id::BundleId;

/// Side files of a daemon.
#[derive(Debug, Clone)]
pub struct SideFiles {
    folder: PathBuf,
    keep: bool,
}

impl SideFiles {
    /// In a folder `bundles` of the state directory, which is made where it is missing. Where `keep`, files stay there, so that
    /// a VMM can take snapshots and go on, and which of them runs is for the VMM to see to.
    ///
    /// # Errors
    /// It cannot be made, or is a symlink.
    pub fn open(state: &Path, keep: bool) -> Result<Self, MigrationError> {
        let folder = state.join("bundles");
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(|source| wrong(&folder, source))?;
        if fs::symlink_metadata(&folder).map_err(|source| wrong(&folder, source))?.is_symlink() {
            return Err(wrong(&folder, io::Error::other("it is a symlink, which is not followed")));
        }
        Ok(Self { folder, keep })
    }

    /// Where this bundle is, or will be.
    pub fn path(&self, bundle: BundleId) -> PathBuf {
        self.folder.join(format!("{bundle}.pages"))
    }

    /// Takes the right to run with this bundle.
    ///
    /// # Errors
    /// The other side has it, or that cannot be known.
    pub fn take(&self, bundle: BundleId) -> Result<(), MigrationError> {
        if self.keep {
            return Ok(());
        }
        let path = self.path(bundle);
        fs::remove_file(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                MigrationError::CalledOff(format!("bundle {bundle} was taken by the other side"))
            }
            _ => wrong(&path, error),
        })
    }
}
