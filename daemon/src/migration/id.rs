//! Names of bundles.

use std::fmt;
use std::io;
use std::str::FromStr;

use serde::Deserialize;
use serde::Serialize;

use super::state;

/// The name of one bundle: what the memories of one vGPU were at one freeze. Random, so that a peer that knows it was
/// told by the source or by the saved state; each is used once, and so is the epoch of design §10.8 too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct BundleId(pub [u8; 16]);

impl BundleId {
    /// A new one.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for BundleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BundleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<BundleId> for String {
    fn from(id: BundleId) -> Self {
        id.to_string()
    }
}

impl From<BundleId> for state::BundleId {
    fn from(id: BundleId) -> Self {
        let [high, low] =
            [0, 8].map(|at| id.0[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        Self(high, low)
    }
}

impl From<state::BundleId> for BundleId {
    fn from(id: state::BundleId) -> Self {
        Self((u128::from(id.0) << 64 | u128::from(id.1)).to_be_bytes())
    }
}

impl FromStr for BundleId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no bundle: 32 hexadecimal digits are");
        if text.len() != 32 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| wrong())?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl TryFrom<String> for BundleId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::BundleId;

    #[test]
    fn a_bundle_is_written_as_32_digits_and_read_back() {
        let id = BundleId::random().unwrap();
        assert_ne!(id, BundleId::random().unwrap());
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.to_string().len(), 32);
        assert_eq!(BundleId::from(super::state::BundleId::from(id)), id);
        for wrong in ["", "+1", "0x123456789012345678901234567890", "+1234567890123456789012345678901"] {
            assert!(wrong.parse::<BundleId>().is_err(), "{wrong}");
        }
    }
}
