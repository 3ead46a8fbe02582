//! Which device of a machine is meant.

/// Part of a name, in any case, and, behind `#`, which of the devices that have it, counted from 1 as the loader lists them: `h100`
/// for all that are called so, `h100#2` for the second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceName {
    part: String,
    number: Option<usize>,
}

impl DeviceName {
    /// What `text` means; nothing but a number behind the last `#` is one.
    pub fn new(text: &str) -> Self {
        let numbered = text.rsplit_once('#').and_then(|(part, number)| Some((part, number.parse().ok()?)));
        let (part, number) = numbered.map_or((text, None), |(part, number)| (part, Some(number)));
        Self { part: part.to_lowercase(), number }
    }

    /// Those of `devices` that are meant, in their order. `name_of` tells the name of one.
    pub fn pick<T>(&self, devices: Vec<T>, name_of: impl Fn(&T) -> &str) -> Vec<T> {
        let named = devices.into_iter().filter(|device| name_of(device).to_lowercase().contains(&self.part));
        match self.number {
            None => named.collect(),
            Some(0) => Vec::new(),
            Some(number) => named.skip(number - 1).take(1).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceName;

    const DEVICES: [&str; 4] = ["H100 PCIe", "llvmpipe", "NVIDIA H100", "card #1"];

    fn picked(text: &str) -> Vec<&'static str> {
        DeviceName::new(text).pick(DEVICES.to_vec(), |name| name)
    }

    #[test]
    fn a_part_of_a_name_means_all_that_have_it_and_a_number_one_of_them() {
        assert_eq!(picked(""), DEVICES);
        assert_eq!(picked("h100"), ["H100 PCIe", "NVIDIA H100"]);
        assert_eq!(picked("H100#1"), ["H100 PCIe"]);
        assert_eq!(picked("h100#2"), ["NVIDIA H100"]);
        assert_eq!(picked("#2"), ["llvmpipe"]);
        for none in ["h100#0", "h100#3", "h200", "h100#-1", "h100#two"] {
            assert!(picked(none).is_empty(), "{none}");
        }
        assert_eq!(picked("card #1#1"), ["card #1"], "a name with a number in it");
    }
}
