//! The way to the device through a render node of the stock virtio-gpu driver.

use std::path::Path;

use campanile_guest_driver::device::Device;

use crate::failure::Failure;
use crate::result::CampanileResult;

/// Opens a device over the render node at `path`, or over the first that is a Campanile's.
///
/// The guest driver has no drm transport yet; this function is the only place that waits for it (README, "What
/// works").
pub(crate) fn open(path: Option<&Path>) -> Result<Device, Failure> {
    let node = path.map_or_else(|| "render nodes".to_owned(), |path| path.display().to_string());
    let words = format_args!("{node}: this library has no drm transport yet; use the loopback one");
    Err(Failure::new(CampanileResult::CampanileNotSupported, words))
}
