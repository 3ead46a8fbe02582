//! How commands end, for scripts. A wrong command line ends with 2, by clap.

use super::check_gpu::run::NoDeviceServes;
use crate::operator::client::ClientError;

/// It failed.
const FAILED: u8 = 1;
/// No daemon answers.
const NO_ANSWER: u8 = 3;
/// The daemon refuses.
const REFUSED: u8 = 4;
/// No Vulkan device can serve.
const NO_DEVICE: u8 = 5;

/// The daemon of a keeper, which has said why, has ended with this exit code.
#[derive(Debug, thiserror::Error)]
#[error("the daemon has ended with status {0}")]
pub struct DaemonEnded(pub u8);

/// The exit code of a command that failed so.
pub fn code(error: &anyhow::Error) -> u8 {
    if error.is::<NoDeviceServes>() {
        return NO_DEVICE;
    }
    if let Some(DaemonEnded(code)) = error.downcast_ref() {
        return *code;
    }
    match error.downcast_ref() {
        Some(ClientError::Refused(_)) => REFUSED,
        Some(ClientError::Connect { .. } | ClientError::Exchange(_) | ClientError::Answer(_)) => NO_ANSWER,
        None => FAILED,
    }
}
