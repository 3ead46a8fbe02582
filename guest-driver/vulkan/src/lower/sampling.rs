//! Instructions that sample.

use ::spirv::Op;

use super::Refusal;
use super::body::Used;
use super::module::Module;

impl Module {
    /// Writes an instruction that samples as it becomes.
    pub(super) fn sample(&mut self, op: Op, _instruction: &[u32], _used: &Used) -> Result<(), Refusal> {
        match op {
            Op::ImageQueryLod => Err("the level that is sampled is asked for"),
            _ => Err("an image is sampled"),
        }
    }
}
