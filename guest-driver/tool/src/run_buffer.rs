//! Buffers, groups and constants as `run` takes them from the command line.

use std::path::PathBuf;

/// How a buffer's words are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordKind {
    /// Unsigned.
    U32,
    /// Signed.
    I32,
    /// Floating point.
    F32,
}

/// One buffer of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferSpec {
    /// Binding number.
    pub slot: u32,
    /// Size; without it that of the input.
    pub bytes: Option<u64>,
    /// Where its content comes from.
    pub input: Option<PathBuf>,
    /// Where its content goes afterwards.
    pub output: Option<PathBuf>,
    /// How its first words are printed afterwards.
    pub show: Option<WordKind>,
}

/// `SLOT:KEY=VALUE,…`
pub fn parse_buffer(text: &str) -> Result<BufferSpec, String> {
    let (slot, parts) = text.split_once(':').ok_or_else(|| format!("{text:?} has no SLOT: before it"))?;
    let slot = slot.parse().map_err(|_| format!("{slot:?} is no binding number"))?;
    let mut spec = BufferSpec { slot, bytes: None, input: None, output: None, show: None };
    for part in parts.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not KEY=VALUE"))?;
        match key {
            "bytes" => spec.bytes = Some(parse_size(value)?),
            "in" => spec.input = Some(value.into()),
            "out" => spec.output = Some(value.into()),
            "show" => {
                spec.show = Some(match value {
                    "u32" => WordKind::U32,
                    "i32" => WordKind::I32,
                    "f32" => WordKind::F32,
                    _ => return Err(format!("{value:?} cannot be shown; u32, i32 and f32 can")),
                });
            }
            _ => return Err(format!("{key:?} is unknown; bytes, in, out and show are")),
        }
    }
    if spec.bytes.is_none() && spec.input.is_none() {
        return Err(format!("buffer {slot} has no size: give bytes=SIZE or in=FILE"));
    }
    Ok(spec)
}

/// Bytes, or a number that ends in K or M.
fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 10),
        None => text.strip_suffix(['M', 'm']).map_or((text, 0), |digits| (digits, 20)),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.filter(|bytes| *bytes > 0).ok_or_else(|| format!("{text:?} is no size; write 4096, 64K or 1M"))
}

/// `X`, `X,Y` or `X,Y,Z`.
pub fn parse_groups(text: &str) -> Result<[u32; 3], String> {
    let wrong = || format!("{text:?} is no grid; write X, X,Y or X,Y,Z");
    let mut groups = [1; 3];
    for (index, number) in text.split(',').enumerate() {
        *groups.get_mut(index).ok_or_else(wrong)? = number.trim().parse().map_err(|_| wrong())?;
    }
    Ok(groups)
}

/// A word of the constants: a whole number, or with a point in it an f32.
pub fn parse_constant(text: &str) -> Result<u32, String> {
    let wrong = || format!("{text:?} is neither a 32-bit number nor an f32");
    if text.contains('.') {
        return text.parse::<f32>().map(f32::to_bits).map_err(|_| wrong());
    }
    let signed = |_| text.parse::<i32>().map(i32::cast_unsigned);
    text.parse::<u32>().or_else(signed).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::BufferSpec;
    use super::WordKind;
    use super::parse_buffer;
    use super::parse_constant;
    use super::parse_groups;

    #[test]
    fn a_buffer_is_read_from_its_parts() {
        let spec = parse_buffer("2:bytes=64K,in=a.bin,out=b.bin,show=f32").unwrap();
        let (input, output) = (Some("a.bin".into()), Some("b.bin".into()));
        let show = Some(WordKind::F32);
        assert_eq!(spec, BufferSpec { slot: 2, bytes: Some(65536), input, output, show });
        assert!(parse_buffer("0:in=a.bin").is_ok());
    }

    #[test]
    fn a_buffer_that_cannot_be_is_refused_by_what_is_wrong() {
        for (text, word) in [
            ("bytes=4", "SLOT"),
            ("x:bytes=4", "binding number"),
            ("0:bytes=0", "size"),
            ("0:out=a", "no size"),
            ("0:bytes=4,colour=red", "colour"),
            ("0:bytes=4,show=u64", "u64"),
        ] {
            let refused = parse_buffer(text).unwrap_err();
            assert!(refused.contains(word), "{text}: {refused}");
        }
    }

    #[test]
    fn groups_and_constants_are_read() {
        assert_eq!(parse_groups("3"), Ok([3, 1, 1]));
        assert_eq!(parse_groups("3,4,5"), Ok([3, 4, 5]));
        assert!(parse_groups("1,2,3,4").is_err());
        assert_eq!(parse_constant("-1"), Ok(u32::MAX));
        assert_eq!(parse_constant("1.0"), Ok(0x3f80_0000));
        assert!(parse_constant("one").is_err());
    }
}
