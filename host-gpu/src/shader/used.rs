//! What an entry point uses, of all that its module has.

use crate::shader::entries::Entry;
use crate::shader::error::GuardError;
use crate::shader::guard::Guard;
use crate::shader::module::V1_4;
use crate::shader::module::wrong;

/// The version from which on interfaces name every variable.
const ALL_NAMED: u32 = V1_4;

/// What an entry point uses.
pub(super) struct Used {
    /// Indices of functions.
    pub(super) functions: Vec<u32>,
    /// Ids of global variables.
    pub(super) globals: Vec<u32>,
    /// Ids of global variables through which it writes.
    pub(super) writes: Vec<u32>,
}

impl Used {
    /// Finds what `entry` uses, and checks that its interface names it.
    pub(super) fn of(guard: &Guard<'_>, entry: &Entry) -> Result<Self, GuardError> {
        let functions =
            guard.functions.reach(&guard.symbols.module, guard.symbols.module.id(entry.function).data)?;
        let (mut globals, mut writes) = (Vec::new(), Vec::new());
        for function in functions.iter().filter_map(|index| guard.functions.list.get(*index as usize)) {
            globals.extend(&function.names);
            writes.extend(&function.writes);
        }
        globals.sort_unstable();
        globals.dedup();
        writes.sort_unstable();
        writes.dedup();
        if guard.symbols.module.version >= ALL_NAMED {
            let named = guard.symbols.module.rest(entry.inst, entry.interface);
            if let Some(missing) = globals.iter().find(|id| !named.contains(id)) {
                return Err(wrong(
                    entry.inst,
                    format!("its interface does not name variable {missing}, which it uses"),
                ));
            }
        } else {
            let named = guard.symbols.module.rest(entry.inst, entry.interface);
            if let Some(missing) =
                globals.iter().find(|id| guard.symbols.is_input(**id) && !named.contains(id))
            {
                return Err(wrong(
                    entry.inst,
                    format!("its interface does not name input {missing}, which it uses"),
                ));
            }
        }
        Ok(Self { functions, globals, writes })
    }
}
