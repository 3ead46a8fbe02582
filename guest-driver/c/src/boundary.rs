//! The border itself: panics stop here, NULL becomes a failure, results are given out.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::time::Duration;

use crate::failure::Failure;
use crate::last_error;
use crate::result::CampanileResult;

/// What C passes for "however long it takes".
const NO_TIMEOUT: u64 = u64::MAX;

/// Runs the body of the call `name`. A failure or a panic becomes a result, and words for `campanile_last_error`.
pub(crate) fn guarded(name: &str, body: impl FnOnce() -> Result<(), Failure>) -> CampanileResult {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return CampanileResult::CampanileOk,
        Ok(Err(failure)) => failure,
        Err(payload) => {
            let said = payload.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no words");
            let failure =
                Failure::new(CampanileResult::CampanileInternal, format_args!("internal error: {said}"));
            // A payload can panic when it is dropped.
            std::mem::forget(payload);
            failure
        }
    };
    last_error::keep(name, &failure);
    failure.result
}

/// Drops what the caller gave back; NULL is nothing.
pub(crate) fn release<T>(name: &str, object: Option<Box<T>>) {
    let _kept_as_last_error = guarded(name, || {
        drop(object);
        Ok(())
    });
}

/// The argument called `name`, which may not be NULL.
pub(crate) fn given<T>(argument: Option<T>, name: &str) -> Result<T, Failure> {
    argument.ok_or_else(|| Failure::null(name))
}

/// A timeout in nanoseconds.
pub(crate) fn timeout(nanoseconds: u64) -> Option<Duration> {
    (nanoseconds != NO_TIMEOUT).then(|| Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::guarded;
    use super::timeout;
    use crate::failure::Failure;
    use crate::last_error::words;
    use crate::result::CampanileResult;

    #[test]
    fn a_panic_becomes_a_result_with_its_words() {
        assert_eq!(guarded("f", || panic!("on {}", "fire")), CampanileResult::CampanileInternal);
        assert_eq!(words(), "f: internal error: on fire");
    }

    #[test]
    fn a_failure_keeps_its_words_until_the_next() {
        assert_eq!(words(), "");
        assert_eq!(guarded("f", || Err(Failure::null("x"))), CampanileResult::CampanileInvalidArgument);
        assert_eq!(guarded("g", || Ok(())), CampanileResult::CampanileOk);
        assert_eq!(words(), "f: x is NULL");
        assert_eq!(std::thread::spawn(words).join().unwrap(), "");
    }

    #[test]
    fn no_timeout_is_the_greatest_number() {
        assert_eq!(timeout(u64::MAX), None);
        assert_eq!(timeout(0).unwrap().as_nanos(), 0);
    }
}
