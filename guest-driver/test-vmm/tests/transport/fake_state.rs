//! The fake device's state: contexts, blobs and video memory, all of it in the stream.

use std::fs::File;
use std::io;
use std::io::Read;
use std::io::Write;
use std::sync::Mutex;
use std::thread::JoinHandle;

use campanile_protocol::virtio_gpu::blob::CreateBlob;
use vm_memory::VolatileMemory;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::fake_device::FakeDevice;
use crate::fake_device::WINDOW;

/// What a test makes go wrong, and the transfer under way.
#[derive(Default)]
pub(crate) struct Transfer {
    pub(crate) fail_save: Mutex<bool>,
    pub(crate) fail_load: Mutex<bool>,
    pub(crate) loads: Mutex<u32>,
    thread: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

impl Transfer {
    pub(crate) fn outcome(&self) -> io::Result<()> {
        let thread = self.thread.lock().unwrap().take();
        thread.map_or(Ok(()), |thread| thread.join().unwrap())
    }

    fn start(&self, run: impl FnOnce() -> io::Result<()> + Send + 'static) {
        *self.thread.lock().unwrap() = Some(std::thread::spawn(run));
    }
}

impl FakeDevice {
    fn encode(&self) -> Vec<u8> {
        let state = self.state.lock().unwrap();
        let mut bytes = Vec::new();
        let mut put = |word: usize| bytes.extend(word.to_le_bytes());
        put(state.contexts.len());
        state.contexts.iter().for_each(|context| put(*context as usize));
        put(state.blobs.len());
        for (blob, _) in state.blobs.values() {
            bytes.extend(blob.as_bytes());
        }
        let mut vram = vec![0; usize::try_from(WINDOW).unwrap()];
        self.vram.as_volatile_slice().copy_to(&mut vram);
        bytes.extend(vram);
        bytes
    }

    pub(crate) fn save(&self, mut file: File) {
        let bytes = self.encode();
        let fail = *self.transfer.fail_save.lock().unwrap();
        self.transfer.start(move || {
            file.write_all(&bytes[..if fail { bytes.len() / 2 } else { bytes.len() }])?;
            if fail { Err(io::Error::other("as the test wants it")) } else { Ok(()) }
        });
    }

    /// On the connection's own thread: a pipe holds less than this, so the front-end must write while it waits.
    pub(crate) fn load(&self, mut file: File) -> io::Result<()> {
        let fail = *self.transfer.fail_load.lock().unwrap();
        let (bytes_tx, bytes_rx) = std::sync::mpsc::channel();
        self.transfer.start(move || {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            bytes_tx.send(bytes).unwrap();
            if fail { Err(io::Error::other("as the test wants it")) } else { Ok(()) }
        });
        *self.transfer.loads.lock().unwrap() += 1;
        *self.arriving.lock().unwrap() = Some(bytes_rx);
        Ok(())
    }

    /// Takes over what came, once all of it is there.
    pub(crate) fn adopt(&self) {
        let Some(arriving) = self.arriving.lock().unwrap().take() else { return };
        let bytes = arriving.recv().unwrap();
        let mut rest = &bytes[..];
        let mut word = || {
            let (now, later) = rest.split_at(8);
            rest = later;
            usize::from_le_bytes(now.try_into().unwrap())
        };
        let mut state = self.state.lock().unwrap();
        state.contexts = (0..word()).map(|_| u32::try_from(word()).unwrap()).collect();
        for _ in 0..word() {
            let (blob, later) = CreateBlob::read_from_prefix(rest).unwrap();
            rest = later;
            state.blobs.insert(blob.resource_id, (blob, Vec::new()));
        }
        self.vram.as_volatile_slice().copy_from(rest);
    }
}
