//! `campanile inspect`.

use std::fs::File;
use std::io::Read;
use std::io::Write;
use std::io::stdout;

use anyhow::Context;

use super::args::InspectArguments;
use crate::migration::inspect;
use crate::migration::state::MAX_BYTES;

/// Says what is in a file.
///
/// # Errors
/// It cannot be read, or is none that this daemon knows.
pub fn run(arguments: &InspectArguments) -> anyhow::Result<()> {
    let name = || arguments.file.display().to_string();
    let file = File::open(&arguments.file).with_context(name)?;
    let mut bytes = Vec::new();
    // One byte more says that there are too many.
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).with_context(name)?;
    let text = inspect::describe(&bytes).with_context(name)?;
    stdout().write_all(text.as_bytes())?;
    Ok(())
}
