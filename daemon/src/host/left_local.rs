//! Local memory of a device's own that a daemon which was killed has left: whether its vGPU can go on with it.

use campanile_host_gpu::memory::local::Passport;

use super::local_choice::LocalPlace;
use crate::ledger::log::Key;
use crate::ledger::log::LogError;
use crate::ledger::read::LOCAL;
use crate::ledger::read::Left;
use crate::vgpu::config::Compute;
use crate::vgpu::memory::vidmm::device_local::DeviceLocal;

/// Where the local memory of a vGPU is to lie here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// In host memory.
    Host,
    /// In the device's own.
    Device {
        /// Bytes of it, at least.
        bytes: u64,
        /// UUIDs of device and driver, where they are known.
        uuids: Option<[[u8; 16]; 2]>,
    },
}

impl Wanted {
    /// Of a vGPU with so many bytes of it, on a machine that computes so.
    pub(super) fn of(place: LocalPlace, bytes: u64, compute: &Compute) -> Self {
        match (place, compute) {
            (LocalPlace::Host, _) => Self::Host,
            (LocalPlace::Device, Compute::Refused(_)) => Self::Device { bytes, uuids: None },
            (LocalPlace::Device, Compute::Available(device)) => {
                let profile = device.profile.as_ref();
                Self::Device { bytes, uuids: profile.map(|its| [its.device_uuid, its.driver_uuid]) }
            }
        }
    }
}

/// What was left of it, where it is what is wanted; none where both lie in host memory.
///
/// # Errors
/// Why what the guests had in it cannot be gone on with, in words.
pub(super) fn find(left: &Left, wanted: Wanted) -> Result<Option<DeviceLocal>, String> {
    let passport = match left.log.get::<Passport>(Key::Local) {
        Ok(passport) => Some(passport),
        Err(LogError::Missing(_)) => None,
        Err(error) => return Err(error.to_string()),
    };
    let (passport, bytes, uuids) = match (passport, wanted) {
        (None, Wanted::Host) => return Ok(None),
        (Some(passport), Wanted::Device { bytes, uuids }) => (passport, bytes, uuids),
        (Some(_), Wanted::Host) => return Err("its local memory was the device's own".to_owned()),
        (None, Wanted::Device { .. }) => return Err("its local memory was host memory".to_owned()),
    };
    if passport.length < bytes {
        return Err(format!("its local memory has {} bytes, not {bytes}", passport.length));
    }
    if uuids.is_some_and(|uuids| uuids != passport.uuids) {
        return Err("its local memory is another device's, or another driver's".to_owned());
    }
    let descriptor = left.file(LOCAL).map_err(|error| error.to_string())?;
    // Whatever no allocation has is to be zeroed before it is used.
    let local = DeviceLocal::handed(descriptor, passport, false);
    local.objection().map_or(Ok(Some(local)), |why| Err(format!("local memory: {why}")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::fd::OwnedFd;

    use campanile_host_gpu::memory::vram::create_memfd;
    use campanile_protocol::profile::Profile;
    use zerocopy::FromZeros;

    use super::*;
    use crate::ledger::log::Log;
    use crate::ledger::words::Words;
    use crate::vgpu::config::ComputeDevice;

    const BYTES: u64 = 1 << 20;
    const UUIDS: [[u8; 16]; 2] = [[3; 16], [4; 16]];
    const DEVICE: Wanted = Wanted::Device { bytes: BYTES, uuids: Some(UUIDS) };

    /// What a daemon has left whose vGPU had such local memory, in a file of so many bytes.
    fn left(passport: Option<Passport>, file: Option<u64>) -> Left {
        let mut log = Log::new().unwrap();
        if let Some(passport) = passport {
            log.put(Key::Local, &passport).unwrap();
        }
        let own: [(&str, OwnedFd); 2] = [
            ("log", log.file().try_clone().unwrap().into()),
            ("words", Words::new().unwrap().file().try_clone().unwrap().into()),
        ];
        let local = file.map(|bytes| (LOCAL, create_memfd("opaque", bytes).unwrap().into()));
        let all: BTreeMap<String, OwnedFd> =
            own.into_iter().chain(local).map(|(role, file)| (role.to_owned(), file)).collect();
        Left::of(all).unwrap()
    }

    fn passport() -> Passport {
        Passport { length: BYTES, type_index: 7, uuids: UUIDS }
    }

    #[test]
    fn cont_21_a_devices_memory_that_was_left_is_that_of_the_vgpu_and_not_zero() {
        let left = left(Some(passport()), Some(BYTES));
        for wanted in [DEVICE, Wanted::Device { bytes: BYTES, uuids: None }] {
            let local = find(&left, wanted).unwrap().unwrap();
            assert_eq!((local.passport, local.is_new()), (passport(), false));
        }
    }

    #[test]
    fn cont_21_where_local_memory_was_in_host_memory_and_is_nothing_is_looked_for() {
        assert!(find(&left(None, None), Wanted::Host).unwrap().is_none());
    }

    #[test]
    fn cont_14_local_memory_that_cannot_be_that_of_the_vgpu_is_refused_for_a_reason() {
        let other = Passport { uuids: [[3; 16], [5; 16]], ..passport() };
        let short = Passport { length: BYTES - 1, ..passport() };
        let cases = [
            (Some(passport()), Some(BYTES), Wanted::Host, "its local memory was the device's own"),
            (None, Some(BYTES), DEVICE, "its local memory was host memory"),
            (Some(short), Some(BYTES), DEVICE, "its local memory has 1048575 bytes, not 1048576"),
            (Some(other), Some(BYTES), DEVICE, "its local memory is another device's, or another driver's"),
            (Some(passport()), None, DEVICE, "a descriptor is missing in the store: local"),
            (
                Some(passport()),
                Some(BYTES - 4096),
                DEVICE,
                "local memory: its file has 1044480 bytes, and 1048576 were promised",
            ),
        ];
        for (passport, file, wanted, expected) in cases {
            assert_eq!(find(&left(passport, file), wanted).unwrap_err(), expected);
        }
        let mut broken = left(Some(passport()), Some(BYTES));
        broken.log.put(Key::Local, &"memory").unwrap();
        assert!(find(&broken, DEVICE).unwrap_err().starts_with("Local of the ledger: "));
    }

    #[test]
    fn what_is_wanted_is_where_the_operator_has_it_and_of_the_device_that_computes() {
        let profile = Profile { device_uuid: UUIDS[0], driver_uuid: UUIDS[1], ..Profile::new_zeroed() };
        let device =
            Compute::Available(ComputeDevice { name: "a".to_owned(), profile: Some(Box::new(profile)) });
        assert_eq!(Wanted::of(LocalPlace::Device, BYTES, &device), DEVICE);
        assert_eq!(Wanted::of(LocalPlace::Host, BYTES, &device), Wanted::Host);
    }
}
