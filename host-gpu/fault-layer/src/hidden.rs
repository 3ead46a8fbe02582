//! Extensions of devices, without those that are hidden.

use ash::vk;

use crate::next;

/// What is left of `all`.
pub(crate) fn left(all: Vec<vk::ExtensionProperties>) -> Vec<vk::ExtensionProperties> {
    let hidden = next::hidden();
    let is_hidden = |extension: &vk::ExtensionProperties| {
        let name = extension.extension_name_as_c_str().map(|name| name.to_bytes().to_vec());
        name.is_ok_and(|name| hidden.contains(&name))
    };
    all.into_iter().filter(|extension| !is_hidden(extension)).collect()
}
