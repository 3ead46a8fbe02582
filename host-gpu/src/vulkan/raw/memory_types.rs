//! Which of a device's types of memory there is to be.

use ash::vk;

/// What host and device see alike.
const SHARED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw() | vk::MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);
/// What memory of a device's own may be, and nothing beside: types of other properties need features that are not enabled.
const KNOWN: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::DEVICE_LOCAL.as_raw()
        | vk::MemoryPropertyFlags::HOST_CACHED.as_raw()
        | SHARED.as_raw(),
);

/// Whether memory of this type is the device's own, and needs no feature.
fn is_own(t: &vk::MemoryType) -> bool {
    let flags = t.property_flags;
    flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL) && KNOWN.contains(flags)
}

/// Bytes of the heap of a type.
fn heap_size(of: &vk::PhysicalDeviceMemoryProperties, t: &vk::MemoryType) -> u64 {
    of.memory_heaps_as_slice().get(t.heap_index as usize).map_or(0, |heap| heap.size)
}

/// The first type among `bits` that is the device's own and whose heap holds `length` bytes.
pub(super) fn local_type(of: &vk::PhysicalDeviceMemoryProperties, bits: u32, length: u64) -> Option<u32> {
    find(of, bits, |t| is_own(t) && heap_size(of, t) >= length)
}

/// Bytes of the largest heap of the types among `bits` that are the device's own; zero where there is none.
pub(super) fn largest_heap(of: &vk::PhysicalDeviceMemoryProperties, bits: u32) -> u64 {
    let types = (0..).zip(of.memory_types_as_slice());
    let own = types.filter(|(index, t)| bits & (1 << index) != 0 && is_own(t));
    own.map(|(_, t)| heap_size(of, t)).max().unwrap_or(0)
}

/// The first type among `bits` that host and device see alike; one that the host reads through its caches, if there is any.
pub(super) fn shared_type(of: &vk::PhysicalDeviceMemoryProperties, bits: u32) -> Option<u32> {
    let first = |flags| find(of, bits, |t| t.property_flags.contains(flags));
    first(SHARED | vk::MemoryPropertyFlags::HOST_CACHED).or_else(|| first(SHARED))
}

fn find(
    of: &vk::PhysicalDeviceMemoryProperties,
    bits: u32,
    is_it: impl Fn(&vk::MemoryType) -> bool,
) -> Option<u32> {
    let types = (0..).zip(of.memory_types_as_slice());
    types.into_iter().find(|(index, t)| bits & (1 << index) != 0 && is_it(t)).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use ash::vk;

    use super::SHARED;
    use super::largest_heap;
    use super::local_type;
    use super::shared_type;

    const OWN: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::DEVICE_LOCAL;
    const CACHED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::HOST_CACHED;

    /// Types of memory with these properties, the last in a small heap.
    fn types(all: &[vk::MemoryPropertyFlags]) -> vk::PhysicalDeviceMemoryProperties {
        let mut of = vk::PhysicalDeviceMemoryProperties { memory_heap_count: 2, ..Default::default() };
        [of.memory_heaps[0].size, of.memory_heaps[1].size] = [1 << 30, 1 << 20];
        for (t, flags) in of.memory_types.iter_mut().zip(all) {
            t.property_flags = *flags;
            of.memory_type_count += 1;
        }
        of.memory_types[all.len() - 1].heap_index = 1;
        of
    }

    #[test]
    fn what_host_and_device_both_see_is_cached_where_it_can_be_and_coherent_always() {
        let incoherent = vk::MemoryPropertyFlags::HOST_VISIBLE | CACHED;
        let of = types(&[OWN, incoherent, OWN | SHARED, SHARED, SHARED | CACHED, OWN | SHARED | CACHED]);
        assert_eq!(shared_type(&of, u32::MAX), Some(4));
        assert_eq!(shared_type(&of, !0x10), Some(5));
        assert_eq!(shared_type(&of, 0xf), Some(2), "none of these is cached");
        assert_eq!(shared_type(&of, 0x8), Some(3));
        assert_eq!(shared_type(&of, 0x3), None);
        assert_eq!(shared_type(&of, !0x3f), None);
    }

    #[test]
    fn memory_of_the_devices_own_has_room_and_no_property_that_needs_a_feature() {
        let of = types(&[SHARED, OWN | vk::MemoryPropertyFlags::PROTECTED, OWN | SHARED, OWN]);
        assert_eq!(local_type(&of, u32::MAX, 1 << 30), Some(2));
        assert_eq!(local_type(&of, 0x8, 1 << 20), Some(3));
        assert_eq!(local_type(&of, 0x8, (1 << 20) + 1), None);
        assert_eq!(local_type(&of, 0x3, 1), None);
        assert_eq!([u32::MAX, 0x8, 0x3].map(|bits| largest_heap(&of, bits)), [1 << 30, 1 << 20, 0]);
    }
}
