//! `campanile-guest run`.

use std::fs;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::packet::Binding;
use zerocopy::IntoBytes;

use crate::args::RunArguments;
use crate::run_buffer::BufferSpec;
use crate::run_buffer::WordKind;

/// Words of a buffer that are shown.
const SHOWN: usize = 16;

/// A buffer of the run: what was asked for, the memory, and the bytes that the kernel may reach.
struct Bound<'a> {
    spec: &'a BufferSpec,
    buffer: Buffer,
    bytes: u64,
}

impl<'a> Bound<'a> {
    fn new(device: &Device, spec: &'a BufferSpec) -> anyhow::Result<Self> {
        let content = match &spec.input {
            Some(path) => fs::read(path).with_context(|| format!("reading {}", path.display()))?,
            None => Vec::new(),
        };
        let length = content.len() as u64;
        let bytes = spec.bytes.unwrap_or(length).next_multiple_of(4);
        anyhow::ensure!(
            length <= bytes && bytes > 0,
            "buffer {}: {bytes} bytes do not hold the {length} of its input",
            spec.slot
        );
        let buffer = device.create_buffer(bytes).with_context(|| format!("buffer {}", spec.slot))?;
        buffer.write(0, &content)?;
        Ok(Self { spec, buffer, bytes })
    }

    fn binding(&self) -> anyhow::Result<Binding> {
        Ok(self.buffer.binding_range(self.spec.slot, 0, self.bytes)?)
    }

    fn hand_out(&self) -> anyhow::Result<()> {
        let mut content = vec![0; usize::try_from(self.bytes)?];
        self.buffer.read(0, &mut content)?;
        if let Some(path) = &self.spec.output {
            fs::write(path, &content).with_context(|| format!("writing {}", path.display()))?;
        }
        if let Some(kind) = self.spec.show {
            let words = content.chunks_exact(4).take(SHOWN).map(|word| show(kind, word));
            println!("buffer {}: {}", self.spec.slot, words.collect::<Vec<_>>().join(" "));
        }
        Ok(())
    }
}

fn show(kind: WordKind, word: &[u8]) -> String {
    let bits = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    match kind {
        WordKind::U32 => bits.to_string(),
        WordKind::I32 => bits.cast_signed().to_string(),
        WordKind::F32 => f32::from_bits(bits).to_string(),
    }
}

/// Compiles, binds, runs, waits, hands out.
pub fn run(device: &Device, arguments: &RunArguments) -> anyhow::Result<()> {
    let path = arguments.kernel.display();
    let text = fs::read_to_string(&arguments.kernel).with_context(|| format!("reading {path}"))?;
    let mut source = KernelSource::wgsl(&text);
    if let Some(entry) = &arguments.entry {
        source = source.entry(entry);
    }
    let kernel = device.create_kernel(&source).with_context(|| format!("compiling {path}"))?;
    let bound: Vec<Bound<'_>> =
        arguments.buffers.iter().map(|spec| Bound::new(device, spec)).collect::<anyhow::Result<_>>()?;
    let bindings: Vec<Binding> = bound.iter().map(Bound::binding).collect::<anyhow::Result<_>>()?;
    let mut commands = CommandBuffer::new();
    commands.dispatch(&kernel, arguments.groups, &bindings, arguments.constants.as_bytes())?;

    let context = device.create_context(Node::Compute)?;
    let limit = Some(Duration::from_secs(arguments.timeout));
    let begun = Instant::now();
    let done = if arguments.kernel_mode {
        let mut queue = context.create_kernel_queue()?;
        let ticket = queue.submit(&commands)?;
        queue.wait(ticket, limit)
    } else {
        let mut queue = context.create_user_queue(&QueueOptions::default())?;
        queue.submit(&commands)?.wait(limit)
    };
    done.with_context(|| format!("running {path}"))?;
    println!("{path} ran {:.3} ms", begun.elapsed().as_secs_f64() * 1000.0);
    bound.iter().try_for_each(Bound::hand_out)
}
