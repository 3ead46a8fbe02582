//! Colours as texels.

use campanile_protocol::texels::Format;

use super::surface::Colours;

/// How the components of a texel are stored, from the lowest bits on: bits of each.
enum Stored {
    /// Floats of 0 to 1.
    Unsigned(&'static [u32]),
    /// Floats of -1 to 1.
    Signed(&'static [u32]),
    /// Integers.
    Integer(&'static [u32]),
    /// Floats of 16 bits.
    Half(usize),
    /// Words as they are.
    Whole(usize),
    /// Floats without a sign, of 11, 11 and 10 bits.
    Small,
}

fn stored(format: &Format) -> Option<Stored> {
    const EIGHT: [u32; 4] = [8; 4];
    const SIXTEEN: [u32; 4] = [16; 4];
    let count = format.components() as usize;
    let (eight, sixteen) = (EIGHT.get(..count)?, SIXTEEN.get(..count)?);
    // `EIGHT` and `SIXTEEN` are constants: what is taken of them lives as long as the program.
    Some(match format.code {
        9 | 16 | 37 | 44 | 51 => Stored::Unsigned(eight),
        10 | 17 | 38 | 52 => Stored::Signed(eight),
        70 | 77 | 91 => Stored::Unsigned(sixteen),
        71 | 78 | 92 => Stored::Signed(sixteen),
        13 | 14 | 20 | 21 | 41 | 42 | 55 | 56 => Stored::Integer(eight),
        64 => Stored::Unsigned(&[10, 10, 10, 2]),
        68 => Stored::Integer(&[10, 10, 10, 2]),
        74 | 75 | 81 | 82 | 95 | 96 => Stored::Integer(sixteen),
        76 | 83 | 97 => Stored::Half(count),
        98..=109 => Stored::Whole(count),
        122 => Stored::Small,
        _ => return None,
    })
}

/// A float with 5 bits of exponent and `mantissa` bits behind, rounded to the nearest.
fn small(value: f32, mantissa: u32) -> u32 {
    let largest = 31 << mantissa;
    if value.is_nan() {
        return largest | 1 << (mantissa - 1);
    }
    let bits = value.to_bits();
    let exponent = (bits >> 23 & 0xff) as i32 - 127 + 15;
    if value.is_infinite() || exponent > 30 {
        return largest;
    }
    // One bit more than is stored, and how far it is moved to the right.
    let (whole, shift) = match exponent {
        1.. => (bits & 0x007f_ffff | exponent.cast_unsigned() << 23, 23 - mantissa),
        _ => (bits & 0x007f_ffff | 0x0080_0000, 23 - mantissa + exponent.abs_diff(1)),
    };
    if shift > 24 {
        return 0;
    }
    let (kept, rest, half) = (whole >> shift, whole & ((1 << shift) - 1), 1 << (shift - 1));
    kept + u32::from(rest > half || rest == half && kept & 1 == 1)
}

fn half(value: f32) -> u32 {
    value.to_bits() >> 16 & 0x8000 | small(value.abs(), 10)
}

#[expect(clippy::cast_possible_truncation, reason = "what was clamped fits")]
fn normal(value: f32, least: f32, most: u32) -> u32 {
    let value = if value.is_nan() { 0.0 } else { value.clamp(least, 1.0) };
    ((f64::from(value) * f64::from(most)).round() as i32).cast_unsigned()
}

/// Light as sRGB encodes it.
fn encoded(light: f32) -> f32 {
    if light <= 0.003_130_8 { light * 12.92 } else { light.powf(1.0 / 2.4) * 1.055 - 0.055 }
}

/// The bytes of a texel of a colour, which is given by the bits of its components.
pub(crate) fn texel(colours: Colours, colour: [u32; 4]) -> Option<Vec<u8>> {
    let Colours { format, is_srgb } = colours;
    let mut components = colour;
    if is_srgb {
        components[..3].iter_mut().for_each(|part| *part = encoded(f32::from_bits(*part)).to_bits());
    }
    // Of B8G8R8A8, blue comes first.
    if format.code == 44 {
        components.swap(0, 2);
    }
    let floats = components.map(f32::from_bits);
    let packed = |widths: &[u32], code: &dyn Fn(usize, u32) -> u32| {
        let mut all = 0_u128;
        let mut at = 0;
        for (component, width) in widths.iter().enumerate() {
            let mask = (1_u128 << width) - 1;
            all |= (u128::from(code(component, *width)) & mask) << at;
            at += width;
        }
        all
    };
    let float = |component: usize| floats.get(component).copied().unwrap_or(0.0);
    let word = |component: usize| components.get(component).copied().unwrap_or(0);
    let all = match stored(format)? {
        Stored::Unsigned(widths) => packed(widths, &|at, width| normal(float(at), 0.0, (1 << width) - 1)),
        Stored::Signed(widths) => {
            packed(widths, &|at, width| normal(float(at), -1.0, (1 << (width - 1)) - 1))
        }
        Stored::Integer(widths) => packed(widths, &|at, _| word(at)),
        Stored::Half(count) => packed(&[16; 4][..count], &|at, _| half(float(at))),
        Stored::Whole(count) => packed(&[32; 4][..count], &|at, _| word(at)),
        Stored::Small => packed(&[11, 11, 10], &|at, width| {
            let value = float(at);
            if value < 0.0 { 0 } else { small(value, width - 5) }
        }),
    };
    all.to_le_bytes().get(..format.bytes as usize).map(<[u8]>::to_vec)
}

/// The word that a texel is all over again, if it is.
pub(crate) fn word(texel: &[u8]) -> Option<u32> {
    let all: Vec<u8> = texel.iter().copied().cycle().take(texel.len().max(4)).collect();
    let words = all.as_chunks().0;
    let first = words.first()?;
    words.iter().all(|word| word == first).then(|| u32::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use campanile_protocol::texels;

    use super::Colours;
    use super::half;
    use super::texel;
    use super::word;

    fn colours(code: u16) -> Colours {
        Colours { format: texels::find(code).unwrap(), is_srgb: false }
    }

    fn floats(code: u16, colour: [f32; 4]) -> Vec<u8> {
        texel(colours(code), colour.map(f32::to_bits)).unwrap()
    }

    #[test]
    fn colours_are_stored_as_their_format_says() {
        assert_eq!(floats(37, [0.0, 0.5, 1.0, 2.0]), [0, 128, 255, 255]);
        assert_eq!(floats(44, [0.0, 0.5, 1.0, 2.0]), [255, 128, 0, 255]);
        assert_eq!(floats(38, [-1.0, -2.0, 1.0, f32::NAN]), [0x81, 0x81, 0x7f, 0]);
        assert_eq!(floats(77, [1.0, 0.5, 9.0, 9.0]), [0xff, 0xff, 0x00, 0x80]);
        assert_eq!(floats(71, [-1.0, 9.0, 9.0, 9.0]), [0x01, 0x80]);
        assert_eq!(floats(64, [1.0, 0.0, 1.0, 1.0]), (0xfff0_03ff_u32).to_le_bytes());
        assert_eq!(floats(83, [1.0, -2.0, 9.0, 9.0]), [0x00, 0x3c, 0x00, 0xc0]);
        assert_eq!(floats(100, [1.5, 9.0, 9.0, 9.0]), 1.5_f32.to_le_bytes());
        assert_eq!(floats(122, [1.0, 0.5, -1.0, 0.0]), (0x3c0_u32 | 0x380 << 11).to_le_bytes());
        let words = texel(colours(41), [1, 2, 3, u32::MAX]).unwrap();
        assert_eq!(words, [1, 2, 3, 255]);
        for format in texels::FORMATS {
            assert_eq!(
                texel(colours(format.code), [0; 4]).unwrap().len(),
                format.bytes as usize,
                "{}",
                format.name
            );
        }
    }

    #[test]
    fn colours_of_srgb_are_encoded_and_alpha_is_not() {
        let blue_first = Colours { is_srgb: true, ..colours(44) };
        let bytes = |colour: [f32; 4]| texel(blue_first, colour.map(f32::to_bits)).unwrap();
        assert_eq!(bytes([0.002, 1.5, 0.5, 0.5]), [188, 255, 7, 128]);
        assert_eq!(bytes([-1.0, 0.214_041_14, f32::NAN, 1.0]), [0, 128, 0, 255]);
    }

    #[test]
    fn halves_are_rounded_to_the_nearest() {
        let pairs = [(1.0, 0x3c00), (-0.0, 0x8000), (65504.0, 0x7bff), (65520.0, 0x7c00), (1e30, 0x7c00)];
        for (value, bits) in pairs {
            assert_eq!(half(value), bits, "{value}");
        }
        // The smallest one, half of it, which is even, and three halves.
        let least = 2.0_f32.powi(-24);
        assert_eq!([least, least / 2.0, least * 1.5].map(half), [1, 0, 2]);
        assert_eq!(half(1.0 + 2.0_f32.powi(-11)), 0x3c00);
        assert_eq!(half(1.0 + 3.0 * 2.0_f32.powi(-11)), 0x3c02);
        assert_eq!(half(2.0_f32.powi(-14) - least / 4.0), 0x0400);
    }

    #[test]
    fn a_texel_that_repeats_is_a_word() {
        assert_eq!(word(&[7]), Some(0x0707_0707));
        assert_eq!(word(&[1, 2]), Some(0x0201_0201));
        assert_eq!(word(&[1, 2, 3, 4, 1, 2, 3, 4]), Some(0x0403_0201));
        assert_eq!(word(&[1, 2, 3, 4, 1, 2, 3, 5]), None);
    }
}
