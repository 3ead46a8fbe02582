//! The guest driver of Campanile: a safe way from a guest program to the GPU.
//!
//! ```text
//!   Device::open(transport) ─▶ create_buffer, create_kernel
//!      └─ create_context(node) ─▶ create_user_queue   ring ─▶ doorbell ─▶ engine ─▶ progress fence
//!                              └▶ create_kernel_queue SUBMIT ─▶ daemon ─▶ engine ─▶ progress fence
//! ```
//!
//! What a user-mode queue does after it is set up costs no system call and no exit: stores to mapped memory.
//!
//! ```standalone_crate
//! use campanile_guest_driver::commands::CommandBuffer;
//! use campanile_guest_driver::device::Device;
//! use campanile_guest_driver::kernel::KernelSource;
//! use campanile_guest_driver::node::Node;
//! use campanile_test_vmm::options::VmOptions;
//! use campanile_test_vmm::vm::LoopbackVm;
//! use campanile_guest_driver::user_queue::QueueOptions;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # // A daemon within this program, whose engine processes are this program again.
//! # use std::os::fd::AsFd;
//! # if std::env::args().nth(1).as_deref() == Some("engine") {
//! #     let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
//! #     return Err(campanile_host_gpu::engine::start::main(socket).into());
//! # }
//! # let folder = tempfile::tempdir()?;
//! # let socket = folder.path().join("vgpu.sock");
//! # let arguments = ["campanile", "serve", "--vram", "64M", "--socket"].map(std::ffi::OsString::from);
//! # let arguments = arguments.into_iter().chain([socket.clone().into_os_string()]);
//! # let _daemon = campanile_daemon::cli::serve::start(arguments)?;
//! let vm = LoopbackVm::connect(&socket, &VmOptions::default())?;
//! let device = Device::open(vm.open("example")?)?;
//! let kernel = device.create_kernel(&KernelSource::wgsl(
//!     "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
//!      @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
//!          data[id.x] = id.x * id.x;
//!      }",
//! ))?;
//! let buffer = device.create_buffer(4 * 1024)?;
//! let context = device.create_context(Node::Compute)?;
//! let mut queue = context.create_user_queue(&QueueOptions::default())?;
//! let mut commands = CommandBuffer::new();
//! commands.dispatch(&kernel, [1024 / 64, 1, 1], &[buffer.binding(0)], &[])?;
//! queue.submit(&commands)?.wait(None)?;
//! let mut squares = vec![0; 4 * 1024];
//! buffer.read(0, &mut squares)?;
//! assert_eq!(squares[4 * 12..4 * 13], 144u32.to_le_bytes());
//! # Ok(())
//! # }
//! ```

mod absence;
pub mod buffer;
pub mod commands;
pub mod context;
mod control;
pub mod device;
pub mod error;
pub mod fence;
mod gate;
pub mod kernel;
pub mod kernel_queue;
pub mod loss;
pub mod native_fence;
pub mod node;
mod relay;
pub mod residency;
pub mod scheduling;
mod slots;
pub mod transport;
pub mod user_queue;
