//! `campanile-guest info`.

use campanile_guest_driver::device::Device;
use campanile_guest_driver::transport::Transport;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::capset::Capset;
use campanile_protocol::capset::NODE_FLAG_AVAILABLE;
use campanile_protocol::capset::NODE_FLAG_GLOBAL_DOORBELL;
use campanile_protocol::capset::NODE_FLAG_NOTIFY;
use campanile_protocol::capset::NODE_FLAG_RING_BUFFER_FENCE_RELEASE;
use campanile_protocol::capset::NODE_FLAG_USER_MODE_SUBMISSION;
use campanile_protocol::capset::NODE_KIND_COMPUTE;
use campanile_protocol::capset::NODE_KIND_COPY;
use campanile_protocol::control::memory::MemoryInfo;
use campanile_protocol::driver_caps::GROUP_LOCAL;
use campanile_protocol::profile;
use campanile_protocol::profile::Profile;
use serde::Serialize;

use crate::target::Target;
use crate::target::WithTransport;

/// All that a guest learns before it opens a device.
#[derive(Debug, Serialize)]
struct Info {
    device: String,
    tool_version: &'static str,
    protocol: Versions,
    segments: Vec<Segment>,
    memory: Option<Memory>,
    nodes: Vec<Node>,
    kernels: Option<Kernels>,
    doorbell_bytes: u32,
    secondary_doorbells: bool,
    max_control_bytes: u32,
    max_dma_buffer_bytes: u32,
}

#[derive(Debug, Serialize)]
struct Versions {
    daemon: String,
    tool: String,
}

#[derive(Debug, Serialize)]
struct Segment {
    name: &'static str,
    bytes: Option<u64>,
    cpu_visible_bytes: Option<u64>,
}

/// How the memory of the VM's vGPU stands; only where a device can be opened.
#[derive(Debug, Serialize)]
struct Memory {
    guaranteed_bytes: u64,
    limit_bytes: u64,
    committed_bytes: u64,
    available_bytes: u64,
    evicted_bytes: u64,
    held_bytes: u64,
    evictions: u64,
    residency_faults: u64,
}

/// What kernels may use; only where a device can be opened, and a node runs kernels.
#[derive(Debug, Serialize)]
struct Kernels {
    device: String,
    driver: String,
    workgroup: [u32; 3],
    invocations: u32,
    workgroup_memory_bytes: u32,
    buffers: u32,
    constant_bytes: u32,
    subgroup_size: u32,
    subgroup_sizes: [u32; 2],
    /// Bits of `VkSubgroupFeatureFlagBits`; without any no kernel can tell how large a subgroup is.
    subgroup_operations: u32,
    features: Vec<&'static str>,
}

/// Features by the names that Vulkan gives them, shortened.
const FEATURES: [(u64, &str); 9] = [
    (profile::FEATURE_STORAGE_8, "8-bit storage"),
    (profile::FEATURE_STORAGE_16, "16-bit storage"),
    (profile::FEATURE_INT_8, "int8"),
    (profile::FEATURE_INT_16, "int16"),
    (profile::FEATURE_INT_64, "int64"),
    (profile::FEATURE_FLOAT_16, "float16"),
    (profile::FEATURE_FLOAT_64, "float64"),
    (profile::FEATURE_INTEGER_DOT, "integer dot products"),
    (profile::FEATURE_TEXEL_BUFFERS, "texel buffers"),
];

impl Kernels {
    fn of(profile: &Profile) -> Self {
        Self {
            device: profile::name_of(&profile.name).to_owned(),
            driver: profile::name_of(&profile.driver).to_owned(),
            workgroup: profile.workgroup,
            invocations: profile.invocations,
            workgroup_memory_bytes: profile.workgroup_memory,
            buffers: profile.buffers,
            constant_bytes: profile.constants,
            subgroup_size: profile.subgroup_size,
            subgroup_sizes: profile.subgroup_sizes,
            subgroup_operations: profile.subgroup_operations,
            features: FEATURES
                .iter()
                .filter(|(bit, _)| profile.features & bit != 0)
                .map(|(_, name)| *name)
                .collect(),
        }
    }

