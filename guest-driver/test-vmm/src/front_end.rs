//! The VMM's end of the vhost-user socket: messages in QEMU's order.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use campanile_protocol::virtio_gpu::QUEUE_COUNT;
use campanile_protocol::virtio_gpu::SHM_HOST_VISIBLE;
use campanile_protocol::virtio_gpu::config::Config;
use vhost::VhostBackend;
use vhost::vhost_user::Frontend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;
use vhost::vhost_user::message::VhostUserConfigFlags;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use zerocopy::FromBytes;

use super::alarm::Alarm;
use super::memory_table::MemoryTable;
use super::options::DeviceKind;
use super::pause::lock::Held;
use super::pause::lock::Lock;
use super::virt_queue::Wiring;
use campanile_guest_driver::transport::error::TransportError;

/// Protocol features that this VMM has, as QEMU 11.1.
const PROTOCOL: Protocol = Protocol::MQ
    .union(Protocol::LOG_SHMFD)
    .union(Protocol::REPLY_ACK)
    .union(Protocol::BACKEND_REQ)
    .union(Protocol::CONFIG)
    .union(Protocol::BACKEND_SEND_FD)
    .union(Protocol::RESET_DEVICE)
    .union(Protocol::CONFIGURE_MEM_SLOTS)
    .union(Protocol::DEVICE_STATE)
    .union(Protocol::SHMEM);

/// The socket to the device, and what was agreed on it.
pub(crate) struct FrontEnd {
    socket: UnixStream,
    main: Lock<Main>,
    alarm: Arc<Alarm>,
    message_timeout: Duration,
}

/// What the holder of the socket's lock works with: in QEMU's terms, the main loop.
pub(crate) struct Main {
    pub(super) frontend: Frontend,
    pub(super) protocol: Protocol,
    pub(super) offered: u64,
    pub(super) table: MemoryTable,
}

/// What the device says of itself before a guest runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceFacts {
    pub(crate) config: Config,
    pub(crate) window_bytes: u64,
}

impl FrontEnd {
    /// Opens the socket.
    pub(crate) fn connect(
        path: &Path,
        table: MemoryTable,
        alarm: Arc<Alarm>,
        message_timeout: Duration,
    ) -> Result<Self, TransportError> {
        let refused = |source| TransportError::Connect { path: path.to_owned(), source };
        let socket = UnixStream::connect(path).map_err(refused)?;
        let clone = socket.try_clone().map_err(refused)?;
        let frontend = Frontend::from_stream(clone, u64::from(QUEUE_COUNT));
        let main = Main { frontend, protocol: Protocol::empty(), offered: 0, table };
        Ok(Self { socket, main: Lock::new(main), alarm, message_timeout })
    }

    /// The socket, to be watched.
    pub(crate) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Closes the connection at once, also under threads that use it.
    pub(crate) fn hang_up(&self) {
        if let Err(error) = self.socket.shutdown(Shutdown::Both)
            && error.kind() != io::ErrorKind::NotConnected
        {
            log::debug!("hanging up: {error}");
        }
    }

