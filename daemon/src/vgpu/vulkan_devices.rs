//! Which Vulkan device each linked adapter is on.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// The Vulkan devices of linked adapters, as their operator names them: one for all, or one for each. Written with commas between
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VulkanDevices(Vec<String>);

impl VulkanDevices {
    /// That of an adapter; none for the best device.
    pub fn of(&self, adapter: u8) -> Option<&str> {
        let only = self.0.first().filter(|_| self.0.len() == 1);
        only.or_else(|| self.0.get(usize::from(adapter))).map(String::as_str)
    }

    /// Those behind the first, each with its adapter, where they have one each.
    pub fn others(&self) -> impl Iterator<Item = (u8, &str)> {
        (0u8..).zip(&self.0).skip(1).map(|(adapter, name)| (adapter, name.as_str()))
    }

    /// Why `adapters` cannot have them.
    pub fn objection(&self, adapters: u8) -> Option<String> {
        if self.0.len() > 1 && self.0.len() != usize::from(adapters) {
            let named = self.0.len();
            return Some(format!(
                "vulkan-device: {named} devices for {adapters} linked adapters (engines); one for all is possible, or one for each"
            ));
        }
        let is_empty = self.0.iter().any(String::is_empty);
        (is_empty && self.0.len() > 1).then(|| format!("vulkan-device: one of `{self}` has no name"))
    }
}

impl FromStr for VulkanDevices {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.split(',').map(|name| name.trim().to_owned()).collect()))
    }
}

impl fmt::Display for VulkanDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::VulkanDevices;

    fn devices(text: &str) -> VulkanDevices {
        text.parse().unwrap()
    }

    #[test]
    fn one_is_for_all_adapters_and_several_are_one_for_each() {
        let none = VulkanDevices::default();
        assert_eq!((none.of(0), none.of(3), none.others().count()), (None, None, 0));
        let one = devices("h100");
        assert_eq!((one.of(0), one.of(3), one.others().count()), (Some("h100"), Some("h100"), 0));
        let each = devices("h100#1, h100#2");
        assert_eq!((each.of(0), each.of(1), each.of(2)), (Some("h100#1"), Some("h100#2"), None));
        assert_eq!(each.others().collect::<Vec<_>>(), [(1, "h100#2")]);
        assert_eq!(each.to_string(), "h100#1,h100#2");
        assert_eq!(devices(&each.to_string()), each);
    }

    #[test]
    fn there_are_as_many_as_adapters_and_each_has_a_name() {
        for (text, adapters) in [("", 1), ("a", 1), ("a", 4), ("a,b", 2), ("a,a,b", 3)] {
            assert_eq!(devices(text).objection(adapters), None, "{text} for {adapters}");
        }
        assert_eq!(VulkanDevices::default().objection(2), None);
        let said = |text: &str, adapters| devices(text).objection(adapters).unwrap();
        assert!(said("a,b", 1).contains("2 devices for 1 linked adapters"), "{}", said("a,b", 1));
        assert!(said("a,b", 3).contains("2 devices for 3 linked adapters"));
        assert!(said("a,", 2).contains("one of `a,` has no name"));
    }
}
