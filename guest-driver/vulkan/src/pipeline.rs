//! Compute pipelines: a kernel of the daemon's each, and what a dispatch of it has to bind.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

use ash::vk;
use campanile_guest_driver::kernel::Kernel;
use campanile_protocol::profile::Profile;

use crate::abi;
use crate::abi::Outcome;
use crate::abi::handle;
use crate::descriptor::layout::PipelineLayout;
use crate::device::Core;
use crate::device::Device;
use crate::kernels::KernelKey;
use crate::lower::records::Images;
use crate::numbers::Names;
use crate::report::report;
use crate::shader;
use crate::shader::Module;
use crate::shader::Use;

/// A pipeline.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// The kernel.
    pub(crate) kernel: Arc<Kernel>,
    /// The bindings of it, by set and number; each with as many buffers as it has. Not the records of its images.
    pub(crate) uses: Vec<Use>,
    /// The images that it may use.
    pub(crate) images: Option<Arc<Images>>,
    /// Whether it reads their records.
    pub(crate) reads_records: bool,
    /// What the program calls its bindings.
    pub(crate) names: Names,
}

/// A pipeline cache. Compiled kernels stay on the host; what is here is a header that says whose it is.
#[derive(Debug)]
pub(crate) struct Cache {
    header: [u8; 32],
}

handle!(Pipeline, vk::Pipeline);
handle!(Cache, vk::PipelineCache);

/// The values of specialisation constants, ascending by id.
fn constants(info: Option<&vk::SpecializationInfo<'_>>) -> BTreeMap<u32, u64> {
    let Some(info) = info else { return BTreeMap::new() };
    let data = abi::items(info.p_data.cast::<u8>(), info.data_size);
    let value = |entry: &vk::SpecializationMapEntry| {
        let bytes = data.get(entry.offset as usize..)?.get(..entry.size.min(8))?;
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        Some((entry.constant_id, u64::from_le_bytes(word)))
    };
    abi::items(info.p_map_entries, info.map_entry_count).iter().filter_map(value).collect()
}

impl Pipeline {
    /// A pipeline, and whether its kernel was compiled before.
    fn create(
        core: &Arc<Core>,
        profile: &Profile,
        info: &vk::ComputePipelineCreateInfo<'_>,
    ) -> Outcome<(Self, bool)> {
        let stage = &info.stage;
        let inline = abi::chained::<vk::ShaderModuleCreateInfo<'_>>(stage.p_next).map(|info| {
            Module::of(abi::items(info.p_code.cast::<u8>(), info.code_size), shader::is_bare(profile))
        });
        let layout = abi::get::<PipelineLayout>(info.layout);
        let module = inline.as_ref().unwrap_or_else(|| abi::get::<Module>(stage.module));
        let count = |set, number| layout.set(set)?.binding(number)?.count.try_into().ok();
        let closed = module.closed(count);
        let Module { bytes, names, images, left_out, .. } = closed.as_ref().unwrap_or(module);
        let required =
            abi::chained::<vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo<'_>>(stage.p_next);
        let wants_full = stage.flags.contains(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS);
        let entry = abi::string(stage.p_name);
        let values = constants(abi::read_optional(stage.p_specialization_info));
        let key = KernelKey {
            bytes: Arc::clone(bytes),
            entry: entry.to_string_lossy().into_owned(),
            constants: values.clone().into_iter().collect(),
            // Full ones are asked of the host with their size.
            subgroup_size: required
                .map_or(if wants_full { profile.subgroup_size } else { 0 }, |r| r.required_subgroup_size),
        };
        let found = shader::uses(bytes, entry.to_bytes(), &values).ok_or_else(|| {
            match left_out.get(entry.to_bytes()) {
                Some(why) => report!("vkCreateComputePipelines: {entry:?} is not compiled: {why}"),
                None => report!("vkCreateComputePipelines: the module has no entry point {entry:?}"),
            }
            vk::Result::ERROR_UNKNOWN
        })?;
        let named = |found: Use| Use {
            binding: names.get(&(found.set, found.slot)).copied().unwrap_or(found.binding),
            ..found
        };
        let place = images.as_ref().map(|images| images.place);
        let is_records = |found: &Use| place == Some((found.set, found.slot));
        let reads_records = found.iter().any(is_records);
        let own = found.into_iter().filter(|found| !is_records(found));
        let uses: Vec<Use> = own.map(|found| Self::sized(layout, named(found))).collect();
        let compiled = core.kernels.compiled(&key);
        let is_hit = compiled.is_some();
        let kernel = match compiled {
            Some(kernel) => kernel,
            None if info.flags.contains(vk::PipelineCreateFlags::FAIL_ON_PIPELINE_COMPILE_REQUIRED) => {
                return Err(vk::Result::PIPELINE_COMPILE_REQUIRED);
            }
            None => core.kernels.compile(key)?,
        };
        let descriptors: u32 =
            uses.iter().filter_map(|found| found.count).chain(reads_records.then_some(1)).sum();
        if descriptors != kernel.binding_count() {
            report!(
                "vkCreateComputePipelines: {descriptors} buffers found, {} wanted",
                kernel.binding_count()
            );
            return Err(vk::Result::ERROR_UNKNOWN);
        }
        let (images, names) = (images.clone(), names.clone());
        Ok((Self { kernel, uses, images, reads_records, names }, is_hit))
    }

    /// A use with a count: that of the layout where the module leaves it open.
    fn sized(layout: &PipelineLayout, found: Use) -> Use {
        let of_layout = || layout.set(found.set)?.binding(found.binding)?.count.try_into().ok();
        Use { count: found.count.or_else(of_layout).or(Some(1)), ..found }
    }
}

