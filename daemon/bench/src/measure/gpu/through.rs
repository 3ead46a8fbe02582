//! A guest of a daemon.

use std::ffi::OsString;
use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::residency::LocalBuffer;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_protocol::profile::KIND_CPU;
use campanile_protocol::profile::name_of;

use super::work;
use super::work::SAMPLE;
use super::work::Side;
use super::work::Sizes;
use super::work::Work;
use crate::measure::daemon::DaemonProcess;
use crate::measure::guests::can_compute;
use crate::measure::guests::open_guest;
use crate::measure::guests::user_queue;

/// How long what is not timed may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Bytes that a vGPU's video memory begins with and that its guest's CPU sees, by default.
pub(super) const APERTURE: u64 = 256 << 20;

/// Fields end in order: first what needs the next.
pub(super) struct Through {
    compute: UserQueue,
    copies: UserQueue,
    saxpy: CommandBuffer,
    matmul: CommandBuffer,
    copy: CommandBuffer,
    launch: CommandBuffer,
    y: LocalBuffer,
    c: LocalBuffer,
    /// What results are copied to, to be looked at.
    result: Buffer,
    sizes: Sizes,
    /// Polls for the end of work, or sleeps until then: kernels of a CPU driver want the core.
    polls: bool,
    _others: [LocalBuffer; 3],
    _kernels: [Kernel; 3],
    _device: Device,
    _daemon: DaemonProcess,
}

impl Through {
    /// A daemon with these settings, whose compute node is on the device of this name.
    pub(super) fn new(settings: &[OsString], device_name: &str, sizes: Sizes) -> anyhow::Result<Self> {
        // Local buffers have no place in the aperture.
        let bytes = 2 * sizes.vector_bytes + 3 * sizes.matrix_bytes() + APERTURE + (64 << 20);
        let daemon = DaemonProcess::with_memory(&format!("vram={}M", bytes >> 20), settings)?;
        let device = open_guest(&daemon.socket())?;
        anyhow::ensure!(can_compute(&device), "no compute node, so nothing is dispatched");
        let profile = device.profile()?;
        let name = name_of(&profile.name);
        // Of a long name the guest knows the beginning.
        anyhow::ensure!(
            !name.is_empty() && device_name.starts_with(name),
            "the daemon computes on {name}, the bare driver on {device_name}"
        );
        let kernel = |text: &str| device.create_kernel(&KernelSource::wgsl(text));
        let (start, fill) = (kernel(work::START)?, kernel(work::FACTORS)?);
        let kernels = [kernel(work::SAXPY)?, kernel(work::MATMUL)?, kernel(work::COUNT)?];
        let local = |bytes: u64| device.create_local_buffer(bytes);
        let (x, y) = (local(sizes.vector_bytes)?, local(sizes.vector_bytes)?);
        let matrix = sizes.matrix_bytes();
        let (a, b, c) = (local(matrix)?, local(matrix)?, local(matrix)?);
        let result = device.create_buffer(3 * SAMPLE)?;
        let (mut compute, copies) = (user_queue(&device, Node::Compute)?, user_queue(&device, Node::Copy)?);

        let vectors =
            [x.binding_range(0, 0, sizes.vector_bytes)?, y.binding_range(1, 0, sizes.vector_bytes)?];
        let factors = [a.binding_range(0, 0, matrix)?, b.binding_range(1, 0, matrix)?];
        let product = [factors[0], factors[1], c.binding_range(2, 0, matrix)?];
        let mut prepare = CommandBuffer::new();
        prepare.dispatch(&start, sizes.vector_groups()?, &vectors, &[])?;
        prepare.dispatch(&fill, sizes.matrix_groups()?, &factors, &[])?;
        compute.submit(&prepare)?.wait(Some(LIMIT))?;

        let [mut saxpy, mut matmul, mut copy, mut launch] = [(); 4].map(|()| CommandBuffer::new());
        saxpy.dispatch(&kernels[0], sizes.vector_groups()?, &vectors, &[])?;
        matmul.dispatch(&kernels[1], sizes.product_groups(), &product, &sizes.side.to_ne_bytes())?;
        copy.copy(x.va(), y.va(), sizes.vector_bytes)?;
        launch.dispatch(&kernels[2], [1; 3], &[y.binding_range(0, 0, sizes.vector_bytes)?], &[])?;
        Ok(Self {
            compute,
            copies,
            saxpy,
            matmul,
            copy,
            launch,
            y,
            c,
            result,
            sizes,
            polls: profile.kind != KIND_CPU,
            _others: [x, a, b],
            _kernels: kernels,
            _device: device,
            _daemon: daemon,
        })
    }
}

impl Side for Through {
    fn run(&mut self, work: Work) -> anyhow::Result<Duration> {
        let (queue, commands) = match work {
            Work::Saxpy => (&mut self.compute, &self.saxpy),
            Work::Matmul => (&mut self.compute, &self.matmul),
            Work::Copy => (&mut self.copies, &self.copy),
        };
        let begun = Instant::now();
        let end = queue.submit(commands)?;
        if self.polls {
            end.spin()?
        } else {
            end.wait(Some(LIMIT))?
        }
        Ok(begun.elapsed())
    }

    fn launch(&mut self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        self.compute.submit(&self.launch)?.spin()?;
        Ok(begun.elapsed())
    }

    fn result(&mut self, work: Work) -> anyhow::Result<Vec<u8>> {
        let source = if work == Work::Matmul { &self.c } else { &self.y };
        let mut commands = CommandBuffer::new();
        for (index, (start, length)) in (0..).zip(work::samples(self.sizes.result_bytes(work))) {
            commands.copy(source.va() + start, self.result.va() + index * SAMPLE, length)?;
        }
        self.copies.submit(&commands)?.wait(Some(LIMIT))?;
        let mut found = vec![0; usize::try_from(3 * SAMPLE)?];
        self.result.read(0, &mut found)?;
        Ok(found)
    }
}
