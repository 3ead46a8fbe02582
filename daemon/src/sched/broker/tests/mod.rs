//! Daemons, a broker and engines without processes, over real sockets.

mod hostile;
pub(in crate::sched::broker) mod puppet;
mod turns;
pub(in crate::sched::broker) mod world;
