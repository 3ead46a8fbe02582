//! SPIR-V of a guest, before the guard.
//!
//! ```text
//!   words of a module      the generator in its header, which no guard looks at, says what the device lacks
//! ```
//!
//! What comes out is the same each time, not much longer than what went in, and a module that the guard takes again: with
//! the same needs, and the number of workgroups in the buffer where it was put.

use campanile_host_gpu::shader::interface::BufferKind;
use campanile_host_gpu::shader::interface::Place;
use campanile_host_gpu::shader::interface::Shader;
use campanile_host_gpu::shader::interface::ShaderBinding;
use campanile_host_gpu::shader::interface::Texels;
use campanile_host_gpu::shader::interface::Wish;
use campanile_host_gpu::shader::pass::guard;
use campanile_host_gpu::shader::profile::Profile;
use campanile_host_gpu::shader::profile::Subgroup;

/// Where the number of workgroups is put: no module of the seeds has a buffer there.
const GRID: Place = Place { set: 7, binding: 77 };
/// The generator, in words.
const CHOICE: usize = 2;
/// A clamp is a comparison, a selection and at most one new constant for each index, which is one word.
const GROWTH: usize = 16;
/// What stands in every result.
const HEAD: usize = 256;

/// A device without the features whose bits are set.
fn device(choice: u32) -> Profile {
    let has = |bit: u32| (choice >> bit) & 1 == 0;
    Profile {
        storage_8: has(0),
        uniform_8: has(1),
        push_8: has(2),
        storage_16: has(3),
        uniform_16: has(4),
        push_16: has(5),
        int_8: has(6),
        int_16: has(7),
        int_64: has(8),
        float_16: has(9),
        float_64: has(10),
        atomic_64: has(11),
        atomic_float: has(28),
        memory_model: has(12),
        memory_model_device: has(13),
        integer_dot: has(14),
        mixed_dot: has(15),
        buffer_arrays: has(16),
        uniform_standard: has(26),
        scalar_layout: has(27),
        texel_buffers: has(29),
        texel_formats: has(29),
        read_without_format: has(30),
        write_without_format: has(31),
        subgroup: Subgroup {
            basic: has(17),
            vote: has(18),
            arithmetic: has(19),
            ballot: has(20),
            shuffle: has(21),
            shuffle_relative: has(22),
            clustered: has(23),
            quad: has(24),
            extended: has(25),
        },
    }
}

/// Values of specialisation constants, as the bits of `choice` above those of the device say: none, or of the first ids values
/// from small to all ones.
fn specialised(choice: u32) -> Vec<(u32, u64)> {
    let values = [1, 7, 0, u64::MAX, 300, 1 << 40];
    let given = (choice >> 26) as usize;
    (0..).zip(values.into_iter().cycle().skip(given).take(if given == 0 { 0 } else { 8 })).collect()
}

/// Words of an input. Bytes that make no word are left out.
pub(crate) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Bytes of these words.
pub(crate) fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Gives a module to the guard; `None` where it is refused.
///
/// # Panics
/// What comes out is no good.
pub(crate) fn run(bytes: &[u8]) -> Option<Shader> {
    let words = words(bytes);
    let choice = words.get(CHOICE).copied().unwrap_or(0);
    let (profile, constants) = (device(choice), specialised(choice));
    let wish = Wish { profile: &profile, entry: None, constants: &constants, rename: "main", grid: GRID };
    let first = guard(&words, &wish);
    assert_eq!(first, guard(&words, &wish), "it depends on something else than the module");
    let shader = first.ok()?;
    let longest = words.len() * GROWTH + HEAD;
    assert!(shader.words.len() <= longest, "{} words became {}", words.len(), shader.words.len());
    // A daemon refuses what has a buffer of its own there.
    if !shader.bindings.iter().any(is_grid)
        && let Some(second) = again(&shader, &wish)
    {
        assert_eq!(kept(&shader), kept(&second), "it needs something else the second time");
    }
    Some(shader)
}

/// What is said of these limits.
const LIMITS: [&str; 2] = ["bytes in one value, more than", "its bound is 0 or too large for its length"];

/// What comes out for what came out. `None` where that is beyond a limit for what guests bring: a null of a workgroup's memory
/// may be larger than a value of theirs, and ids lie farther apart where some of them are left out.
fn again(shader: &Shader, wish: &Wish<'_>) -> Option<Shader> {
    let second = match guard(&shader.words, wish) {
        Ok(second) => second,
        Err(why) if LIMITS.iter().any(|limit| why.to_string().contains(limit)) => return None,
        Err(why) => panic!("its own words are refused: {why}"),
    };
    assert!(!second.uses_num_workgroups, "the number of workgroups is still asked of the device");
    Some(second)
}

/// Whether that is where the number of workgroups is.
fn is_grid(binding: &ShaderBinding) -> bool {
    (binding.set, binding.binding) == (GRID.set, GRID.binding)
}

/// A binding without the name, which is debug information.
type Bound = (u32, u32, BufferKind, Option<Texels>, Option<u32>, bool, u64);

/// What a kernel needs, but for the number of workgroups.
fn kept(shader: &Shader) -> ([u32; 3], u32, u64, Vec<Bound>) {
    let bindings = shader.bindings.iter().filter(|binding| !is_grid(binding));
    let bindings =
        bindings.map(|b| (b.set, b.binding, b.kind, b.texels, b.count, b.is_written, b.min_size)).collect();
    (shader.workgroup, shader.constants, shader.workgroup_memory, bindings)
}
