//! PNG files.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::Context;

use crate::mandelbrot::LIMIT;
use crate::mandelbrot::SIDE;

/// The colour of a number of iterations: black inside, blue to gold outside.
fn colour(count: u32) -> [u8; 3] {
    if count >= LIMIT {
        return [0, 0, 0];
    }
    let mix = |low: u32, high: u32, at: u32| (low * (64 - at) + high * at) / 64;
    let at = count.min(63);
    let channel = |low, high| u8::try_from(mix(low, high, at)).unwrap_or(u8::MAX);
    [channel(9, 255), channel(20, 190), channel(70, 60)]
}

/// Writes a picture of [`SIDE`] × [`SIDE`] iteration counts.
pub fn write_png(path: &Path, counts: &[u32]) -> anyhow::Result<()> {
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    let mut encoder = png::Encoder::new(BufWriter::new(file), SIDE, SIDE);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    let pixels: Vec<u8> = counts.iter().flat_map(|count| colour(*count)).collect();
    writer.write_image_data(&pixels).with_context(|| format!("writing {}", path.display()))?;
    Ok(())
}
