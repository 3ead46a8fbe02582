//! What a program may rely on, whatever the transport: one list of checks, run on each.
//!
//! ```text
//!   machine ─┬─ transport   blobs, mappings, submissions: the trait Transport
//!            ├─ device      buffers, kernels, queues, fences: the API of the driver
//!            └─ contexts    many queues, suspended contexts
//! ```

pub mod check;
pub mod contexts;
pub mod device;
pub mod transport;

use crate::target::Target;
use check::Check;

/// All checks.
pub fn checks() -> Vec<Check> {
    [transport::CHECKS, device::CHECKS, contexts::CHECKS].concat()
}

/// `campanile-guest selftest`: one line a check, an error if one failed.
pub fn run(target: &Target) -> anyhow::Result<()> {
    let machine = target.machine()?;
    let mut failed = 0;
    for check in checks() {
        match (check.holds)(&machine) {
            Ok(()) => println!("ok      {}", check.claim),
            Err(error) => {
                failed += 1;
                println!("FAILED  {}: {error:#}", check.claim);
            }
        }
    }
    anyhow::ensure!(failed == 0, "{failed} checks failed");
    Ok(())
}
