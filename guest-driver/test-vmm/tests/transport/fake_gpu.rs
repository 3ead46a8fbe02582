//! What the fake device answers.

use std::io::Read;
use std::io::Write;
use std::time::Duration;

use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::capset::CAPSET_ID;
use campanile_protocol::capset::CAPSET_VERSION;
use campanile_protocol::capset::Capset;
use campanile_protocol::virtio_gpu as gpu;
use gpu::blob::CreateBlob;
use gpu::blob::MapBlob;
use gpu::blob::MemEntry;
use gpu::command;
use gpu::command::Header;
use gpu::response;
use zerocopy::FromBytes;
use zerocopy::FromZeros;
use zerocopy::IntoBytes;

use crate::fake_device::Chain;
use crate::fake_device::FakeDevice;
use crate::fake_device::WINDOW;

impl FakeDevice {
    fn answer(&self, chain: &Chain, header: Header, kind: u32, rest: &[u8]) -> u32 {
        let bytes = [Header { kind, ..header }.as_bytes(), rest].concat();
        let memory = chain.memory();
        let mut writer = chain.clone().writer(memory).unwrap();
        let room = writer.available_bytes().min(bytes.len());
        writer.write_all(&bytes[..room]).unwrap();
        u32::try_from(room).unwrap()
    }

    /// The answers to give now.
    pub(crate) fn execute(&self, chain: Chain) -> Vec<(u16, u32)> {
        let mut request = Vec::new();
        let memory = chain.memory();
        if chain.clone().reader(memory).is_ok_and(|mut reader| reader.read_to_end(&mut request).is_err()) {
            request.clear();
        }
        let head = chain.head_index();
        let Ok((header, body)) = Header::read_from_prefix(&request) else { return vec![(head, 0)] };
        let mut state = self.state.lock().unwrap();
        let (kind, rest) = match header.kind {
            command::GET_CAPSET_INFO => {
                let size = u32::try_from(size_of::<Capset>()).unwrap();
                (response::OK_CAPSET_INFO, [CAPSET_ID, CAPSET_VERSION, size, 0].as_bytes().to_vec())
            }
            command::GET_CAPSET => {
                let mut capset = Capset::new_zeroed();
                capset.protocol_version = PROTOCOL_VERSION;
                capset.vram_bytes = WINDOW;
                (response::OK_CAPSET, capset.as_bytes().to_vec())
            }
            command::CTX_CREATE => {
                state.contexts.push(header.context_id);
                (response::OK_NODATA, Vec::new())
            }
            command::CTX_DESTROY => {
                state.contexts.retain(|id| *id != header.context_id);
                (response::OK_NODATA, Vec::new())
            }
            command::RESOURCE_CREATE_BLOB => {
                let (blob, rest) = CreateBlob::read_from_prefix(body).unwrap();
                let list =
                    rest.chunks_exact(16).map(|entry| MemEntry::read_from_bytes(entry).unwrap()).collect();
                state.blobs.insert(blob.resource_id, (blob, list));
                (response::OK_NODATA, Vec::new())
            }
            command::RESOURCE_MAP_BLOB => {
                let (map, _) = MapBlob::read_from_prefix(body).unwrap();
                let guard = self.mapped.0.lock().unwrap();
                let wait = self.mapped.1.wait_timeout_while(guard, Duration::from_secs(5), |mapped| !*mapped);
                drop(wait);
                match state.blobs.get(&map.resource_id) {
                    Some((blob, _)) if map.offset + blob.size <= WINDOW => {
                        (response::OK_MAP_INFO, [gpu::blob::MAP_CACHE_CACHED, 0].as_bytes().to_vec())
                    }
                    Some(_) => (response::ERR_INVALID_PARAMETER, Vec::new()),
                    None => (response::ERR_INVALID_RESOURCE_ID, Vec::new()),
                }
            }
            command::RESOURCE_UNREF => {
                let id = u32::read_from_prefix(body).unwrap().0;
                state.blobs.remove(&id);
                (response::OK_NODATA, Vec::new())
            }
            command::SUBMIT_3D => match body.get(8..12) {
                Some(b"HOLD") => {
                    state.held.push((chain, header));
                    return Vec::new();
                }
                Some(b"MUTE") => return Vec::new(),
                Some(b"DIE!") => {
                    self.cut.lock().unwrap().as_ref().unwrap().shutdown();
                    return Vec::new();
                }
                Some(b"FAIL") => (response::ERR_INVALID_PARAMETER, Vec::new()),
                Some(b"FREE") => {
                    let mut used = Vec::new();
                    for (chain, header) in std::mem::take(&mut state.held).into_iter().rev() {
                        used.push((
                            chain.head_index(),
                            self.answer(&chain, header, response::OK_NODATA, &[]),
                        ));
                    }
                    used.push((head, self.answer(&chain, header, response::OK_NODATA, &[])));
                    return used;
                }
                _ => (response::OK_NODATA, Vec::new()),
            },
            command::CTX_ATTACH_RESOURCE | command::CTX_DETACH_RESOURCE | command::RESOURCE_UNMAP_BLOB => {
                (response::OK_NODATA, Vec::new())
            }
            _ => (response::ERR_UNSPEC, Vec::new()),
        };
        vec![(head, self.answer(&chain, header, kind, &rest))]
    }
}
