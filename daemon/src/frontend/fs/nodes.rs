//! The root, and its one file.

use campanile_protocol::fs;
use campanile_protocol::fs::errno;
use campanile_protocol::fs::fuse::file::ReadIn;
use campanile_protocol::fs::fuse::node;
use campanile_protocol::fs::fuse::node::Attributes;
use campanile_protocol::fs::fuse::node::AttributesOut;
use campanile_protocol::fs::fuse::node::DirectoryEntry;
use campanile_protocol::fs::fuse::node::EntryOut;
use campanile_protocol::fs::fuse::node::StatOut;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::answer;
use super::answer::Fault;

/// Seconds that names and attributes hold: they never change.
const VALID: u64 = 3600;
/// Permissions of the root: everyone sees the file.
const ROOT_MODE: u32 = node::MODE_DIRECTORY | 0o555;
/// Permissions of the file: everyone uses it.
const FILE_MODE: u32 = node::MODE_FILE | 0o666;
/// Bytes of a block, and of a page.
pub(super) const BLOCK_BYTES: u32 = 4096;

fn attributes(of: u64) -> Result<Attributes, Fault> {
    let (mode, links, size) = match of {
        fs::ROOT => (ROOT_MODE, 2, 0),
        fs::GPU => (FILE_MODE, 1, fs::SIZE),
        _ => return Err(Fault::Errno(errno::ENOENT)),
    };
    Ok(Attributes { inode: of, size, mode, links, block_bytes: BLOCK_BYTES, ..Attributes::default() })
}

/// LOOKUP of a name with its zero byte.
pub(super) fn lookup(directory: u64, name: &[u8]) -> Result<Vec<u8>, Fault> {
    if directory != fs::ROOT {
        return Err(Fault::Errno(errno::ENOTDIR));
    }
    if name.strip_suffix(&[0]) != Some(fs::NAME) {
        return Err(Fault::Errno(errno::ENOENT));
    }
    let (node, attributes) = (fs::GPU, attributes(fs::GPU)?);
    let entry =
        EntryOut { node, entry_valid: VALID, attributes_valid: VALID, attributes, ..EntryOut::default() };
    Ok(entry.as_bytes().to_vec())
}

/// GETATTR.
pub(super) fn get_attributes(of: u64) -> Result<Vec<u8>, Fault> {
    let attributes = attributes(of)?;
    Ok(AttributesOut { valid: VALID, attributes, ..AttributesOut::default() }.as_bytes().to_vec())
}

/// STATFS.
pub(super) fn statistics() -> Vec<u8> {
    let (block_bytes, name_bytes) = (BLOCK_BYTES, 255);
    let files = [2, 0];
    let statistics =
        StatOut { files, block_bytes, name_bytes, fragment_bytes: block_bytes, ..StatOut::default() };
    statistics.as_bytes().to_vec()
}

/// READDIR of the root, from its `offset`-th entry on, as many as there is room for.
pub(super) fn entries(of: u64, bytes: &[u8], room: usize) -> Result<Vec<u8>, Fault> {
    if of != fs::ROOT {
        return Err(Fault::Errno(errno::ENOTDIR));
    }
    let (read, _) = ReadIn::read_from_prefix(bytes).map_err(|_| answer::INVALID)?;
    let room = room.min(usize::try_from(read.size).unwrap_or(usize::MAX));
    let all: [(u64, &[u8], u32); 3] = [
        (fs::ROOT, b".", node::KIND_DIRECTORY),
        (fs::ROOT, b"..", node::KIND_DIRECTORY),
        (fs::GPU, fs::NAME, node::KIND_FILE),
    ];
    let mut listed = Vec::new();
    for ((inode, name, kind), next) in all.into_iter().zip(1..) {
        if next <= read.offset {
            continue;
        }
        let name_bytes = u32::try_from(name.len()).map_err(|_| answer::INVALID)?;
        let head = DirectoryEntry { inode, next, name_bytes, kind };
        let mut entry = [head.as_bytes(), name].concat();
        entry.resize(entry.len().next_multiple_of(8), 0);
        if listed.len() + entry.len() > room {
            break;
        }
        listed.extend(entry);
    }
    Ok(listed)
}
