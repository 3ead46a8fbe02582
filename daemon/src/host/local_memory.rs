//! Where the local memory of vGPUs lies: what the operator says, or what suits this machine.

use campanile_host_gpu::dirty::method::Method;
use campanile_protocol::profile::KIND_DISCRETE;

use super::local_choice::LocalChoice;
use super::local_choice::LocalPlace;
use super::options::HostOptions;
use super::tracking::TrackingChoice;
use crate::vgpu::config::Compute;

/// What of the options cannot be with local memory in a device: the option, or the key of a vGPU, and why.
pub(super) fn objections(options: &HostOptions) -> Vec<(&'static str, String)> {
    let not_yet = |what: &str| format!("--local-memory device: {what} not yet; --local-memory host can");
    let mut all = Vec::new();
    // What one device exports, no other imports.
    if options.engines.vulkan_devices.others().next().is_some() {
        all.push((
            "vulkan-device",
            not_yet("linked physical adapters on a device each (--vulkan-device A,B) do"),
        ));
    }
    if options.tracking == TrackingChoice::Fixed(Method::WriteProtect) {
        let why = "--dirty-tracking write-protect: the device writes to its own memory (--local-memory device) by itself, which no \
                   process notes; bound-ranges and shadow-compare are possible";
        all.push(("dirty-tracking", why.to_owned()));
    }
    all
}

/// Where it lies, on a machine that computes so.
///
/// # Errors
/// The operator wants a device's, and there is none, in words.
pub(super) fn decide(
    choice: LocalChoice,
    compute: &Compute,
    options: &HostOptions,
) -> Result<LocalPlace, String> {
    match (choice, compute) {
        (LocalChoice::Host, _) => Ok(LocalPlace::Host),
        (LocalChoice::Device, Compute::Available(_)) => Ok(LocalPlace::Device),
        (LocalChoice::Device, Compute::Refused(reason)) => {
            Err(format!("--local-memory device: there is no device: {reason}"))
        }
        (LocalChoice::Auto, Compute::Refused(_)) => Ok(LocalPlace::Host),
        (LocalChoice::Auto, Compute::Available(device)) => {
            let is_card = device.profile.as_ref().is_some_and(|profile| profile.kind == KIND_DISCRETE);
            match objections(options).into_iter().next() {
                _ if !is_card => Ok(LocalPlace::Host),
                None => Ok(LocalPlace::Device),
                Some((option, _)) => {
                    log::warn!(
                        "local memory is host memory, since {option} needs that: kernels have the speed of the bus"
                    );
                    Ok(LocalPlace::Host)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use campanile_host_gpu::adapter::program::Program;
    use campanile_protocol::profile::KIND_CPU;
    use campanile_protocol::profile::Profile;
    use zerocopy::FromZeros;

    use super::*;
    use crate::host::options::VgpuOptions;
    use crate::vgpu::config::ComputeDevice;

    fn options() -> HostOptions {
        let vgpu = VgpuOptions::new("a".to_owned(), PathBuf::from("a.sock"), 64 << 20);
        HostOptions::new(vec![vgpu], Program::new(PathBuf::from("campanile"), Vec::new()))
    }

    fn on(kind: u32) -> Compute {
        let profile = Some(Box::new(Profile { kind, ..Profile::new_zeroed() }));
        Compute::Available(ComputeDevice { name: "a device".to_owned(), profile })
    }

    #[test]
    fn what_the_operator_says_is_read_back_as_it_was() {
        for choice in [LocalChoice::Auto, LocalChoice::Host, LocalChoice::Device] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        let refused = "vram".parse::<LocalChoice>().unwrap_err().to_string();
        assert!(refused.contains("host, device, or auto") && refused.contains("vram"), "{refused}");
    }

    #[test]
    fn a_card_has_it_by_itself_and_a_cpu_driver_only_when_that_is_said() {
        let (card, cpu) = (on(KIND_DISCRETE), on(KIND_CPU));
        let none = Compute::Refused("why".to_owned());
        let decide = |choice: LocalChoice, compute: &Compute| super::decide(choice, compute, &options());
        assert_eq!(decide(LocalChoice::Auto, &card), Ok(LocalPlace::Device));
        for compute in [&cpu, &none] {
            assert_eq!(decide(LocalChoice::Auto, compute), Ok(LocalPlace::Host));
        }
        assert_eq!(decide(LocalChoice::Host, &card), Ok(LocalPlace::Host));
        assert_eq!(decide(LocalChoice::Device, &cpu), Ok(LocalPlace::Device));
        assert!(decide(LocalChoice::Device, &none).unwrap_err().contains("why"));
        let mut linked = options();
        linked.engines.count = 2;
        assert_eq!(super::decide(LocalChoice::Auto, &card, &linked), Ok(LocalPlace::Device));
        linked.engines.vulkan_devices = "a,b".parse().unwrap();
        assert_eq!(super::decide(LocalChoice::Auto, &card, &linked), Ok(LocalPlace::Host));
    }

    #[test]
    fn what_cannot_be_with_it_yet_is_named() {
        assert!(objections(&options()).is_empty());
        let mut all = options();
        all.engines.count = 2;
        assert!(objections(&all).is_empty(), "linked adapters on one device share its memory");
        all.engines.vulkan_devices = "a,b".parse().unwrap();
        all.tracking = TrackingChoice::Fixed(Method::WriteProtect);
        let found: Vec<_> = objections(&all).into_iter().map(|(option, _)| option).collect();
        assert_eq!(found, ["vulkan-device", "dirty-tracking"]);
        assert!(objections(&all).iter().all(|(_, text)| text.contains("--local-memory device")));
        for method in [Method::BoundRanges, Method::ShadowCompare, Method::Off] {
            let can = HostOptions { tracking: TrackingChoice::Fixed(method), ..options() };
            assert!(objections(&can).is_empty(), "{method}");
        }
    }
}
