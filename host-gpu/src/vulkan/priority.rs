//! Global priorities: how a queue stands among the queues of all processes of the host, by `VK_KHR_global_priority`.

use std::fmt;

use ash::vk;

/// A global priority, the lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "Vulkan has priorities of the same names")]
pub enum GlobalPriority {
    Low,
    Medium,
    High,
    Realtime,
}

impl GlobalPriority {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Low, Self::Medium, Self::High, Self::Realtime];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Realtime => "realtime",
        }
    }

    /// Vulkan's number of it.
    pub(super) const fn raw(self) -> vk::QueueGlobalPriorityKHR {
        match self {
            Self::Low => vk::QueueGlobalPriorityKHR::LOW,
            Self::Medium => vk::QueueGlobalPriorityKHR::MEDIUM,
            Self::High => vk::QueueGlobalPriorityKHR::HIGH,
            Self::Realtime => vk::QueueGlobalPriorityKHR::REALTIME,
        }
    }
}

impl fmt::Display for GlobalPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Those that a queue family offers; none where its device does not have the extension.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GlobalPriorities([bool; GlobalPriority::ALL.len()]);

impl GlobalPriorities {
    /// Those that are among Vulkan's. What Vulkan may call otherwise in years to come is left out.
    pub(super) fn of(raw: &[vk::QueueGlobalPriorityKHR]) -> Self {
        Self(GlobalPriority::ALL.map(|priority| raw.contains(&priority.raw())))
    }

    /// The lowest first.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = GlobalPriority> {
        GlobalPriority::ALL.into_iter().filter(move |priority| self.0[*priority as usize])
    }

    /// Those above the one that a queue has for which nothing is asked, the highest first.
    pub(super) fn above_usual(self) -> impl Iterator<Item = GlobalPriority> {
        self.iter().rev().filter(|priority| *priority > GlobalPriority::Medium)
    }
}

impl FromIterator<GlobalPriority> for GlobalPriorities {
    fn from_iter<I: IntoIterator<Item = GlobalPriority>>(all: I) -> Self {
        let mut offered = Self::default();
        all.into_iter().for_each(|priority| offered.0[priority as usize] = true);
        offered
    }
}

#[cfg(test)]
mod tests {
    use ash::vk;

    use super::GlobalPriorities;
    use super::GlobalPriority;

    const HIGH: GlobalPriority = GlobalPriority::High;
    const REALTIME: GlobalPriority = GlobalPriority::Realtime;

    fn offered(raw: &[i32]) -> GlobalPriorities {
        let raw: Vec<_> = raw.iter().copied().map(vk::QueueGlobalPriorityKHR::from_raw).collect();
        GlobalPriorities::of(&raw)
    }

    #[test]
    fn those_above_medium_are_wanted_the_highest_first_and_unknown_ones_are_none() {
        let wanted = |raw: &[i32]| offered(raw).above_usual().collect::<Vec<_>>();
        assert_eq!(wanted(&[128, 256, 512, 1024]), [REALTIME, HIGH]);
        assert_eq!(wanted(&[1024, 256]), [REALTIME]);
        assert_eq!(wanted(&[128, 256]), []);
        assert_eq!(wanted(&[2048, 0, 7]), []);
        let all = GlobalPriority::ALL;
        assert_eq!(offered(&[1024, 128, 512, 256]).iter().collect::<Vec<_>>(), all);
        assert_eq!(all.into_iter().collect::<GlobalPriorities>(), offered(&[128, 256, 512, 1024]));
    }
}
