//! The way to the device of the VM that this process runs in: a render node of the stock virtio-gpu driver, or a file on the
//! stock virtiofs driver.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use campanile_guest_driver::device::Device;
use campanile_guest_driver::transport::drm::context::DrmContext;
use campanile_guest_driver::transport::drm::node::RenderNode;
use campanile_guest_driver::transport::fs::channel::FsChannel;
use campanile_guest_driver::transport::fs::context::FsContext;
use campanile_protocol::fs::NAME;

use crate::failure::Failure;

/// Opens a device over the render node, or the file, at `path`; without it over the first render node that is a
/// Campanile's, and else over the file of the first virtiofs mount that is one.
pub(crate) fn open(path: Option<&Path>) -> Result<Device, Failure> {
    let Some(path) = path else {
        return match RenderNode::find() {
            Err(_) if FsChannel::is_there() => on_file(FsChannel::find()?),
            node => on_node(node?),
        };
    };
    // Its name is the same wherever it is mounted, and render nodes have others.
    let is_file = path.file_name().is_some_and(|name| name.as_bytes() == NAME);
    if is_file { on_file(FsChannel::at(path)?) } else { on_node(RenderNode::at(path)?) }
}

fn on_node(node: RenderNode) -> Result<Device, Failure> {
    Ok(Device::open(DrmContext::on(node)?)?)
}

fn on_file(file: FsChannel) -> Result<Device, Failure> {
    Ok(Device::open(FsContext::on(file))?)
}
