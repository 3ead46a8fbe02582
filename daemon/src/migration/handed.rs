//! A device that goes to another daemon on this host, memories and all: nothing of them is copied.

use std::fmt;
use std::fs::File;
use std::io;

use super::error::MigrationError;
use super::memory::Memory;
use super::pages::PAGE;
use super::pages::PageSet;
use super::stage::Staged;
use super::state;
use super::state::State;
use super::target::arriving::Arriving;
use crate::ids::GuestProcess;
use crate::ledger::lost::Lost;
use crate::vgpu::engines::kept_code::KeptFile;

/// What a device becomes.
#[derive(Debug)]
pub enum Becomes<S> {
    /// What this state is.
    Whole(S),
    /// One with nothing in it, as its daemon was killed; but these names.
    Lost(Lost),
}

/// What is left where nothing of a device goes on, and how many guest processes were told that they have lost theirs.
type Left = (Lost, u64);

/// What becomes of a device whose state cannot be taken over: its processes are told, and nothing of it is left but names.
pub struct Otherwise(Box<dyn FnOnce() -> io::Result<Left> + Send>);

impl Otherwise {
    /// By this.
    pub fn new(lose: impl FnOnce() -> io::Result<Left> + Send + 'static) -> Self {
        Self(Box::new(lose))
    }

    /// Does it.
    ///
    /// # Errors
    /// What is left cannot be used.
    pub fn lose(self) -> io::Result<Left> {
        (self.0)()
    }
}

impl fmt::Debug for Otherwise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Otherwise")
    }
}

/// What a daemon that was killed, and did not hand the device over, has left open.
#[derive(Debug, Default)]
pub struct Interrupted {
    /// Guest processes whose devices are lost.
    pub lost: Vec<GuestProcess>,
    /// What becomes of the device if its state cannot be taken over.
    pub otherwise: Option<Otherwise>,
}

/// The device.
#[derive(Debug)]
pub struct HandedDevice {
    /// Its state, encoded.
    pub state: Becomes<Vec<u8>>,
    /// Where its daemon was killed, what of the state does not hold.
    pub interrupted: Interrupted,
    /// The files that its memories lie in, by index.
    pub files: [File; 2],
    /// Which of their pages were ever written (DIRTY-31).
    pub written: [PageSet; 2],
    /// What drivers have compiled for it.
    pub code: Vec<KeptFile>,
}

impl HandedDevice {
    /// Its memories and its state, where they can be those of `vgpu`.
    ///
    /// # Errors
    /// They cannot.
    pub(super) fn open(self, vgpu: &Arriving) -> Result<([Staged; 2], Becomes<State>), MigrationError> {
        let state = match self.state {
            Becomes::Whole(bytes) => {
                let state =
                    state::decode(&bytes).map_err(|error| MigrationError::State(error.to_string()))?;
                Becomes::Whole(state)
            }
            Becomes::Lost(lost) => Becomes::Lost(lost),
        };
        let [vram, evicted] = self.files;
        let [of_vram, of_evicted] = self.written;
        let staged = [(Memory::Vram, vram, of_vram), (Memory::Evicted, evicted, of_evicted)].map(
            |(memory, file, received)| {
                let length = vgpu.shape.lengths[memory.index()];
                let bytes = file.metadata()?.len();
                if bytes != length || received.pages() != length / PAGE {
                    return Err(MigrationError::State(format!(
                        "{memory} of {bytes} bytes and {} pages; vGPU {} has {length} bytes here",
                        received.pages(),
                        vgpu.name
                    )));
                }
                Ok(Staged { file, received })
            },
        );
        let [vram, evicted] = staged;
        Ok(([vram?, evicted?], state))
    }
}
