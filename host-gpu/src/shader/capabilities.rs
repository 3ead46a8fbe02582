//! Capabilities: which a module declares, of those that the device offers.

use spirv::Capability;

use crate::shader::error::GuardError;
use crate::shader::module::Inst;
use crate::shader::module::Module;
use crate::shader::module::wrong;
use crate::shader::profile;
use crate::shader::profile::Profile;
use crate::shader::shape::has;
use crate::shader::symbols::Symbols;

/// The capabilities of a module.
pub(super) struct Capabilities {
    pub(super) profile: Profile,
    /// Those declared, and those that they imply.
    declared: Vec<u32>,
    /// Whether it declares the memory model of Vulkan.
    pub(super) vulkan_memory: bool,
}

impl Capabilities {
    /// None yet, on a device of this profile.
    pub(super) fn new(profile: &Profile) -> Self {
        Self { profile: *profile, declared: Vec::new(), vulkan_memory: false }
    }

    pub(super) fn has(&self, capability: Capability) -> bool {
        self.has_code(capability as u32)
    }

    pub(super) fn has_any(&self, capabilities: &[Capability]) -> bool {
        capabilities.iter().any(|capability| self.has(*capability))
    }

    /// The same by its number, for those without a name.
    pub(super) fn has_code(&self, code: u32) -> bool {
        self.declared.contains(&code)
    }

    /// Takes in `OpCapability`.
    pub(super) fn declare(&mut self, module: &Module<'_>, inst: Inst) -> Result<(), GuardError> {
        inst.length(2, 2)?;
        let code = module.word(inst, 1);
        let name =
            || Capability::from_u32(code).map_or_else(|| code.to_string(), |known| format!("{known:?}"));
        match self.profile.offers(code) {
            Some(true) => {}
            Some(false) => {
                return Err(wrong(inst, format!("this device does not offer the capability {}", name())));
            }
            None => return Err(wrong(inst, format!("the capability {} is not offered to kernels", name()))),
        }
        self.declared.push(code);
        self.declared.extend(profile::implied(code).iter().map(|implied| *implied as u32));
        if self.declared.len() > 128 {
            return Err(wrong(inst, "capabilities are declared over and over"));
        }
        Ok(())
    }

    /// Whether values of this type can only be loaded, stored and converted.
    pub(super) fn is_limited(&self, symbols: &Symbols<'_>, ty: u32) -> bool {
        let inside = symbols.ty(ty).has;
        inside & has::INT_8 != 0 && !self.has(Capability::Int8)
            || inside & has::INT_16 != 0 && !self.has(Capability::Int16)
            || inside & has::FLOAT_16 != 0 && !self.has(Capability::Float16)
    }
}
