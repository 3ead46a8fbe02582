//! The commands (virtio 1.3, 5.7.6.7 on).

use campanile_protocol::capset;
use campanile_protocol::virtio_gpu::blob;
use campanile_protocol::virtio_gpu::blob::CreateBlob;
use campanile_protocol::virtio_gpu::blob::MapBlob;
use campanile_protocol::virtio_gpu::blob::MemEntry;
use campanile_protocol::virtio_gpu::command;
use campanile_protocol::virtio_gpu::command::ContextCreate;
use campanile_protocol::virtio_gpu::command::GetCapset;
use campanile_protocol::virtio_gpu::command::GetCapsetInfo;
use campanile_protocol::virtio_gpu::command::Header;
use campanile_protocol::virtio_gpu::command::ResourceName;
use campanile_protocol::virtio_gpu::command::Submit3d;
use campanile_protocol::virtio_gpu::response;
use campanile_protocol::virtio_gpu::response::CapsetInfo;
use campanile_protocol::virtio_gpu::response::DisplayInfo;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use super::device::Gpu;
use super::device::Reply;
use super::device::reply_header;
use super::waiting::Asked;
use super::waiting::Response;
use crate::frontend::vgpu::Vgpu;
use crate::ids::FrontContext;
use crate::vgpu::objects::refusal::Refusal;

type Executed = Result<Reply, Refusal>;

fn split<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Result<(T, &[u8]), Refusal> {
    T::read_from_prefix(bytes).map_err(|_| Refusal::Parameter)
}

impl Gpu {
    /// Executes one command of the control queue.
    pub(super) fn execute(vgpu: &mut Vgpu<Asked>, header: &Header, body: &[u8]) -> Executed {
        if vgpu.session.is_stopping() {
            return Err(Refusal::Unspecified);
        }
        let done = || Ok(Reply::Now(reply_header(header, response::OK_NODATA).as_bytes().to_vec()));
        match header.kind {
            command::GET_DISPLAY_INFO => {
                let displays = [0; response::MAX_SCANOUTS * response::DISPLAY_BYTES];
                let info = DisplayInfo { header: reply_header(header, response::OK_DISPLAY_INFO), displays };
                Ok(Reply::Now(info.as_bytes().to_vec()))
            }
            command::GET_CAPSET_INFO => Self::capset_info(header, body),
            command::GET_CAPSET => Self::get_capset(vgpu, header, body),
            command::CTX_CREATE => {
                let (create, _): (ContextCreate, _) = split(body)?;
                if create.context_init & command::CONTEXT_INIT_CAPSET_MASK != capset::CAPSET_ID {
                    return Err(Refusal::Parameter);
                }
                vgpu.session.create_context(FrontContext::new(header.context_id))?;
                log::debug!("{}: context {} opened", vgpu.name(), header.context_id);
                done()
            }
            command::CTX_DESTROY => {
                vgpu.session.destroy_context(FrontContext::new(header.context_id))?;
                log::debug!("{}: context {} closed", vgpu.name(), header.context_id);
                done()
            }
            command::CTX_ATTACH_RESOURCE => {
                let (name, _): (ResourceName, _) = split(body)?;
                vgpu.session.blobs().attach(FrontContext::new(header.context_id), name.resource_id)?;
                done()
            }
            command::CTX_DETACH_RESOURCE => {
                let (name, _): (ResourceName, _) = split(body)?;
                vgpu.session.blobs().detach(FrontContext::new(header.context_id), name.resource_id)?;
                done()
            }
            command::RESOURCE_CREATE_BLOB => Self::create_blob(vgpu, header, body),
            command::RESOURCE_MAP_BLOB => {
                let (map, _): (MapBlob, _) = split(body)?;
                let token = vgpu.new_token();
                vgpu.session.blobs().map_blob(map.resource_id, map.offset, token)?;
                Ok(Reply::When(token, Response::MapInfo))
            }
            command::RESOURCE_UNMAP_BLOB => {
                let (name, _): (ResourceName, _) = split(body)?;
                let token = vgpu.new_token();
                vgpu.session.blobs().unmap_blob(name.resource_id, token)?;
                Ok(Reply::When(token, Response::Plain))
            }
            command::RESOURCE_UNREF => {
                let (name, _): (ResourceName, _) = split(body)?;
                vgpu.session.blobs().unref_blob(name.resource_id)?;
                done()
            }
            command::SUBMIT_3D => Self::submit_3d(vgpu, header, body),
            _ => Err(Refusal::Unspecified),
        }
    }

