//! `campanile inspect`.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;

use super::args::InspectArguments;
use super::output::print;
use crate::migration::channel::frame::MAGIC;
use crate::migration::file::read;
use crate::migration::inspect;
use crate::migration::memory::Memory;
use crate::migration::state::MAX_BYTES;

/// Says what is in a file.
///
/// # Errors
/// It cannot be read, or is none that this daemon knows.
pub fn run(arguments: &InspectArguments) -> anyhow::Result<()> {
    let name = || arguments.file.display().to_string();
    let file = File::open(&arguments.file).with_context(name)?;
    let mut magic = [0; 4];
    if file.read_exact_at(&mut magic, 0).is_ok() && magic == MAGIC {
        return pages(&arguments.file).with_context(name);
    }
    let mut bytes = Vec::new();
    // One byte more says that there are too many.
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).with_context(name)?;
    let text = inspect::describe(&bytes).with_context(name)?;
    print(&text)?;
    Ok(())
}

/// A side file or a snapshot: its pages in numbers, then its state, where it has one.
fn pages(path: &Path) -> anyhow::Result<()> {
    let contents = read::inspect(path)?;
    let hello = &contents.hello;
    let kind = if contents.state.is_some() { "snapshot" } else { "side file" };
    let mut text = format!("{kind} of vGPU {}, bundle {}\n", hello.vgpu, hello.bundle);
    for memory in Memory::ALL {
        let (data, zero) = contents.pages(memory);
        let length = hello.memories[memory.index()] >> 20;
        text.push_str(&format!("{memory} of {length} MiB: {data} pages written, {zero} zero\n"));
    }
    let (packed, records) = (contents.packed_bytes >> 10, contents.records);
    text.push_str(&format!("{packed} KiB in {records} records\n"));
    if let Some(state) = &contents.state {
        text.push_str(&inspect::describe(state)?);
    }
    print(&text)?;
    Ok(())
}
