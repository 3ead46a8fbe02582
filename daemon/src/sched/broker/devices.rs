//! Which devices of which daemons are the same one, by what each daemon calls them.

use std::collections::BTreeMap;

use campanile_protocol::capset::MAX_ENGINES;

/// Bytes of the longest name.
const MAX_NAME: usize = 128;

/// What the devices of linked adapters are called, in their order, by what identifies each: the UUID that Vulkan has for it, or what
/// stands in for it where nothing computes. Where a daemon has several adapters on one device, each is told from the others.
pub fn names(identities: &[String]) -> Vec<String> {
    let name = |index: usize, identity: &String| {
        let before = identities.iter().take(index).filter(|other| *other == identity).count();
        format!("{identity}#{before}")
    };
    identities.iter().enumerate().map(|(index, identity)| name(index, identity)).collect()
}

/// The number of each device that a daemon has, as long as one has it.
#[derive(Debug, Default)]
pub(super) struct Devices(BTreeMap<String, Device>);

#[derive(Debug)]
struct Device {
    number: u8,
    daemons: usize,
}

impl Devices {
    /// A daemon has these from now on. Their numbers, in their order.
    ///
    /// # Errors
    /// There are too many, or one is no name; in words, and nothing is changed.
    pub(super) fn take(&mut self, names: &[String]) -> Result<Vec<u8>, String> {
        if names.is_empty() || names.len() > MAX_ENGINES {
            return Err(format!("{} devices, where a vGPU has 1 to {MAX_ENGINES}", names.len()));
        }
        if let Some(name) = names.iter().find(|name| name.is_empty() || name.len() > MAX_NAME) {
            return Err(format!("a device with a name of {} bytes, 1 to {MAX_NAME} may be", name.len()));
        }
        let mut taken = Vec::new();
        for name in names {
            let free = (0..=u8::MAX).find(|number| self.0.values().all(|device| device.number != *number));
            let device = match (self.0.get_mut(name), free) {
                (Some(device), _) => device,
                (None, Some(number)) => self.0.entry(name.clone()).or_insert(Device { number, daemons: 0 }),
                (None, None) => {
                    self.leave(names.get(..taken.len()).unwrap_or_default());
                    return Err("a device more than 256, which other daemons have".to_owned());
                }
            };
            device.daemons += 1;
            taken.push(device.number);
        }
        Ok(taken)
    }

    /// A daemon has these no more.
    pub(super) fn leave(&mut self, names: &[String]) {
        for name in names {
            if let Some(device) = self.0.get_mut(name) {
                device.daemons -= 1;
                if device.daemons == 0 {
                    self.0.remove(name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Devices;
    use super::names;

    fn of(identities: &[&str]) -> Vec<String> {
        names(&identities.iter().map(|identity| (*identity).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn the_same_device_has_the_same_number_for_all_daemons_and_adapters_on_one_device_are_told_apart() {
        assert_eq!(of(&["a", "b", "a"]), ["a#0", "b#0", "a#1"]);
        let mut devices = Devices::default();
        assert_eq!(devices.take(&of(&["a", "b"])), Ok(vec![0, 1]));
        assert_eq!(devices.take(&of(&["b", "b", "a"])), Ok(vec![1, 2, 0]));
        devices.leave(&of(&["a", "b"]));
        assert_eq!(devices.take(&of(&["c"])), Ok(vec![3]), "all others are in use");
        devices.leave(&of(&["b", "b", "a"]));
        assert_eq!(devices.take(&of(&["d"])), Ok(vec![0]));
    }

    #[test]
    fn no_device_too_many_names_that_are_none_and_more_than_there_are_numbers_are_refused() {
        let mut devices = Devices::default();
        for wrong in [of(&[]), of(&["a"; 5]), vec![String::new()], vec!["x".repeat(129)]] {
            assert!(devices.take(&wrong).is_err(), "{wrong:?}");
        }
        assert!(devices.0.is_empty());
        assert!(devices.take(&["x".repeat(128)]).is_ok());
        devices.leave(&["x".repeat(128)]);
        for number in 0..=255u32 {
            let name = number.to_string();
            assert!(devices.take(&of(&[name.as_str()])).is_ok(), "{number}");
        }
        assert!(devices.take(&of(&["7", "more"])).unwrap_err().contains("256"));
        devices.leave(&of(&["7"]));
        assert_eq!(devices.take(&of(&["more"])), Ok(vec![7]), "what was refused has left nothing behind");
    }
}