    /// The right to speak on the socket. Who holds it may block for [`Self::message_timeout`] a message.
    pub(crate) fn main(&self) -> Held<'_, Main> {
        self.main.lock()
    }

    /// One message, and its answer within the time.
    pub(super) fn exchange<T>(
        &self,
        message: &'static str,
        run: impl FnOnce() -> vhost::Result<T>,
    ) -> Result<T, TransportError> {
        self.exchange_within(self.message_timeout, message, run)
    }

    /// One message that may take its time, and its answer.
    pub(super) fn exchange_within<T>(
        &self,
        limit: Duration,
        message: &'static str,
        run: impl FnOnce() -> vhost::Result<T>,
    ) -> Result<T, TransportError> {
        let armed = self.alarm.arm(limit);
        let result = run();
        if armed.expired() {
            return Err(TransportError::Timeout { what: message, after: limit });
        }
        result.map_err(|source| match source {
            vhost::Error::VhostUserProtocol(
                vhost::vhost_user::Error::Disconnected
                | vhost::vhost_user::Error::PartialMessage
                | vhost::vhost_user::Error::SocketBroken(_)
                | vhost::vhost_user::Error::SocketError(_),
            ) => TransportError::Disconnected,
            source => TransportError::VhostUser { message, source: Box::new(source) },
        })
    }

    /// From the first message to the point where the guest may boot (`init` in QEMU's trace).
    pub(crate) fn negotiate(
        &self,
        wirings: &[Wiring],
        back_channel: &UnixStream,
        device: DeviceKind,
    ) -> Result<DeviceFacts, TransportError> {
        let main = &mut *self.main();
        let frontend = &mut main.frontend;
        self.exchange("GET_FEATURES", || frontend.get_features())?;
        let offered = self.exchange("GET_PROTOCOL_FEATURES", || frontend.get_protocol_features())?;
        let protocol = offered & PROTOCOL;
        self.exchange("SET_PROTOCOL_FEATURES", || frontend.set_protocol_features(protocol))?;
        main.protocol = protocol;
        if protocol.contains(Protocol::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        if protocol.contains(Protocol::MQ) {
            let count = self.exchange("GET_QUEUE_NUM", || frontend.get_queue_num())?;
            if count < u64::from(QUEUE_COUNT) {
                return Err(TransportError::Missing { feature: "two queues" });
            }
        }
        if protocol.contains(Protocol::CONFIGURE_MEM_SLOTS) {
            self.exchange("GET_MAX_MEM_SLOTS", || frontend.get_max_mem_slots())?;
        }
        if protocol.contains(Protocol::BACKEND_REQ) {
            self.exchange("SET_BACKEND_REQ_FD", || {
                frontend.set_backend_request_fd(&back_channel.as_raw_fd())
            })?;
        }
        self.exchange("SET_OWNER", || frontend.set_owner())?;
        main.offered = self.exchange("GET_FEATURES", || frontend.get_features())?;
        for (index, wiring) in wirings.iter().enumerate() {
            self.exchange("SET_VRING_CALL", || frontend.set_vring_call(index, wiring.events.call()))?;
            self.exchange("SET_VRING_ERR", || frontend.set_vring_err(index, wiring.events.error()))?;
        }
        if protocol.contains(Protocol::RESET_DEVICE) {
            self.exchange("RESET_DEVICE", || frontend.reset_device())?;
        }
        self.read_facts(main, device)
    }

    /// What cloud-hypervisor says to a device that is to take a saved state: the protocol features are those of then.
    pub(crate) fn reconnect(&self, protocol: Protocol) -> Result<(), TransportError> {
        let main = &mut *self.main();
        let frontend = &mut main.frontend;
        self.exchange("SET_OWNER", || frontend.set_owner())?;
        main.offered = self.exchange("GET_FEATURES", || frontend.get_features())?;
        self.exchange("SET_PROTOCOL_FEATURES", || frontend.set_protocol_features(protocol))?;
        main.protocol = protocol;
        if protocol.contains(Protocol::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        Ok(())
    }

    /// The protocol features that are agreed on.
    pub(crate) fn protocol(&self) -> Protocol {
        self.main().protocol
    }

    fn read_facts(&self, main: &mut Main, device: DeviceKind) -> Result<DeviceFacts, TransportError> {
        if device == DeviceKind::Fs {
            // The VMM's own configuration.
            return Ok(DeviceFacts { config: Config::COMPUTE_ONLY, window_bytes: 0 });
        }
        if !main.protocol.contains(Protocol::CONFIG) {
            return Err(TransportError::Missing { feature: "the protocol feature CONFIG" });
        }
        const BYTES: [u8; size_of::<Config>()] = [0; size_of::<Config>()];
        let size = u32::try_from(BYTES.len()).expect("the configuration is 16 bytes");
        let flags = VhostUserConfigFlags::empty();
        let (_, payload) =
            self.exchange("GET_CONFIG", || main.frontend.get_config(0, size, flags, &BYTES))?;
        let why = "it is too short";
        let config = Config::read_from_bytes(&payload)
            .map_err(|_| TransportError::BadAnswer { command: "GET_CONFIG", why })?;
        let mut window_bytes = 0;
        if main.protocol.contains(Protocol::SHMEM) {
            let shmem = self.exchange("GET_SHMEM_CONFIG", || main.frontend.get_shmem_config())?;
            let sizes = shmem.memory_sizes;
            window_bytes = sizes[usize::from(SHM_HOST_VISIBLE)];
        }
        Ok(DeviceFacts { config, window_bytes })
    }
}
