//! Messages of the driver on standard error, where `CAMPANILE_DEBUG` is set to anything but 0.

use std::io::Write;
use std::sync::LazyLock;

static IS_WANTED: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os("CAMPANILE_DEBUG").is_some_and(|value| value != "0"));

/// Whether anybody looks.
pub(crate) fn is_wanted() -> bool {
    *IS_WANTED
}

/// Says it. A standard error that is closed is no reason to panic, as it is for `eprintln`.
pub(crate) fn say(words: std::fmt::Arguments<'_>) {
    let _nobody_listens = writeln!(std::io::stderr(), "campanile: {words}");
}

/// Says something.
macro_rules! report {
    ($($word:tt)*) => {
        if $crate::report::is_wanted() {
            $crate::report::say(format_args!($($word)*));
        }
    };
}
pub(crate) use report;
