//! The way to the device through a render node of the stock virtio-gpu driver.

use std::path::Path;

use campanile_guest_driver::device::Device;
use campanile_guest_driver::transport::drm::context::DrmContext;
use campanile_guest_driver::transport::drm::node::RenderNode;

use crate::failure::Failure;

/// Opens a device over the render node at `path`, or over the first that is a Campanile's.
pub(crate) fn open(path: Option<&Path>) -> Result<Device, Failure> {
    let node = path.map_or_else(RenderNode::find, RenderNode::at)?;
    Ok(Device::open(DrmContext::on(node)?)?)
}
