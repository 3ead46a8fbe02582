//! What can go wrong with an engine, from the daemon.

/// Why the adapter did not do something.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// No free place in a table of the engine.
    #[error("the engine has no free {0} left")]
    Full(&'static str),
    /// The hardware queue holds as many buffers as it may (MCDM-24).
    #[error("the hardware queue is full")]
    HwQueueFull,
    /// The engine process is gone.
    #[error("the engine is lost")]
    Lost,
    /// The process was killed, and is still there.
    #[error("engine process {pid} does not end, {after:?} after it was killed")]
    Stuck {
        /// Its id.
        pid: u32,
        /// How long it was waited for.
        after: std::time::Duration,
    },
    /// The channel to the engine failed.
    #[error(transparent)]
    Channel(#[from] crate::engine::channel::ChannelError),
}
