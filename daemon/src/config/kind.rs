//! What the value of an option is, and how a file writes it.

use std::any::TypeId;
use std::path::PathBuf;

use clap::Arg;
use clap::ArgAction;
use toml::de::DeValue;

/// The kinds of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// On or off; on the command line it is there or not.
    Flag,
    /// A whole number.
    Number,
    /// Bytes, or a text such as `512M`.
    Size,
    /// The path of a file, a folder or a socket.
    Path,
    /// Anything else: the text of the command line.
    Text,
}

impl Kind {
    /// Of an option of the command line.
    pub fn of(option: &Arg) -> Self {
        let holds = |id: TypeId| option.get_value_parser().type_id() == id;
        let numbers = [
            TypeId::of::<u8>(),
            TypeId::of::<u32>(),
            TypeId::of::<i32>(),
            TypeId::of::<u64>(),
            TypeId::of::<usize>(),
        ];
        let is_size = option.get_value_names().into_iter().flatten().any(|name| name == "SIZE");
        if matches!(option.get_action(), ArgAction::SetTrue) {
            Self::Flag
        } else if is_size {
            Self::Size
        } else if numbers.into_iter().any(holds) {
            Self::Number
        } else if holds(TypeId::of::<PathBuf>()) {
            Self::Path
        } else {
            Self::Text
        }
    }

    /// What a file may say, in words.
    pub fn allowed(self) -> &'static str {
        match self {
            Self::Flag => "true or false",
            Self::Number => "a whole number",
            Self::Size => "a size: bytes, or a text such as \"512M\" or \"2G\"",
            Self::Path => "a path, as a text",
            Self::Text => "a text",
        }
    }

    /// The value as the command line has it; none where it is of another kind.
    pub fn text(self, value: &DeValue<'_>) -> Option<String> {
        match (self, value) {
            (Self::Flag, DeValue::Boolean(value)) => Some(value.to_string()),
            (Self::Size | Self::Path | Self::Text, DeValue::String(text)) => Some(text.to_string()),
            // Some options are a number or a word.
            (Self::Number | Self::Size | Self::Text, DeValue::Integer(number)) => {
                let digits = i64::from_str_radix(number.as_str(), number.radix()).ok()?;
                Some(digits.to_string())
            }
            _ => None,
        }
    }
}
