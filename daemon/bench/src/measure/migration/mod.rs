//! What it costs to move a guest: how fast its memory goes, how long it stands still, and what others notice.
//!
//! Two daemons, each with the other as its peer; the guest is a loopback VM in this process, whose threads are virtual
//! CPUs. The other end of all ratios is measured on the same machine in the same run: a plain copy through a socket, a
//! move without a live phase, an innocent guest beside the same CPU load.

pub mod figures;
pub mod hosts;
pub mod innocent;
pub mod load;
pub mod measurement;
pub mod picture;
pub mod socket_copy;
