//! Formats of storage images that kernels name: Vulkan leaves what becomes of texels undefined where a view has another one, and devices go by the view,
//! on which programs rely (FFmpeg 5 names `rgba8` for each plane of a picture). So kernels name none, where the device needs none; but for those of
//! one word, which atomics need.

use std::collections::HashSet;

use ::spirv::Capability;
use ::spirv::Dim;
use ::spirv::ImageFormat;
use ::spirv::Op;

use crate::spirv;
use crate::spirv::instructions;

/// The operand of an image type that says that it is stored to and not sampled.
const STORED: u32 = 2;

/// Whether the name of a format has to stay.
fn is_kept(format: u32) -> bool {
    [ImageFormat::Unknown, ImageFormat::R32i, ImageFormat::R32ui].iter().any(|kept| *kept as u32 == format)
}

/// The words of a module whose storage images name no format; none where none has to change.
pub(crate) fn unnamed(words: &[u32]) -> Option<Vec<u32>> {
    let mut out = words.get(..spirv::HEADER)?.to_vec();
    let declared: HashSet<u32> = instructions(words)
        .filter(|(op, _)| *op == Op::Capability as u32)
        .filter_map(|(_, instruction)| instruction.get(1).copied())
        .collect();
    for capability in [Capability::StorageImageReadWithoutFormat, Capability::StorageImageWriteWithoutFormat]
    {
        if !declared.contains(&(capability as u32)) {
            out.extend([2 << 16 | Op::Capability as u32, capability as u32]);
        }
    }
    let mut changes = false;
    for (op, instruction) in instructions(words) {
        let at = out.len();
        out.extend(instruction);
        if let [_, _, _, dim, _, _, _, STORED, format, ..] = instruction
            && op == Op::TypeImage as u32
            && *dim != Dim::DimBuffer as u32
            && !is_kept(*format)
            && let Some(place) = out.get_mut(at + 8)
        {
            *place = ImageFormat::Unknown as u32;
            changes = true;
        }
    }
    changes.then_some(out)
}

#[cfg(test)]
mod tests {
    use ::spirv::Op;

    use super::unnamed;
    use crate::lower::tests::shader;
    use crate::lower::write::lowered;
    use crate::spirv::instructions;

    /// The formats of images that are stored to.
    fn formats(words: &[u32]) -> Vec<u32> {
        let stored = |(op, it): &(u32, &[u32])| *op == Op::TypeImage as u32 && it[7] == 2;
        let mut all: Vec<u32> = instructions(words).filter(stored).map(|(_, it)| it[8]).collect();
        all.sort_unstable();
        all
    }

    fn capabilities(words: &[u32]) -> Vec<u32> {
        instructions(words).filter(|(op, _)| *op == Op::Capability as u32).map(|(_, it)| it[1]).collect()
    }

    #[test]
    fn storage_images_name_no_format_but_those_of_one_word() {
        const R32UI: u32 = 33;
        let words = shader("formats");
        assert!(formats(&words).iter().filter(|format| **format != 0).count() == 4);
        let bare = unnamed(&words).unwrap();
        assert!(formats(&bare).iter().all(|format| *format == 0));
        for capability in [55, 56] {
            assert_eq!(capabilities(&bare).iter().filter(|it| **it == capability).count(), 1);
        }
        // What has become the same type is one when it is lowered.
        assert!(lowered(&bare).unwrap().is_some());
        // Nothing is left to do; and atomics are of a format that is named.
        assert_eq!(unnamed(&bare), None);
        let of_words = shader("open");
        assert!(formats(&of_words).contains(&R32UI));
        assert_eq!(unnamed(&of_words), None);
        assert_eq!(unnamed(&shader("texels")), None, "texel buffers keep theirs");
        for end in 0..words.len() {
            let _without_a_panic = unnamed(&words[..end]);
        }
    }
}
