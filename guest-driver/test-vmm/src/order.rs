//! The order of messages, which differs between VMMs.

/// Whose message order is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// QEMU 11.1's.
    #[default]
    Qemu,
    /// cloud-hypervisor 53's.
    CloudHypervisor,
}
