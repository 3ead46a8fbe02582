//! `FPRoundingMode`: how a conversion to 16 bits rounds, which is of effect only where the result goes to a buffer.

use std::collections::HashSet;

use spirv::Decoration as Name;
use spirv::FPRoundingMode;
use spirv::Op;
use spirv::StorageClass;

use crate::shader::capabilities::Capabilities;
use crate::shader::decorations::Decoration;
use crate::shader::decorations::Decorations;
use crate::shader::decorations::WHOLE;
use crate::shader::error::GuardError;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::is_debug;
use crate::shader::module::wrong;
use crate::shader::shape::Shape;
use crate::shader::symbols::Symbols;
use crate::shader::types::SIXTEEN;

/// Checks each decoration, once functions are known: it stands on a conversion to 16 bits whose result is stored in buffers and not used otherwise.
/// `code` is the index of the first function.
pub(super) fn check(
    symbols: &Symbols<'_>,
    capabilities: &Capabilities,
    decorations: &Decorations,
    code: u32,
) -> Result<(), GuardError> {
    let mut rounded = HashSet::new();
    for d in decorations.list.iter().filter(|d| d.name == Name::FPRoundingMode) {
        if !is_good(symbols, d) {
            return Err(wrong(
                d.inst,
                "it stands on no conversion to floats of 16 bits, or is none of Vulkan's",
            ));
        }
        if !capabilities.has_any(&SIXTEEN) {
            return Err(wrong(d.inst, "FPRoundingMode needs a capability of 16 bits in buffers"));
        }
        if !rounded.insert(d.target) {
            return Err(wrong(d.inst, "FPRoundingMode stands twice on the same thing"));
        }
    }
    if rounded.is_empty() {
        return Ok(());
    }
    let is_dropped = |inst: &Inst| {
        is_debug(inst.op())
            || inst.op() == Op::ExtInst
                && symbols.module.id(symbols.module.word(*inst, 3)).kind == Kind::Debug
    };
    for inst in symbols.module.insts.iter().skip(code as usize).filter(|inst| !is_dropped(inst)) {
        let uses = symbols.module.rest(*inst, 1).iter().filter(|word| rounded.contains(word)).count();
        let own = usize::from(inst.op() == Op::FConvert && rounded.contains(&symbols.module.word(*inst, 2)));
        if uses != own && !is_store(symbols, *inst) {
            return Err(wrong(*inst, "it uses what is rounded for a buffer"));
        }
    }
    Ok(())
}

fn is_good(symbols: &Symbols<'_>, d: &Decoration) -> bool {
    let target = symbols.module.id(d.target);
    // What is no value stands in no function that is reached.
    let converts = target.kind == Kind::None
        || target.kind == Kind::Value
            && symbols.module.inst(target.inst).op() == Op::FConvert
            && symbols.numeric(target.ty).is_some_and(|number| number.bits == 16);
    let modes = [FPRoundingMode::RTE as u32, FPRoundingMode::RTZ as u32];
    converts && d.member == WHOLE && modes.contains(&d.value)
}

/// Whether it stores to a buffer: the only word of it that can be a rounded value is what it stores.
fn is_store(symbols: &Symbols<'_>, inst: Inst) -> bool {
    let to = symbols.shape(symbols.module.id(symbols.module.word(inst, 1)).ty);
    let is_buffer =
        matches!(to, Shape::Pointer { class: StorageClass::StorageBuffer | StorageClass::Uniform, .. });
    inst.op() == Op::Store && is_buffer
}
