//! The state of a device between two daemons.

use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;

use crate::front_end::DeviceFacts;

/// What a stopped device was, apart from guest RAM and from what its daemon keeps or sends elsewhere (video memory).
#[derive(Debug, Clone)]
pub struct SavedDevice {
    pub(super) state: Vec<u8>,
    pub(super) bases: Vec<u16>,
    pub(super) protocol: Protocol,
    pub(super) facts: DeviceFacts,
}

impl SavedDevice {
    /// The bytes that the device gave.
    pub fn state(&self) -> &[u8] {
        &self.state
    }

    /// The same with other bytes, for hostile tests.
    #[must_use]
    pub fn with_state(&self, state: Vec<u8>) -> Self {
        Self { state, ..self.clone() }
    }

    /// Where each ring goes on.
    pub fn bases(&self) -> &[u16] {
        &self.bases
    }
}
