//! What two daemons say to each other.
//!
//! ```text
//!   source                                target
//!   HELLO {versions, vGPU, bundle, …} ──▶ checks all of it, takes nothing before
//!                    ◀── ACCEPT {version} | REFUSED {reason}
//!   (further lines: JOIN {bundle} ──▶ , ◀── ACCEPT)
//!   pages …, PASS_END {pass} ──▶          on every line, in every pass
//!                    ◀── PASS_DONE {pass}
//!   kernels … ──▶                         (2) on the first line, between passes; the target compiles them
//!   KERNELS? ──▶ ◀── KERNELS {left}       (2) between passes
//!   STILL ──▶                             while the source waits for the pause
//!   COMPLETE {records, bytes} ──▶         the VM is paused, nothing will change
//!                    ◀── STORED
//!        …                                the front-end carries the state over, and starts the VM
//!                    ◀── MAY_I_RUN        the target's rings begin
//!   GRANTED | DECLINED ──▶
//!   REVOKE ──▶                            the source's rings begin again
//!                    ◀── REVOKED | COMMITTED
//!   GIVE_UP {reason} ──▶ ◀── GIVE_UP      at any time before that
//! ```
//!
//! (2): where both speak version 2.

use serde::Deserialize;
use serde::Serialize;

use super::frame::MAX_MESSAGE;
use crate::migration::error::MigrationError;
use crate::migration::id::BundleId;
use crate::migration::text::MAX_SHOWN;
use crate::migration::text::printable;

/// The version of the protocol that this daemon speaks.
pub const VERSION: u32 = 2;
/// The oldest that it still speaks.
pub const OLDEST: u32 = 1;
/// The first version in which kernels are sent ahead.
pub const KERNELS_AHEAD: u32 = 2;
/// Lines of one migration.
pub const MAX_STREAMS: u8 = 16;

/// What a source wants to bring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The newest version of the protocol that it speaks.
    pub version: u32,
    /// The oldest.
    pub oldest: u32,
    /// The vGPU, by its name on the target.
    pub vgpu: String,
    /// The bundle.
    pub bundle: BundleId,
    /// Lines that it will use, with this one.
    pub streams: u8,
    /// Bytes of the memories, by index.
    pub memories: [u64; 2],
    /// Immutable data of the vGPU (LM-18), as the format of states has it, in hexadecimal digits.
    #[serde(with = "digits")]
    pub immutable: Vec<u8>,
}

/// A message. Fields that one side does not know are skipped; a message that it does not know ends the migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum Message {
    /// The first message of the first line.
    Hello(Hello),
    /// The first message of every other line.
    Join {
        /// To which bundle it belongs.
        bundle: BundleId,
    },
    /// Go on, in this version.
    Accept {
        /// The newest that both speak.
        version: u32,
    },
    /// No; nothing was taken.
    Refused {
        /// Which check failed.
        reason: String,
    },
    /// All pages of this pass that go over this line were sent.
    PassEnd {
        /// Counted from 1.
        pass: u32,
    },
    /// They are there.
    PassDone {
        /// Which.
        pass: u32,
    },
    /// How many of the kernels that were sent are still to be compiled?
    AskKernels,
    /// So many.
    Kernels {
        /// Neither compiled nor refused yet.
        left: u32,
    },
    /// The source is still there.
    Still,
    /// All pages were sent: the memories are as the source's were at its freeze.
    Complete {
        /// Records sent in all, over all lines and passes.
        records: u64,
        /// Bytes of pages in them, before compression.
        bytes: u64,
    },
    /// The bundle is held for a LOAD.
    Stored,
    /// The target is about to run what it has loaded.
    MayIRun,
    /// Do: the source never will again.
    Granted,
    /// Do not: the source runs, or neither may any more.
    Declined,
    /// The source is about to run: forget the bundle.
    Revoke,
    /// It is forgotten.
    Revoked,
    /// Too late: the target runs.
    Committed,
    /// It is over, for this reason.
    GiveUp {
        /// Why.
        reason: String,
    },
}

impl Message {
    /// Its bytes.
    ///
    /// # Errors
    /// It is longer than any may be.
    pub fn encode(&self) -> Result<Vec<u8>, MigrationError> {
        let bytes = serde_json::to_vec(self).map_err(std::io::Error::other)?;
        if bytes.len() > MAX_MESSAGE {
            return Err(MigrationError::State(format!("a message of {} bytes is too long", bytes.len())));
        }
        Ok(bytes)
    }

    /// From its bytes.
    ///
    /// # Errors
    /// They are no message.
    pub fn decode(bytes: &[u8]) -> Result<Self, MigrationError> {
        serde_json::from_slice(bytes)
            .map_err(|error| MigrationError::Protocol(format!("this is no message: {error}")))
    }

    /// A refusal in words that fit.
    pub fn refused(reason: &dyn std::fmt::Display) -> Self {
        Self::Refused { reason: shortened(&reason.to_string()) }
    }

    /// A good-bye in words that fit.
    pub fn give_up(reason: &dyn std::fmt::Display) -> Self {
        Self::GiveUp { reason: shortened(&reason.to_string()) }
    }
}

/// A reason of the peer, or for it, fit for a log: printable, and not long.
pub fn shortened(reason: &str) -> String {
    printable(reason, MAX_SHOWN)
}

/// The version that both sides speak.
///
/// # Errors
/// There is none.
pub fn common_version(hello: &Hello) -> Result<u32, String> {
    let version = hello.version.min(VERSION);
    if hello.oldest > hello.version || version < OLDEST.max(hello.oldest) {
        return Err(format!(
            "protocol versions {} to {} are offered, and {OLDEST} to {VERSION} spoken here",
            hello.oldest, hello.version
        ));
    }
    Ok(version)
}

mod digits {
    use serde::Deserialize;
    use serde::Deserializer;
    use serde::Serializer;
    use serde::de::Error;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        use std::fmt::Write;
        let text = bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _infallible = write!(text, "{byte:02x}");
            text
        });
        serializer.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let bytes: Option<Vec<u8>> =
            pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
        match bytes {
            Some(bytes) if rest.is_empty() => Ok(bytes),
            _ => Err(D::Error::custom("pairs of hexadecimal digits are wanted")),
        }
    }
}