    fn capset_info(header: &Header, body: &[u8]) -> Executed {
        let (query, _): (GetCapsetInfo, _) = split(body)?;
        if query.index != 0 {
            return Err(Refusal::Parameter);
        }
        let info = CapsetInfo {
            header: reply_header(header, response::OK_CAPSET_INFO),
            id: capset::CAPSET_ID,
            max_version: capset::CAPSET_VERSION,
            max_size: u32::try_from(size_of::<capset::Capset>()).map_err(|_| Refusal::Unspecified)?,
            padding: 0,
        };
        Ok(Reply::Now(info.as_bytes().to_vec()))
    }

    fn get_capset(vgpu: &Vgpu<Asked>, header: &Header, body: &[u8]) -> Executed {
        let (query, _): (GetCapset, _) = split(body)?;
        if query.id != capset::CAPSET_ID || query.version > capset::CAPSET_VERSION {
            return Err(Refusal::Parameter);
        }
        let mut bytes = reply_header(header, response::OK_CAPSET).as_bytes().to_vec();
        bytes.extend_from_slice(vgpu.session.capset().as_bytes());
        Ok(Reply::Now(bytes))
    }

    fn create_blob(vgpu: &mut Vgpu<Asked>, header: &Header, body: &[u8]) -> Executed {
        let (create, rest): (CreateBlob, _) = split(body)?;
        if create.flags & !blob::FLAGS_KNOWN != 0
            || (create.blob_id != 0 && create.memory != blob::MEM_HOST3D)
        {
            return Err(Refusal::Parameter);
        }
        match create.memory {
            blob::MEM_HOST3D => {
                if create.entry_count != 0 {
                    return Err(Refusal::Parameter);
                }
                let mappable = create.flags & blob::FLAG_MAPPABLE != 0;
                if create.blob_id == 0 {
                    vgpu.session.blobs().create_vram_blob(create.resource_id, create.size, mappable)?;
                } else {
                    vgpu.session.blobs().take_blob_again(create.resource_id, create.size, create.blob_id)?;
                }
                Ok(Reply::Now(reply_header(header, response::OK_NODATA).as_bytes().to_vec()))
            }
            blob::MEM_GUEST => {
                let count = usize::try_from(create.entry_count).map_err(|_| Refusal::Parameter)?;
                let bytes = count.checked_mul(size_of::<MemEntry>()).ok_or(Refusal::Parameter)?;
                let list = rest.get(..bytes).ok_or(Refusal::Parameter)?;
                let entries: Vec<MemEntry> = list
                    .chunks_exact(size_of::<MemEntry>())
                    .filter_map(|entry| MemEntry::read_from_bytes(entry).ok())
                    .collect();
                let token = vgpu.new_token();
                vgpu.session.blobs().create_guest_blob(create.resource_id, create.size, &entries, token)?;
                Ok(Reply::When(token, Response::Plain))
            }
            _ => Err(Refusal::Parameter),
        }
    }

    fn submit_3d(vgpu: &mut Vgpu<Asked>, header: &Header, body: &[u8]) -> Executed {
        let (submit, rest): (Submit3d, _) = split(body)?;
        let size = usize::try_from(submit.size).map_err(|_| Refusal::Parameter)?;
        let frames = rest.get(..size).ok_or(Refusal::Parameter)?;
        let ring = if header.flags & command::FLAG_INFO_RING_IDX != 0 { header.ring_index } else { 0 };
        if ring > 63 {
            return Err(Refusal::Parameter);
        }
        vgpu.session.submit(FrontContext::new(header.context_id), ring, frames)?;
        if header.flags & command::FLAG_FENCE == 0 {
            return Ok(Reply::Now(reply_header(header, response::OK_NODATA).as_bytes().to_vec()));
        }
        let token = vgpu.new_token();
        vgpu.session.fence(FrontContext::new(header.context_id), ring, token);
        Ok(Reply::When(token, Response::Plain))
    }
}
