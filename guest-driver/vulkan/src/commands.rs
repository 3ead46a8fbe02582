//! How commands are found by their names.

/// A command of whichever type.
pub(crate) type Command = unsafe extern "system" fn();

/// A function that finds a command: its name with each suffix that it is known by, its type, and what runs it.
macro_rules! commands {
    ($seen:vis $name:ident: $($($text:literal)|+ $kind:ident = $command:expr;)*) => {
        $seen fn $name(name: &std::ffi::CStr) -> Option<$crate::commands::Command> {
            $(if [$($text),+].contains(&name) {
                let command: ash::vk::$kind = $command;
                // SAFETY: function pointers are of one size, and it is called as what its name says.
                return Some(unsafe { std::mem::transmute::<ash::vk::$kind, $crate::commands::Command>(command) });
            })*
            None
        }
    };
}
pub(crate) use commands;
