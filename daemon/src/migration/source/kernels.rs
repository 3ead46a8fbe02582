//! Kernels that a target is sent before the VM is paused, so that it has compiled them when the VM runs there.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use campanile_host_gpu::kernel::name::KernelName;

use crate::migration::channel::kernel::SentKernel;
use crate::migration::channel::line::Line;
use crate::migration::channel::message::KERNELS_AHEAD;
use crate::migration::channel::message::Message;
use crate::migration::error::MigrationError;
use crate::migration::passes::pace::Pace;
use crate::migration::passes::pass::wait;
use crate::vgpu::objects::kernel_board::KernelBoard;

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelsSent {
    /// Kernels that were sent.
    pub sent: u64,
    /// Of those, what the target has neither compiled nor refused yet.
    pub left: u64,
}

/// What one target was sent.
#[derive(Debug)]
pub struct KernelsAhead {
    takes_them: bool,
    sent: BTreeSet<KernelName>,
}

impl KernelsAhead {
    /// Nothing yet, to a target that speaks this version.
    pub fn to(version: u32) -> Self {
        Self { takes_them: version >= KERNELS_AHEAD, sent: BTreeSet::new() }
    }

    /// Sends what it was not sent of the kernels that there are, until `stop`, and asks how far it is.
    ///
    /// # Errors
    /// It is gone, or says what it may not.
    pub fn send(
        &mut self,
        line: &mut Line,
        board: &KernelBoard,
        pace: Option<&Mutex<Pace>>,
        stop: &AtomicBool,
    ) -> Result<KernelsSent, MigrationError> {
        if !self.takes_them {
            return Ok(KernelsSent::default());
        }
        for (name, source) in board.those(|name| !self.sent.contains(name)) {
            if stop.load(Ordering::Acquire) {
                break;
            }
            if let Some(pace) = pace {
                wait(pace, source.bytes.len(), stop);
            }
            let (language, entry) = (source.language, source.entry.as_deref());
            line.send_kernel(&SentKernel { language, entry, bytes: &source.bytes })
                .map_err(|error| line.explain(error))?;
            self.sent.insert(name);
        }
        let sent = self.sent.len() as u64;
        if sent == 0 {
            return Ok(KernelsSent::default());
        }
        line.send(&Message::AskKernels).map_err(|error| line.explain(error))?;
        match line.hear()? {
            Message::Kernels { left } => Ok(KernelsSent { sent, left: u64::from(left).min(sent) }),
            other => Err(MigrationError::Protocol(format!("{other:?} in answer to AskKernels"))),
        }
    }
}
