//! FUSE requests.

use campanile_protocol::fs;
use campanile_protocol::fs::errno;
use campanile_protocol::fs::fuse::InHeader;
use campanile_protocol::fs::fuse::OutHeader;
use campanile_protocol::fs::fuse::file::OpenIn;
use campanile_protocol::fs::fuse::file::OpenOut;
use campanile_protocol::fs::fuse::file::ReadIn;
use campanile_protocol::fs::fuse::file::ReleaseIn;
use campanile_protocol::fs::fuse::file::WriteIn;
use campanile_protocol::fs::fuse::opcode;
use campanile_protocol::fs::fuse::start;
use campanile_protocol::fs::fuse::start::InitIn;
use campanile_protocol::fs::fuse::start::InitOut;
use campanile_protocol::fs::fuse::start::InterruptIn;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use super::answer;
use super::answer::Fault;
use super::nodes;
use super::parked::Asked;
use super::state::Fs;
use crate::frontend::vgpu::Vgpu;
use crate::frontend::vhost::answers::Answers;
use crate::frontend::vhost::ticket::Ticket;

/// `O_ACCMODE` and `O_RDONLY`: how a directory may be opened.
const ACCESS: u32 = 3;

fn first<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Result<(T, &[u8]), Fault> {
    T::read_from_prefix(bytes).map_err(|_| answer::INVALID)
}

/// Whether an error is a matter of course, and no mistake.
const fn is_usual(errno: i32) -> bool {
    matches!(errno, errno::ENOENT | errno::ENOSYS | errno::EAGAIN)
}

/// The file alone is opened for what it is there for.
fn only_gpu(node: u64) -> Result<(), Fault> {
    match node {
        fs::GPU => Ok(()),
        fs::ROOT => Err(Fault::Errno(errno::EISDIR)),
        _ => Err(Fault::Errno(errno::ENOENT)),
    }
}

impl Fs {
    /// One request; answered, or parked.
    pub(super) fn request(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        header: &InHeader,
        body: &[u8],
        ticket: Ticket,
        answers: &mut Answers,
    ) {
        let (unique, bytes) = (header.unique, size_of::<InHeader>() + body.len());
        if matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET) {
            // Node ids mean the same for ever: there is nothing to forget, and nothing to say.
            return answers.answer(ticket, &[]);
        }
        if ticket.writable() < size_of::<OutHeader>() {
            vgpu.count_refused();
            return answers.answer(ticket, &[]);
        }
        if usize::try_from(header.length).ok() != Some(bytes) {
            return self.fault(vgpu, unique, answer::INVALID, ticket, answers);
        }
        let outcome = match header.opcode {
            opcode::IOCTL => match only_gpu(header.node) {
                Ok(()) => return self.ioctl(vgpu, header, body, ticket, answers),
                Err(fault) => Err(fault),
            },
            opcode::READ => match self.read(header.node, body) {
                Ok((file, read)) => match self.register(vgpu, file, &read, unique, ticket) {
                    Ok(()) => return,
                    Err((ticket, fault)) => return self.not_done(vgpu, unique, fault, ticket, answers),
                },
                Err(fault) => Err(fault),
            },
            _ => self.at_once(vgpu, header, body, ticket.writable() - size_of::<OutHeader>(), answers),
        };
        match outcome {
            Ok(results) => answers.answer(ticket, &answer::done(unique, &results)),
            Err(fault) => self.not_done(vgpu, unique, fault, ticket, answers),
        }
    }

    fn not_done(&self, vgpu: &Vgpu<Asked>, unique: u64, fault: Fault, ticket: Ticket, answers: &mut Answers) {
        let errno = match fault {
            Fault::Errno(errno) => errno,
            Fault::Refused(refusal) => answer::errno_of(refusal),
        };
        if !is_usual(errno) {
            vgpu.count_refused();
        }
        answers.answer(ticket, &answer::failed(unique, errno));
    }

    /// Requests that are answered at once. `room`: bytes for results.
    fn at_once(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        header: &InHeader,
        body: &[u8],
        room: usize,
        answers: &mut Answers,
    ) -> Result<Vec<u8>, Fault> {
        let node = header.node;
        match header.opcode {
            opcode::INIT => {
                let agreed = init(body)?;
                self.close_all(vgpu, answers);
                Ok(agreed.as_bytes().to_vec())
            }
            opcode::DESTROY => {
                self.close_all(vgpu, answers);
                Ok(Vec::new())
            }
            opcode::LOOKUP => nodes::lookup(node, body),
            opcode::GETATTR => nodes::get_attributes(node),
            opcode::STATFS => Ok(nodes::statistics()),
            // Permissions are those of the attributes; the kernel has looked at them.
            opcode::ACCESS | opcode::RELEASEDIR | opcode::FLUSH => Ok(Vec::new()),
            opcode::OPENDIR if node == fs::ROOT => {
                let (open, _): (OpenIn, _) = first(body)?;
                if open.flags & ACCESS == 0 {
                    Ok(OpenOut::default().as_bytes().to_vec())
                } else {
                    Err(Fault::Errno(errno::EISDIR))
                }
            }
            opcode::OPENDIR => Err(Fault::Errno(errno::ENOTDIR)),
            opcode::READDIR => nodes::entries(node, body, room),
            opcode::OPEN => {
                only_gpu(node)?;
                first::<OpenIn>(body)?;
                let opened = self.files.create()?;
                self.write_file(vgpu, self.files.last);
                Ok(opened.as_bytes().to_vec())
            }
            opcode::RELEASE => {
                let (release, _): (ReleaseIn, _) = first(body)?;
                if let Ok(file) = self.files.number(release.handle) {
                    self.release(vgpu, file, answers);
                }
                Ok(Vec::new())
            }
            opcode::WRITE => {
                only_gpu(node)?;
                let (write, bytes): (WriteIn, _) = first(body)?;
                let file = self.files.number(write.handle)?;
                Ok(self.files.stage(vgpu, file, &write, bytes)?.as_bytes().to_vec())
            }
            opcode::INTERRUPT => {
                let (interrupt, _): (InterruptIn, _) = first(body)?;
                self.interrupt(vgpu, interrupt.unique, answers);
                Ok(Vec::new())
            }
            opcode::SETATTR => Err(Fault::Errno(errno::EPERM)),
            opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::LINK
            | opcode::CREATE => Err(Fault::Errno(errno::EROFS)),
            _ => Err(Fault::Errno(errno::ENOSYS)),
        }
    }

    fn read(&self, node: u64, body: &[u8]) -> Result<(u32, ReadIn), Fault> {
        only_gpu(node)?;
        let (read, _): (ReadIn, _) = first(body)?;
        Ok((self.files.number(read.handle)?, read))
    }
}

/// INIT: what both sides do.
fn init(body: &[u8]) -> Result<InitOut, Fault> {
    let (init, _): (InitIn, _) = first(body)?;
    let max_pages = u16::try_from(fs::MAX_TRANSFER / nodes::BLOCK_BYTES).map_err(|_| answer::INVALID)?;
    let agreed = InitOut {
        major: start::MAJOR,
        minor: start::MINOR,
        flags: init.flags & start::WANTED,
        max_background: u16::MAX,
        congestion_threshold: u16::MAX,
        max_write: fs::MAX_TRANSFER,
        time_granularity: 1,
        max_pages,
        ..InitOut::default()
    };
    match init.major {
        start::MAJOR if init.minor >= start::MINOR => Ok(agreed),
        // It sends INIT again, in our words.
        major if major > start::MAJOR => Ok(agreed),
        _ => Err(Fault::Errno(errno::EPROTO)),
    }
}
