//! What the driver has to say, on standard error, for people who look for it: with `CAMPANILE_DEBUG` set to anything but 0.

use std::sync::LazyLock;

static IS_WANTED: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os("CAMPANILE_DEBUG").is_some_and(|value| value != "0"));

/// Whether anybody looks.
pub(crate) fn is_wanted() -> bool {
    *IS_WANTED
}

/// Says something.
macro_rules! report {
    ($($word:tt)*) => {
        if $crate::report::is_wanted() {
            eprintln!("campanile: {}", format_args!($($word)*));
        }
    };
}
pub(crate) use report;
