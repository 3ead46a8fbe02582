//! How much of each thing one VM, or one session, may have.

/// Request queues.
pub const REQUEST_QUEUES: u16 = 8;
/// Open files of one VM.
pub const MAX_FILES: usize = 4096;
/// Blobs of one VM.
pub const MAX_BLOBS: usize = 8192;
/// Parked requests of one VM.
pub const MAX_PARKED: usize = 4096;
/// Parked waits of one session.
pub const MAX_WAITS: usize = 64;
/// Submissions of one session that are not done, and of one VM.
pub const MAX_OPEN: [usize; 2] = [1024, 16 * 1024];
/// Bytes of one VM that are staged.
pub const MAX_STAGED: usize = 8 << 20;
