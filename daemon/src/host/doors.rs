//! Where the operator, scrapers and browsers come in.

use std::path::Path;
use std::sync::Arc;

use super::error::HostError;
use super::options::HostOptions;
use crate::confine::confiner::Confiner;
use crate::confine::roles::Reach;
use crate::confine::roles::Role;
use crate::listener::Listener;
use crate::listener::SocketError;
use crate::operator::console::Console;
use crate::operator::http::address::Address;
use crate::operator::http::server::Door;
use crate::operator::http::server::Server;
use crate::operator::metrics::scrapes::Scrapes;
use crate::operator::socket::Access;
use crate::operator::socket::ControlSocket;
use crate::operator::web::site::Site;

/// All of them, as far as the operator names them. They close when this is dropped.
#[derive(Debug)]
pub struct Doors {
    /// Where the operator asks.
    pub control: Option<ControlSocket>,
    /// The read-only operator socket.
    pub status: Option<ControlSocket>,
    /// Where scrapers read.
    pub metrics: Option<Server>,
    /// Where browsers look.
    pub web: Option<Server>,
}

impl Doors {
    /// Opens them, the one for commands last, each served by threads of its role.
    ///
    /// # Errors
    /// One cannot be opened.
    pub fn open(
        options: &HostOptions,
        console: &Arc<dyn Console>,
        scrapes: Scrapes,
        confiner: &Confiner,
        reach: impl Fn(Role) -> Reach,
    ) -> Result<Self, HostError> {
        let metrics = open_metrics(options, scrapes, confiner, &reach(Role::Metrics))?;
        let web = open_web(options, console, confiner, &reach(Role::Metrics))?;
        let serve = |listener: Result<Listener, SocketError>, access| {
            let name = Access::name(&access);
            let failed = |error: SocketError| HostError::Control { name, source: error.into() };
            let (listener, console) = (listener.map_err(failed)?, Arc::clone(console));
            let serve = move || ControlSocket::serve(listener, console, access);
            let socket = confiner.within(Role::Operator, &reach(Role::Operator), serve)?.map_err(failed)?;
            log::info!("{name} socket: {}", socket.path().display());
            Ok::<_, HostError>(socket)
        };
        let status = options.status.as_deref();
        let status = status.map(|path| serve(Listener::bind_for_group(path), Access::Status)).transpose()?;
        let control = options.control.as_deref();
        let control = control.map(|path| serve(bind_control(path, options), control_access(options)));
        Ok(Self { control: control.transpose()?, status, metrics, web })
    }
}

/// The file of the operator's socket. Where other users are to be answered any can connect, and the user of the connection decides.
fn bind_control(path: &Path, options: &HostOptions) -> Result<Listener, SocketError> {
    if options.control_users.has_others() {
        Listener::bind_for_all(path)
    } else {
        Listener::bind_private(path)
    }
}

fn control_access(options: &HostOptions) -> Access {
    Access::Control(options.control_users.clone())
}

/// Serves metrics, where the operator wants them.
fn open_metrics(
    options: &HostOptions,
    scrapes: Scrapes,
    confiner: &Confiner,
    reach: &Reach,
) -> Result<Option<Server>, HostError> {
    let Some(address) = &options.metrics else { return Ok(None) };
    let door = Door::open(address).map_err(|error| HostError::Metrics(error.into()))?;
    let pages = Box::new(scrapes);
    let server = confiner.within(Role::Metrics, reach, move || Server::start("metrics", door, pages))?;
    log::info!("metrics: {address}");
    Ok(Some(server?))
}

/// Serves the web page, where the operator wants it.
fn open_web(
    options: &HostOptions,
    console: &Arc<dyn Console>,
    confiner: &Confiner,
    reach: &Reach,
) -> Result<Option<Server>, HostError> {
    let Some(address) = options.web else { return Ok(None) };
    let door = Door::open(&Address::Tcp(address)).map_err(|error| HostError::Web(error.into()))?;
    let pages = Box::new(Site::new(Arc::clone(console), address));
    let server = confiner.within(Role::Metrics, reach, move || Server::start("web", door, pages))?;
    log::info!("web page: http://{address}");
    Ok(Some(server?))
}
