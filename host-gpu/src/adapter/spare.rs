//! The process that takes another's place, as the daemon sees it: started ahead, and with the kernels compiled that there are.
//!
//! ```text
//!   process ── runs ─────────────────────────────╳ reset, or D3
//!   spare   ── opens its driver ── compiles ─────┴─ goes on: what it has compiled it need not compile
//! ```

use std::io;

use super::launcher::Launcher;
use super::launcher::Memory;
use super::process::EngineProcess;
use super::successor::Spare;
use crate::engine::message::Start;
use crate::kernel::name::KernelName;

impl EngineProcess {
    /// How far the spare is. It is not listened to before it is taken, so what it has said is still there.
    pub fn spare(&self) -> Spare {
        self.successor.state()
    }

    /// Starts the process that will take this one's place when it is reset, so that its driver is open by then.
    ///
    /// # Errors
    /// It cannot be started; a reset will start one.
    pub fn prepare_spare(
        &mut self,
        launcher: &dyn Launcher,
        start: &Start,
        memory: Memory<'_>,
    ) -> io::Result<()> {
        if self.successor.is_some() {
            return Ok(());
        }
        self.begin_tracking(start, memory)?;
        let launched = self.launch(launcher, start, memory)?;
        self.successor.put(launched);
        Ok(())
    }

    /// Ends the spare, if there is one: it has touched nothing, and is not waited for.
    pub fn drop_spare(&mut self) {
        self.successor.discard();
    }

    /// Has the spare compile a kernel that this process has compiled. What it says of that it says once it has taken this one's
    /// place. False where it was not asked: it is not open yet, was asked for this one or for as many as it may be, or has no
    /// room at the moment.
    pub fn compile_ahead(
        &mut self,
        kernel: KernelName,
        language: u32,
        entry: Option<String>,
        source: &[u8],
    ) -> bool {
        self.successor.compile_ahead(kernel, language, entry, source)
    }

    /// The kernels that the spare was asked to compile.
    pub fn compiled_ahead(&self) -> &[KernelName] {
        self.successor.ahead()
    }

    /// Takes the names of the kernels that this process was asked to compile before it took its place. It answers for each.
    pub fn take_ahead(&mut self) -> Vec<KernelName> {
        std::mem::take(&mut self.ahead)
    }
}