/// Says how long a pipeline took, where the program asks.
fn feed_back(info: &vk::ComputePipelineCreateInfo<'_>, started: Instant, is_hit: bool) {
    let Some(asked) = abi::chained::<vk::PipelineCreationFeedbackCreateInfo<'_>>(info.p_next) else { return };
    let mut flags = vk::PipelineCreationFeedbackFlags::VALID;
    if is_hit {
        flags |= vk::PipelineCreationFeedbackFlags::APPLICATION_PIPELINE_CACHE_HIT;
    }
    let duration = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let feedback = vk::PipelineCreationFeedback { flags, duration };
    abi::write(asked.p_pipeline_creation_feedback, feedback);
    // Of its one stage too.
    let stages = asked.pipeline_stage_creation_feedback_count;
    abi::room(asked.p_pipeline_stage_creation_feedbacks, stages).fill(feedback);
}

pub(crate) extern "system" fn create(
    device: vk::Device,
    _cache: vk::PipelineCache,
    count: u32,
    infos: *const vk::ComputePipelineCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::Pipeline,
) -> vk::Result {
    abi::command_with("vkCreateComputePipelines", || {
        let Device { core, profile, .. } = Device::of(device);
        let (mut outcome, mut ends) = (vk::Result::SUCCESS, false);
        for (place, info) in abi::room(out, count).iter_mut().zip(abi::items(infos, count)) {
            *place = vk::Pipeline::null();
            if ends {
                continue;
            }
            let started = Instant::now();
            let made = Pipeline::create(core, profile, info);
            feed_back(info, started, made.as_ref().is_ok_and(|(_, is_hit)| *is_hit));
            match made {
                Ok((pipeline, _)) => abi::give(pipeline, place),
                Err(error) => {
                    // A failure tells more than that a kernel would have to be compiled.
                    if outcome.as_raw() >= 0 {
                        outcome = error;
                    }
                    ends = info.flags.contains(vk::PipelineCreateFlags::EARLY_RETURN_ON_FAILURE);
                }
            }
        }
        Ok(outcome)
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    pipeline: vk::Pipeline,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyPipeline", || drop(abi::take::<Pipeline>(pipeline)));
}

pub(crate) extern "system" fn create_cache(
    device: vk::Device,
    _info: *const vk::PipelineCacheCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::PipelineCache,
) -> vk::Result {
    abi::command("vkCreatePipelineCache", || {
        let profile = &Device::of(device).profile;
        let mut header = [0; 32];
        for (at, word) in [32, 1, profile.vendor, profile.device].into_iter().enumerate() {
            header[at * 4..][..4].copy_from_slice(&word.to_le_bytes());
        }
        header[16..].copy_from_slice(&profile.driver_uuid);
        abi::give(Cache { header }, out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy_cache(
    _device: vk::Device,
    cache: vk::PipelineCache,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyPipelineCache", || drop(abi::take::<Cache>(cache)));
}

pub(crate) extern "system" fn cache_data(
    _device: vk::Device,
    cache: vk::PipelineCache,
    size: *mut usize,
    out: *mut c_void,
) -> vk::Result {
    abi::command_with("vkGetPipelineCacheData", || {
        let header = abi::get::<Cache>(cache).header;
        if out.is_null() {
            abi::write(size, header.len());
            return Ok(vk::Result::SUCCESS);
        }
        if *abi::read(size) < header.len() {
            abi::write(size, 0);
            return Ok(vk::Result::INCOMPLETE);
        }
        abi::room(out.cast::<u8>(), header.len()).copy_from_slice(&header);
        abi::write(size, header.len());
        Ok(vk::Result::SUCCESS)
    })
}

pub(crate) extern "system" fn merge_caches(
    _device: vk::Device,
    _target: vk::PipelineCache,
    _count: u32,
    _sources: *const vk::PipelineCache,
) -> vk::Result {
    vk::Result::SUCCESS
}
