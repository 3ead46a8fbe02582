//! A byte string: written as one, not as a list of numbers.

use std::fmt;

use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;
use serde::de::Error;
use serde::de::SeqAccess;
use serde::de::Visitor;

/// Bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

struct BytesVisitor;

impl<'de> Visitor<'de> for BytesVisitor {
    type Value = Bytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a byte string")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
        Ok(Bytes(bytes.to_vec()))
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
        Ok(Bytes(bytes))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Bytes, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = list.next_element()? {
            bytes.push(byte);
        }
        Ok(Bytes(bytes))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(BytesVisitor)
    }
}

#[cfg(test)]
mod tests {
    use ciborium::Value;
    use serde::de::IntoDeserializer;
    use serde::de::value::BytesDeserializer;
    use serde::de::value::Error;
    use serde::de::value::SeqDeserializer;

    use super::Bytes;
    use serde::Deserialize;

    #[test]
    fn bytes_are_written_as_a_byte_string_and_read_as_one_or_as_a_list_of_numbers() {
        let bytes = Bytes(vec![0, 1, 255]);
        let mut text = Vec::new();
        ciborium::into_writer(&bytes, &mut text).unwrap();
        assert_eq!(text, [0x43, 0, 1, 255]);
        assert_eq!(ciborium::from_reader::<Bytes, _>(text.as_slice()).unwrap(), bytes);
        let list = Value::Array([0, 1, 255].map(Value::from).to_vec());
        let mut text = Vec::new();
        ciborium::into_writer(&list, &mut text).unwrap();
        assert_eq!(ciborium::from_reader::<Bytes, _>(text.as_slice()).unwrap(), bytes);
        // Other formats lend them, or have them one by one.
        let lent = BytesDeserializer::<Error>::new(&[0, 1, 255]);
        assert_eq!(Bytes::deserialize(lent).unwrap(), bytes);
        let list = SeqDeserializer::<_, Error>::new([0u8, 1, 255].into_iter());
        assert_eq!(Bytes::deserialize(list).unwrap(), bytes);
        let number: serde::de::value::U64Deserializer<Error> = 5u64.into_deserializer();
        let why = Bytes::deserialize(number).unwrap_err().to_string();
        assert!(why.contains("expected a byte string"), "{why}");
    }
}