    fn rows(&self) -> [(String, String); 3] {
        let [x, y, z] = self.workgroup;
        let limits = format!(
            "workgroups up to {x} x {y} x {z}, {} invocations, {} KiB of memory; {} buffers, {} bytes of constants",
            self.invocations,
            self.workgroup_memory_bytes >> 10,
            self.buffers,
            self.constant_bytes
        );
        let subgroups = match self.subgroup_operations {
            0 => "no subgroup operations".to_owned(),
            _ => format!("subgroups of {}", self.subgroup_size),
        };
        let features = format!("{subgroups}; {}", self.features.join(", "));
        [
            ("kernels on".to_owned(), format!("{}, driver {}", self.device, self.driver)),
            ("kernels".to_owned(), limits),
            ("features".to_owned(), features),
        ]
    }
}

#[derive(Debug, Serialize)]
struct Node {
    ordinal: usize,
    kind: &'static str,
    engines: u32,
    available: bool,
    user_mode_submission: bool,
    ring_buffer_fence_release: bool,
    physical_doorbells: u32,
    global_doorbell: bool,
    notify: bool,
}

/// Asks a transport for its capability set, whether it has a window, and what only an open device says.
struct Ask;

impl WithTransport for Ask {
    type Output = anyhow::Result<(Capset, bool, Option<MemoryInfo>, Option<Box<Profile>>)>;

    fn with(self, transport: impl Transport) -> Self::Output {
        let (capset, window) = (transport.capset()?, transport.sees_video_memory());
        let device = Device::open(transport).ok();
        let memory = device.as_ref().and_then(|device| device.memory_info().ok());
        Ok((capset, window, memory, device.and_then(|device| device.profile().ok())))
    }
}

fn version(version: u32) -> String {
    format!("{}.{}", version >> 16, version & 0xffff)
}

impl Info {
    fn ask(target: &Target) -> anyhow::Result<Self> {
        let machine = target.machine()?;
        let (capset, window, memory, profile) = machine.with(Ask)??;
        let vram = Segment {
            name: "video memory",
            bytes: Some(capset.segments.iter().filter(|it| it.group == GROUP_LOCAL).map(|it| it.bytes).sum()),
            cpu_visible_bytes: Some(if window { capset.aperture_bytes } else { 0 }),
        };
        let ram = Segment { name: "guest RAM", bytes: None, cpu_visible_bytes: None };
        let count = usize::try_from(capset.node_count)?.min(capset.nodes.len());
        let nodes = capset.nodes[..count].iter().enumerate().map(|(ordinal, node)| Node {
            ordinal,
            kind: match node.kind {
                NODE_KIND_COMPUTE => "compute",
                NODE_KIND_COPY => "copy",
                _ => "unknown",
            },
            engines: node.engines,
            available: node.flags & NODE_FLAG_AVAILABLE != 0,
            user_mode_submission: node.flags & NODE_FLAG_USER_MODE_SUBMISSION != 0,
            ring_buffer_fence_release: node.flags & NODE_FLAG_RING_BUFFER_FENCE_RELEASE != 0,
            physical_doorbells: node.physical_doorbells,
            global_doorbell: node.flags & NODE_FLAG_GLOBAL_DOORBELL != 0,
            notify: node.flags & NODE_FLAG_NOTIFY != 0,
        });
        Ok(Self {
            device: machine.describe()?,
            tool_version: env!("CARGO_PKG_VERSION"),
            protocol: Versions { daemon: version(capset.protocol_version), tool: version(PROTOCOL_VERSION) },
            segments: vec![vram, ram],
            memory: memory.map(|memory| Memory {
                guaranteed_bytes: memory.guaranteed,
                limit_bytes: memory.limit,
                committed_bytes: memory.committed,
                available_bytes: memory.available,
                evicted_bytes: memory.evicted,
                held_bytes: memory.held,
                evictions: memory.evictions,
                residency_faults: memory.residency_faults,
            }),
            nodes: nodes.collect(),
            kernels: profile.map(|profile| Kernels::of(&profile)),
            doorbell_bytes: capset.doorbell_bytes,
            secondary_doorbells: capset.secondary_doorbell_bytes > 0,
            max_control_bytes: capset.max_control_bytes,
            max_dma_buffer_bytes: capset.max_dma_buffer_bytes,
        })
    }

