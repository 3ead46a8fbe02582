//! What is kept of a command that is answered later.

use campanile_protocol::virtio_gpu::command::Header;
use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;
use serde::de::Error;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

/// What to say when a token is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Response {
    /// OK_NODATA.
    Plain,
    /// OK_MAP_INFO.
    MapInfo,
}

/// A command that waits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Asked {
    #[serde(serialize_with = "write_header", deserialize_with = "read_header")]
    pub(super) header: Header,
    pub(super) response: Response,
}

/// As bytes.
fn write_header<S: Serializer>(header: &Header, to: S) -> Result<S::Ok, S::Error> {
    header.as_bytes().serialize(to)
}

fn read_header<'de, D: Deserializer<'de>>(from: D) -> Result<Header, D::Error> {
    let bytes = Vec::<u8>::deserialize(from)?;
    Header::read_from_bytes(&bytes).map_err(|_| D::Error::custom("no header"))
}

#[cfg(test)]
mod tests {
    use super::Asked;
    use crate::frontend::waiting::WaitingList;

    /// What version 1 wrote. Never changed: what it reads as must stay.
    const OLD: &str = r#"{"last_token":2,"waiting":[{"token":2,"queue":0,"head":9,"header":[2,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"response":"Plain","outcome":null}]}"#;

    #[test]
    fn state_of_before_the_other_front_is_read_and_written_as_ever() {
        let list: WaitingList<Asked> = WaitingList::load(OLD.as_bytes()).unwrap();
        assert_eq!(list.save().unwrap(), OLD.as_bytes());
        let short = OLD.replacen("[2,", "[", 1);
        assert!(WaitingList::<Asked>::load(short.as_bytes()).is_err(), "no header");
    }
}
