//! Asking for a global priority of queues.
//!
//! ```text
//!   queue family offers ─▶ those above the usual one, highest first ─▶ vkCreateDevice
//!                                                                        ├─ made ─▶ its queues have it
//!                                                                        └─ refused ─▶ the next one ─▶ … ─▶ with none, as ever
//! ```
//!
//! It is asked for where a vGPU may have work in the realtime band, and nowhere else.

use ash::vk;

use crate::vulkan::error::VulkanError;
use crate::vulkan::priority::GlobalPriority;

/// Makes something with the first of `wanted` that is not refused, or with none. Each refusal comes along, in words.
pub(super) fn first<T>(
    wanted: impl Iterator<Item = GlobalPriority>,
    make: impl Fn(Option<GlobalPriority>) -> Result<T, VulkanError>,
) -> Result<(T, Vec<String>), VulkanError> {
    let mut refused = Vec::new();
    for priority in wanted {
        match make(Some(priority)) {
            Err(VulkanError::Call { result, .. }) if is_refusal(result) => {
                refused.push(format!("{priority} was refused: {result:?}"));
            }
            made => return Ok((made?, refused)),
        }
    }
    Ok((make(None)?, refused))
}

/// What `vkCreateDevice` says where this process may not have a priority, or no more queues of it. Of a device that
/// cannot be made at all it says the latter, too, and again when it is asked for none.
fn is_refusal(result: vk::Result) -> bool {
    [vk::Result::ERROR_NOT_PERMITTED_KHR, vk::Result::ERROR_INITIALIZATION_FAILED].contains(&result)
}

/// What came of it, in words.
pub(super) fn outcome(had: Option<GlobalPriority>, refused: &[String]) -> String {
    let had = match had {
        Some(priority) => format!("work runs on queues of global priority {priority}"),
        None if refused.is_empty() => "it offers no global priority above medium for its queues".to_owned(),
        None => "work runs on queues of no global priority".to_owned(),
    };
    [&[had], refused].concat().join("; ")
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use ash::vk;

    use super::first;
    use super::outcome;
    use crate::vulkan::error::failed;
    use crate::vulkan::priority::GlobalPriority;

    const HIGH: GlobalPriority = GlobalPriority::High;
    const REALTIME: GlobalPriority = GlobalPriority::Realtime;

    #[test]
    fn a_refusal_leads_to_the_next_one_and_at_last_to_none_and_nothing_else_does() {
        let tried = |wanted: &[GlobalPriority], results: &[vk::Result]| {
            let asked = RefCell::new(Vec::new());
            let made = first(wanted.iter().copied(), |priority| {
                let result = results[asked.borrow().len()];
                asked.borrow_mut().push(priority);
                if result == vk::Result::SUCCESS {
                    Ok(priority)
                } else {
                    Err(failed("vkCreateDevice")(result))
                }
            });
            let said = made.map(|(had, refused)| outcome(had, &refused)).map_err(|error| error.to_string());
            (asked.into_inner(), said.unwrap_or_else(|error| error))
        };
        let (made, no) = (vk::Result::SUCCESS, vk::Result::ERROR_NOT_PERMITTED_KHR);
        let used_up = vk::Result::ERROR_INITIALIZATION_FAILED;
        let had = "work runs on queues of global priority".to_owned();
        assert_eq!(tried(&[REALTIME, HIGH], &[made]), (vec![Some(REALTIME)], format!("{had} realtime")));
        let said = format!("{had} high; realtime was refused: ERROR_NOT_PERMITTED_KHR");
        assert_eq!(tried(&[REALTIME, HIGH], &[no, made]), (vec![Some(REALTIME), Some(HIGH)], said));
        let (asked, said) = tried(&[REALTIME, HIGH], &[used_up, no, made]);
        assert_eq!(asked, [Some(REALTIME), Some(HIGH), None]);
        let parts = [
            "queues of no global priority",
            "realtime was refused: ERROR_INIT",
            "high was refused: ERROR_NOT",
        ];
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        let (asked, said) = tried(&[], &[made]);
        assert!(asked == [None] && said.contains("offers no global priority above medium"), "{said}");
        // That has nothing to do with priorities.
        let (asked, said) = tried(&[REALTIME, HIGH], &[vk::Result::ERROR_OUT_OF_HOST_MEMORY]);
        assert!(asked == [Some(REALTIME)] && said.starts_with("vkCreateDevice failed"), "{said}");
        let (asked, said) = tried(&[HIGH], &[used_up, used_up]);
        assert!(asked == [Some(HIGH), None] && said.starts_with("vkCreateDevice failed"), "{said}");
    }
}
