//! Texel buffers from a guest program to the GPU and back, through a move of the guest, and with formats that are none.

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::profile;
use campanile_protocol::texels;
use campanile_protocol::texels::Offer;
use campanile_test_vmm::migration::options::MigrateOptions;

use crate::assembly::assemble;
use crate::frame;
use crate::frame::Parts;
use crate::migration::Hosts;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

const R32_UINT: u16 = 98;
const R32_SFLOAT: u16 = 100;

/// Adds to a texel of each group, atomically, its number and the word of that number in a uniform texel buffer, and one.
fn counting() -> Vec<u8> {
    let decorations = "OpDecorate %u DescriptorSet 0
         OpDecorate %u Binding 0
         OpDecorate %c DescriptorSet 0
         OpDecorate %c Binding 1";
    let declarations = "%uint4 = OpTypeVector %uint 4
         %fetched = OpTypeImage %uint 5 0 0 0 1 0
         %counted = OpTypeImage %uint 5 0 0 0 2 33
         %pfetched = OpTypePointer UniformConstant %fetched
         %pcounted = OpTypePointer UniformConstant %counted
         %ptexel = OpTypePointer Image %uint
         %u = OpVariable %pfetched UniformConstant
         %c = OpVariable %pcounted UniformConstant";
    let body = "%all = OpLoad %uint3 %groups
         %me = OpLoad %uint3 %id
         %width = OpCompositeExtract %uint %all 0
         %y = OpCompositeExtract %uint %me 1
         %row = OpIMul %uint %y %width
         %n = OpIAdd %uint %row %x
         %image = OpLoad %fetched %u
         %four = OpImageFetch %uint4 %image %n
         %word = OpCompositeExtract %uint %four 0
         %sum = OpIAdd %uint %n %word
         %more = OpIAdd %uint %sum %1
         %texel = OpImageTexelPointer %ptexel %c %n %0
         %old = OpAtomicIAdd %uint %texel %1 %0 %more
         OpReturn";
    let text = frame::kernel(&Parts {
        size: "1 1 1",
        capabilities: "OpCapability SampledBuffer\nOpCapability ImageBuffer",
        decorations,
        declarations,
        body,
        ..Parts::default()
    });
    assemble(3, &text).iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn kernel(device: &Device) -> Kernel {
    device.create_kernel(&KernelSource::spirv(&counting())).unwrap()
}

fn words(buffer: &Buffer, count: u32) -> Vec<u32> {
    let mut bytes = vec![0; count as usize * 4];
    buffer.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn a_dispatch_over_texels_goes_on_where_its_guest_moves_to() {
    const GRID: [u32; 3] = [2048, 1024, 1];
    const GROUPS: u32 = GRID[0] * GRID[1];
    /// Texels of the uniform buffer: what is beyond reads as zero.
    const KNOWN: u32 = 1 << 16;
    let hosts = Hosts::new(&["--tdr-timeout", "600000"]);
    let vm = hosts.daemons[0].vm(0);
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let kernel = kernel(&device);
    let (table, counts) = (
        device.create_buffer(u64::from(KNOWN) * 4).unwrap(),
        device.create_buffer(u64::from(GROUPS) * 4).unwrap(),
    );
    let known: Vec<u8> = (0..KNOWN).flat_map(|at| (at * 5).to_le_bytes()).collect();
    table.write(0, &known).unwrap();
    let bindings = [table.binding(0).as_texels(R32_UINT), counts.binding(1).as_texels(R32_UINT)];
    let mut queue =
        device.create_context(Node::Compute).unwrap().create_user_queue(&QueueOptions::default()).unwrap();
    let mut commands = CommandBuffer::new();
    commands.dispatch(&kernel, GRID, &bindings, &[]).unwrap();
    hosts.begin(0, "v0");
    let submission = queue.submit(&commands).unwrap();
    until("the first group", || words(&counts, 1) != [0]);
    vm.migrate(hosts.daemons[1].socket(0), MigrateOptions { live: true, ..MigrateOptions::default() })
        .unwrap();
    submission.wait(Some(NEVER)).unwrap();
    let wanted = |at: u32| at + 1 + if at < KNOWN { at * 5 } else { 0 };
    let found = words(&counts, GROUPS);
    let wrong = (0..).zip(&found).find(|(at, found)| wanted(*at) != **found);
    assert_eq!(wrong, None, "each group ran once, on whichever host");
    // A dispatch that begins there.
    queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
    assert!((0..).zip(words(&counts, GROUPS)).all(|(at, found)| found == 2 * wanted(at)));
}

#[test]
fn the_profile_says_that_there_are_texel_buffers_and_how_many() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let profile = device.profile().unwrap();
    let all = profile::FEATURE_TEXEL_BUFFERS
        | profile::FEATURE_READ_WITHOUT_FORMAT
        | profile::FEATURE_WRITE_WITHOUT_FORMAT
        | profile::FEATURE_TEXEL_FORMATS;
    assert_eq!(profile.features & all, all);
    assert!(profile.texel_elements >= 65536);
    assert_eq!((profile.uniform_texels, profile.storage_texels), (profile.buffers, profile.buffers));
}

#[test]
fn a_format_that_is_none_or_does_not_fit_is_a_fault_of_its_device() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let no_storage = texels::FORMATS.iter().find(|format| format.storage == Offer::Never).unwrap().code;
    for (uniform, storage) in [
        (0, R32_UINT),
        (R32_UINT, 0),
        (R32_SFLOAT, R32_UINT),
        (R32_UINT, R32_SFLOAT),
        (R32_UINT, no_storage),
        (1, R32_UINT),
        (104, R32_UINT),
    ] {
        let device = Device::open(vm.open("guilty").unwrap()).unwrap();
        let kernel = kernel(&device);
        let (table, counts) = (device.create_buffer(4096).unwrap(), device.create_buffer(4096).unwrap());
        let bindings = [table.binding(0).as_texels(uniform), counts.binding(1).as_texels(storage)];
        let mut queue = device
            .create_context(Node::Compute)
            .unwrap()
            .create_user_queue(&QueueOptions::default())
            .unwrap();
        let mut commands = CommandBuffer::new();
        commands.dispatch(&kernel, [1; 3], &bindings, &[]).unwrap();
        let lost = queue.submit(&commands).and_then(|submission| submission.wait(Some(NEVER))).unwrap_err();
        assert!(lost.to_string().contains("a packet or ring entry that breaks a rule"), "{lost}");
        assert_eq!(words(&counts, 1), [0], "formats {uniform} and {storage}");
    }
    Device::open(vm.open("innocent").unwrap()).unwrap().check().unwrap();
}
