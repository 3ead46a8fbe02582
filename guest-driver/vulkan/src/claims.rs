//! What a device says for some programs that it has, and has not.
//!
//! WebGPU's implementations, Taichi and older versions of ncnn open no device that does not say that it draws, though many programs on
//! them compute alone; IREE opens none without addresses of buffers, and its kernels use descriptors. Programs that name one of these
//! as their engine are told what they look for:
//!
//! * **graphics**: the queue family has them, limits and features are those that such programs ask for when they start, and the device
//!   passes for conformant (wgpu hides what does not). Whatever would draw is refused by a result, and formats of colour are good for kernels alone.
//! * **addresses**: buffers have one, that of the GPU; kernels that use any are refused when their pipelines are made.
//!
//! `CAMPANILE_GRAPHICS_FAMILY` and `CAMPANILE_BUFFER_ADDRESSES` decide it for any program: 0 for never, anything else for always.

use std::ffi::CStr;
use std::ffi::OsString;

/// The claims of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claims {
    /// That it does graphics.
    pub(crate) graphics: bool,
    /// That kernels may use addresses of buffers.
    pub(crate) addresses: bool,
}

/// Engines that look for graphics where they compute, as they call themselves.
const GRAPHICS_ENGINES: &[&CStr] = &[c"Dawn", c"ncnn", c"wgpu-hal"];

/// The same, of those that name no engine but themselves as the application.
const GRAPHICS_APPLICATIONS: &[&CStr] =
    &[c"GsTaichi Vulkan Backend", c"Quadrants Vulkan Backend", c"Taichi Vulkan Backend"];

/// Engines that look for addresses where their kernels use descriptors.
const ADDRESSES_ENGINES: &[&CStr] = &[c"IREE"];

impl Claims {
    /// Those for a program that calls itself so.
    pub(crate) fn of(application: &CStr, engine: &CStr) -> Self {
        Self::decided(application, engine, |name| std::env::var_os(name))
    }

    fn decided(application: &CStr, engine: &CStr, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let or = |name, listed| variable(name).map_or(listed, |value| value != "0");
        Self {
            graphics: or(
                "CAMPANILE_GRAPHICS_FAMILY",
                GRAPHICS_ENGINES.contains(&engine) || GRAPHICS_APPLICATIONS.contains(&application),
            ),
            addresses: or("CAMPANILE_BUFFER_ADDRESSES", ADDRESSES_ENGINES.contains(&engine)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Claims;

    #[test]
    fn programs_are_told_what_they_look_for_and_variables_decide_for_all() {
        for (application, engine, graphics, addresses) in [
            (c"", c"wgpu-hal", true, false),
            (c"anything", c"Dawn", true, false),
            (c"Taichi Vulkan Backend", c"No Engine", true, false),
            (c"IREE", c"IREE", false, true),
            (c"", c"", false, false),
            (c"wgpu-hal", c"anything", false, false),
        ] {
            let told = |value: Option<&str>| Claims::decided(application, engine, |_| value.map(Into::into));
            assert_eq!(told(None), Claims { graphics, addresses }, "{application:?}, {engine:?}");
            assert_eq!(told(Some("1")), Claims { graphics: true, addresses: true });
            assert_eq!(told(Some("0")), Claims { graphics: false, addresses: false });
        }
    }
}
