//! What is in a file, in words.

use std::fmt::Write;

use campanile_protocol::device_page;
use campanile_protocol::engine::saved::Saved;

use super::state;
use super::state::State;
use super::state::StateError;
use crate::vgpu::state::saved::memory::SavedPlace;
use crate::vgpu::state::saved::process::SavedBuffer;
use crate::vgpu::state::saved::process::SavedDevice;
use crate::vgpu::state::saved::process::SavedProcess;
use crate::vgpu::state::saved::row::SavedProgress;

const fn status(status: u64) -> &'static str {
    match status {
        device_page::DEVICE_ACTIVE => "works",
        device_page::DEVICE_RESET => "lost: reset",
        device_page::DEVICE_HUNG => "lost: hung",
        device_page::DEVICE_STOPPED => "lost: stopped",
        device_page::DEVICE_OUT_OF_MEMORY => "lost: out of memory",
        device_page::DEVICE_DMA_FAULT => "lost: bad buffer",
        device_page::DEVICE_PAGE_FAULT => "lost: page fault",
        _ => "in a state that there is none of",
    }
}

fn mib(bytes: u64) -> String {
    format!("{}.{:02} MiB", bytes >> 20, ((bytes & 0xf_ffff) * 100) >> 20)
}

/// In a state of version 1.
fn half_run(progress: &SavedProgress) -> bool {
    Saved { at: progress.0, done_in_packet: progress.1, grid: progress.2 } != Saved::default()
}

fn describe_device(text: &mut String, device: &SavedDevice) -> std::fmt::Result {
    let (contexts, queues) = (device.contexts.living().count(), device.queues.living().count());
    let user_mode = device.queues.living().filter(|queue| queue.is_user_mode).count();
    let suspended = device.contexts.living().filter(|context| context.is_suspended).count();
    let buffers: Vec<_> = device.contexts.living().flat_map(|context| &context.buffers).collect();
    let rings = device.doorbells.living().filter_map(|doorbell| doorbell.place);
    let is_half = |buffer: &&&SavedBuffer| buffer.is_saved || half_run(&buffer.progress);
    let half = buffers.iter().filter(is_half).count()
        + rings.filter(|place| place.is_saved || place.progress.as_ref().is_some_and(half_run)).count();
    let areas = device.contexts.living().filter_map(|context| context.area).chain(device.area).count();
    let aborted = device.doorbells.living().filter(|doorbell| doorbell.is_aborted).count();
    let mapped: u64 = device.mappings.iter().map(|mapping| mapping.1).fold(0, u64::saturating_add);
    writeln!(text, "    device: {}", status(device.status))?;
    writeln!(
        text,
        "    {contexts} contexts ({suspended} suspended), {queues} queues ({user_mode} user-mode)"
    )?;
    let doorbells = device.doorbells.living().count();
    writeln!(text, "    {doorbells} doorbells ({} RETRY, {aborted} ABORT)", doorbells - aborted)?;
    writeln!(text, "    {} buffers in software queues; {half} half run", buffers.len())?;
    writeln!(text, "    {areas} save areas; {} mappings of {}", device.mappings.len(), mib(mapped))?;
    let waits = device.waits.len() + device.native_waits.len() + device.gpu_waits.len();
    writeln!(
        text,
        "    {} kernels, {} native fences open, {waits} waits, {} paging operations under way",
        device.kernels.living().count(),
        device.fences.living().count(),
        device.paging.len()
    )
}

fn describe_process(text: &mut String, process: &SavedProcess) -> std::fmt::Result {
    let fences: usize = process.timelines.iter().map(|timeline| timeline.fences.len()).sum();
    let resources = process.attached.len();
    writeln!(text, "  process {}: {resources} resources, {fences} fences wait", process.context)?;
    if let Some(report) = process.blocked {
        writeln!(text, "    blocked: it hung the GPU too often (report {report})")?;
    }
    match &process.device {
        Some(device) => describe_device(text, device),
        None => writeln!(text, "    no device"),
    }
}

fn describe_state(state: &State, bytes: usize, versions: (u32, u32)) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let State { immutable, bundle, session, front } = state;
    writeln!(
        text,
        "state of a vGPU: {bytes} bytes, version {}, for readers of {} on",
        versions.0, versions.1
    )?;
    writeln!(text, "written by campanile {}", immutable.daemon)?;
    let protocol = immutable.protocol;
    writeln!(text, "protocol {}.{}", protocol >> 16, protocol & 0xffff)?;
    let [vram, aperture, quota] =
        [immutable.vram_bytes, immutable.aperture_bytes, immutable.quota_bytes].map(mib);
    writeln!(text, "video memory: {vram}, {aperture} of it for the CPU; guests may have {quota}")?;
    writeln!(text, "physical adapters: {}", immutable.engines)?;
    for node in &immutable.nodes {
        let device = match node.device.as_deref() {
            None => ", not available".to_owned(),
            Some("") => String::new(),
            Some(device) => format!(", {device}"),
        };
        let model = if node.has_global_doorbell { "global" } else { "dedicated" };
        writeln!(text, "  node {}: {} {model} doorbells{device}", node.name, node.doorbells)?;
    }
    writeln!(text, "memories: bundle {:016x}{:016x}", bundle.0, bundle.1)?;
    let of = |which: fn(&SavedPlace) -> bool| {
        let chosen = session.allocations.iter().filter(|allocation| which(&allocation.2));
        let (count, bytes) =
            chosen.fold((0, 0_u64), |(count, bytes), it| (count + 1, bytes.saturating_add(it.1)));
        format!("{count} ({})", mib(bytes))
    };
    writeln!(
        text,
        "allocations: {} in the window, {} beside it, {} save areas behind it, {} evicted, {} without a place yet, {} guest RAM",
        of(|place| matches!(place, SavedPlace::Aperture(_))),
        of(|place| matches!(place, SavedPlace::Local(_))),
        of(|place| matches!(place, SavedPlace::Area(_))),
        of(|place| matches!(place, SavedPlace::Host(_))),
        of(|place| matches!(place, SavedPlace::Nowhere)),
        of(|place| matches!(place, SavedPlace::Guest(_))),
    )?;
    let source_bytes: usize = session.sources.iter().map(|source| source.bytes.0.len()).sum();
    writeln!(
        text,
        "{} blobs, {} native fences, {} kernel sources ({source_bytes} bytes), {} commands due, {} bytes of the front",
        session.blobs.len(),
        session.fences.len(),
        session.sources.len(),
        session.due.len(),
        front.0.len()
    )?;
    for (place, engine) in session.engines.iter().enumerate() {
        writeln!(
            text,
            "engine {place}: fence {} completed; {} connects, {} messages, {} kernels wait",
            engine.completed,
            engine.connects.len(),
            engine.waiting.len(),
            engine.compiling.len()
        )?;
    }
    if let Some(why) = &session.quarantine {
        writeln!(text, "quarantined: {why}")?;
    }
    writeln!(text, "{} guest processes", session.processes.len())?;
    session.processes.iter().try_for_each(|process| describe_process(&mut text, process))?;
    Ok(text)
}

/// What is in the state of a vGPU, for people.
///
/// # Errors
/// It is none that this daemon reads.
pub fn describe(bytes: &[u8]) -> Result<String, StateError> {
    let versions = state::versions(bytes)?;
    let state = state::decode(bytes)?;
    describe_state(&state, bytes.len(), versions).map_err(|_| StateError::NotAState)
}
