//! The Vulkan devices of linked adapters: each is probed, and all have to agree, since guests are given one profile.

use std::io;

use campanile_host_gpu::adapter::program::Program;
use campanile_protocol::named_profile::GpuProfile;
use campanile_protocol::named_profile::lacks;
use campanile_protocol::profile::Profile;

use super::findings::Findings;
use crate::vgpu::config::Compute;
use crate::vgpu::config::ComputeDevice;
use crate::vgpu::vulkan_devices::VulkanDevices;

/// What a machine computes on.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    /// The device of the first adapter, and of all others where they have none of their own.
    first: Compute,
    /// Those of other adapters, in their order.
    others: Vec<(u8, ComputeDevice)>,
}

impl Machine {
    /// What is found where the first adapter has `first`, and whether any of them is a GPU, as `is_gpu` for the first. Where one does
    /// not come up, none computes: a guest may make a context on each.
    pub(super) fn find(
        (first, mut is_gpu): (Compute, bool),
        devices: &VulkanDevices,
        (program, findings): (&Program, &Findings),
        sandbox: bool,
    ) -> io::Result<(Self, bool)> {
        let mut others = Vec::new();
        if matches!(first, Compute::Available(_)) {
            for (adapter, name) in devices.others() {
                match findings.compute(program, Some(name.to_owned()), sandbox)? {
                    (Compute::Available(device), computes_on_gpu) => {
                        is_gpu |= computes_on_gpu;
                        others.push((adapter, device));
                    }
                    (Compute::Refused(reason), _) => {
                        let first = Compute::Refused(format!("linked adapter {adapter}: {reason}"));
                        return Ok((Self { first, others: Vec::new() }, is_gpu));
                    }
                }
            }
        }
        Ok((Self { first, others }, is_gpu))
    }

    /// What the first adapter computes on.
    pub(super) fn first(&self) -> &Compute {
        &self.first
    }

    /// All devices, in the order of their adapters.
    pub(super) fn devices(&self) -> impl Iterator<Item = &ComputeDevice> {
        let first = match &self.first {
            Compute::Available(device) => Some(device),
            Compute::Refused(_) => None,
        };
        first.into_iter().chain(self.others.iter().map(|(_, device)| device))
    }

    /// What identifies the device of each of so many adapters on this host: its UUID, where something computes.
    pub(super) fn identities(&self, adapters: u8) -> Vec<String> {
        let of = |adapter: u8| {
            let other = self.others.iter().find(|(its, _)| *its == adapter).map(|(_, device)| device);
            let first = match &self.first {
                Compute::Available(device) => Some(device),
                Compute::Refused(_) => None,
            };
            let profile = other.or(first).and_then(|device| device.profile.as_deref());
            profile.map_or_else(|| "copies".to_owned(), |profile| hex(&profile.device_uuid))
        };
        (0..adapters).map(of).collect()
    }

    /// What a vGPU with this profile computes on.
    ///
    /// # Errors
    /// A device has not what the profile says or, with the host's own, what the first has; in words.
    pub(super) fn under(&self, profile: GpuProfile) -> Result<Compute, String> {
        let first = self.first.under(profile)?;
        for (adapter, device) in &self.others {
            let here = |why: String| format!("linked adapter {adapter}: {why}");
            Compute::Available(device.clone()).under(profile).map_err(here)?;
            if let (GpuProfile::Host, Compute::Available(other)) = (profile, &first) {
                alike(other, device).map_err(here)?;
            }
        }
        Ok(first)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a kernel that is made for `first` runs on `other`, with the same limits: the same model and driver.
fn alike(first: &ComputeDevice, other: &ComputeDevice) -> Result<(), String> {
    let (Some(one), Some(another)) = (first.profile.as_deref(), other.profile.as_deref()) else {
        return Ok(());
    };
    if *one == (Profile { device_uuid: one.device_uuid, ..*another }) {
        return Ok(());
    }
    let lacks: Vec<String> = lacks(one, another).map(|lack| lack.to_string()).collect();
    let how = if lacks.is_empty() { String::new() } else { format!(" ({})", lacks.join("; ")) };
    Err(format!(
        "{} is another device or driver than {}{how}: guests are told of one; --gpu-profile campanile-1 is the same on both",
        other.name, first.name
    ))
}

#[cfg(test)]
mod tests {
    use campanile_protocol::named_profile::GpuProfile;
    use campanile_protocol::named_profile::campanile_1;
    use campanile_protocol::profile::Profile;

    use super::Machine;
    use crate::vgpu::config::Compute;
    use crate::vgpu::config::ComputeDevice;

    fn device(name: &str, profile: Profile) -> ComputeDevice {
        ComputeDevice { name: name.to_owned(), profile: Some(Box::new(profile)) }
    }

    fn machine(first: Profile, second: Profile) -> Machine {
        Machine { first: Compute::Available(device("one", first)), others: vec![(1, device("two", second))] }
    }

    #[test]
    fn devices_of_one_model_and_driver_are_alike_whatever_their_uuids() {
        let card = Profile { device_uuid: [1; 16], vendor: 7, constants: 512, ..campanile_1() };
        let same = machine(card, Profile { device_uuid: [2; 16], ..card });
        assert_eq!(
            same.under(GpuProfile::Host),
            Ok(Compute::Available(device("one", card))),
            "the first is told of"
        );
        assert_eq!(same.devices().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["one", "two"]);
        for (other, said) in [
            (Profile { constants: 256, ..card }, "constants: the profile has 512, the device 256"),
            (Profile { subgroup_size: card.subgroup_size + 1, ..card }, "another device or driver"),
            (Profile { driver_uuid: [9; 16], ..card }, "another device or driver"),
            (Profile { constants: 1024, ..card }, "another device or driver"),
        ] {
            let why = machine(card, other).under(GpuProfile::Host).unwrap_err();
            assert!(why.starts_with("linked adapter 1: two is another"), "{why}");
            assert!(why.contains(said), "{why}");
        }
    }

    #[test]
    fn under_a_named_profile_each_device_has_to_have_it_and_may_have_more() {
        let fixed = campanile_1();
        let more = Profile { vendor: 7, constants: 4096, device_uuid: [1; 16], ..fixed };
        let told = Ok(Compute::Available(device("one", fixed)));
        assert_eq!(machine(fixed, more).under(GpuProfile::Campanile1), told);
        let why = machine(more, Profile { sets: 4, ..fixed }).under(GpuProfile::Campanile1).unwrap_err();
        assert_eq!(why, "linked adapter 1: two cannot serve it: sets: the profile has 8, the device 4");
    }
}