    fn table(&self) -> String {
        let mut rows = vec![
            ("device".to_owned(), self.device.clone()),
            ("tool".to_owned(), self.tool_version.to_owned()),
            ("protocol".to_owned(), format!("daemon {}, tool {}", self.protocol.daemon, self.protocol.tool)),
        ];
        for segment in &self.segments {
            let size = segment.bytes.map_or("the GPU works in it in place".to_owned(), |bytes| {
                let visible = segment.cpu_visible_bytes.unwrap_or(0);
                format!("{} MiB, {} MiB of it visible to the CPU", bytes >> 20, visible >> 20)
            });
            rows.push((segment.name.to_owned(), size));
        }
        if let Some(memory) = &self.memory {
            let text = format!(
                "{} MiB allocated, {} more possible, {} at the most, {} guaranteed",
                memory.committed_bytes >> 20,
                memory.available_bytes >> 20,
                memory.limit_bytes >> 20,
                memory.guaranteed_bytes >> 20
            );
            rows.push(("budget".to_owned(), text));
            let text = format!(
                "{} MiB evicted, {} MiB held, {} evictions, {} residency faults",
                memory.evicted_bytes >> 20,
                memory.held_bytes >> 20,
                memory.evictions,
                memory.residency_faults
            );
            rows.push(("residency".to_owned(), text));
        }
        for node in &self.nodes {
            let state = if node.available { "available" } else { "not available" };
            let submission = if node.user_mode_submission { ", user-mode submission" } else { "" };
            let doorbells = if node.global_doorbell {
                "a doorbell for each process".to_owned()
            } else {
                format!("{} doorbells", node.physical_doorbells)
            };
            let notify = if node.notify { ", notified" } else { "" };
            let engines =
                if node.engines > 1 { format!(", {} engines", node.engines) } else { String::new() };
            let text = format!("{}, {state}{engines}{submission}, {doorbells}{notify}", node.kind);
            rows.push((format!("node {}", node.ordinal), text));
        }
        rows.extend(self.kernels.iter().flat_map(Kernels::rows));
        rows.push(("doorbell".to_owned(), format!("{} bytes", self.doorbell_bytes)));
        let limits = (self.max_control_bytes >> 10, self.max_dma_buffer_bytes >> 10);
        rows.push((
            "limits".to_owned(),
            format!("control message {} KiB, buffer {} KiB", limits.0, limits.1),
        ));
        rows.iter().map(|(name, text)| format!("{name:<14}{text}\n")).collect()
    }
}

/// Prints it.
pub fn print(target: &Target, json: bool) -> anyhow::Result<()> {
    let info = Info::ask(target)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&info)?);
    } else {
        print!("{}", info.table());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use campanile_protocol::named_profile::campanile_1;
    use campanile_protocol::profile::Profile;

    use super::Kernels;

    #[test]
    fn the_size_of_subgroups_is_said_where_kernels_have_operations_on_them() {
        let features = |profile: &Profile| Kernels::of(profile).rows()[2].1.clone();
        let without = campanile_1();
        assert!(features(&without).starts_with("no subgroup operations; 8-bit storage, "), "{without:?}");
        let with = Profile { subgroup_operations: 1, ..without };
        assert!(features(&with).starts_with("subgroups of 32; 8-bit storage, "), "{with:?}");
    }
}
