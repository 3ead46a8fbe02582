//! What tests arm the layer with.

use std::fs;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;

use ash::vk;

use crate::control::BYTES;
use crate::control::Control;
use crate::control::HIDDEN;
use crate::control::NAME;
use crate::entries::index;

/// The name by which the loader knows the layer.
pub const LAYER: &str = "VK_LAYER_CAMPANILE_faults";

const LIBRARY: &str = "libcampanile_fault_layer.so";

/// A copy of the layer in a folder of its own, and what it is to do.
#[derive(Debug)]
pub struct Faults {
    folder: PathBuf,
    control: Control,
}

impl Faults {
    /// Puts the layer into `folder`, with a manifest, where nothing fails yet. The library lies beside the test that calls this.
    ///
    /// # Errors
    /// The library was not built, or files cannot be written.
    pub fn install(folder: &Path) -> io::Result<Self> {
        let own = std::env::current_exe()?;
        let built = own.ancestors().skip(1).map(|folder| folder.join(LIBRARY)).find(|path| path.exists());
        let built =
            built.ok_or_else(|| io::Error::other(format!("{LIBRARY} is not beside {}", own.display())))?;
        fs::copy(built, folder.join(LIBRARY))?;
        let manifest = format!(
            r#"{{"file_format_version": "1.1.2", "layer": {{"name": "{LAYER}", "type": "GLOBAL",
            "library_path": "./{LIBRARY}", "api_version": "1.3.0", "implementation_version": "1",
            "description": "makes calls fail", "functions": {{
            "vkNegotiateLoaderLayerInterfaceVersion": "campanile_fault_layer_negotiate"}}}}}}"#
        );
        fs::write(folder.join("campanile_faults.json"), manifest)?;
        fs::write(folder.join(NAME), vec![0; BYTES])?;
        // Engines run as a user of their own.
        fs::set_permissions(folder, Permissions::from_mode(0o755))?;
        fs::set_permissions(folder.join(NAME), Permissions::from_mode(0o666))?;
        Self::at(folder)
    }

    /// The layer that was put there.
    ///
    /// # Errors
    /// None was.
    pub fn at(folder: &Path) -> io::Result<Self> {
        Ok(Self { folder: folder.to_owned(), control: Control::open(folder)? })
    }

    /// Variables of the Vulkan loader in processes that are to have the layer.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        let folder = self.folder.to_string_lossy().into_owned();
        [("VK_LAYER_PATH", folder), ("VK_INSTANCE_LAYERS", LAYER.to_owned())]
    }

    /// Hides extensions from processes that are started from now on, `shaderFloat16`, or all of `maxPushConstantsSize` and
    /// `maxMemoryAllocationSize` but Vulkan's least.
    ///
    /// # Errors
    /// Files cannot be written.
    pub fn hide(&self, extensions: &[&str]) -> io::Result<()> {
        let names: String = extensions.iter().map(|name| format!("{name}\0")).collect();
        let mut bytes = fs::read(self.folder.join(NAME))?;
        let place = bytes.iter_mut().skip(HIDDEN);
        place.zip(names.bytes().chain(std::iter::repeat(0))).for_each(|(to, from)| *to = from);
        fs::write(self.folder.join(NAME), bytes)
    }

    /// Has devices say that their queues can have these global priorities, and give those that are `permitted`; with none it is the driver's
    /// own again. Forgets what was asked for.
    pub fn offer(&self, priorities: &[vk::QueueGlobalPriorityKHR], permitted: &[vk::QueueGlobalPriorityKHR]) {
        self.control.offer(priorities, permitted);
    }

    /// The first dozen of global priorities that were asked for, in turn.
    pub fn asked(&self) -> Vec<vk::QueueGlobalPriorityKHR> {
        self.control.asked()
    }

    /// Has devices say that others have all of their memory but so many bytes (`VK_EXT_memory_budget`), and allocations that are longer fail with
    /// `ERROR_OUT_OF_DEVICE_MEMORY`; with none it is as the driver has it. Imports go on.
    pub fn leave(&self, bytes: Option<u64>) {
        self.control.leave(bytes);
    }

    /// Has call number `nth` from now on, counted from 1, of an entry point fail. Whether there is such an entry point.
    #[must_use]
    pub fn arm(&self, name: &str, nth: u32, result: vk::Result) -> bool {
        index(name).map(|entry| self.control.arm(entry, nth, 1, result)).is_some()
    }

    /// Has that call fail, and all that follow it. Whether there is such an entry point.
    #[must_use]
    pub fn arm_from(&self, name: &str, nth: u32, result: vk::Result) -> bool {
        index(name).map(|entry| self.control.arm(entry, nth, u32::MAX, result)).is_some()
    }

    /// Nothing fails any more, no device is lost or short of memory, and no call was counted.
    pub fn reset(&self) {
        self.control.reset();
    }

    /// Calls of an entry point since it was armed, or all was reset.
    pub fn calls(&self, name: &str) -> u32 {
        index(name).map_or(0, |entry| self.control.calls(entry))
    }

    /// How many of them were made to fail.
    pub fn failed(&self, name: &str) -> u32 {
        index(name).map_or(0, |entry| self.control.failed(entry))
    }
}
