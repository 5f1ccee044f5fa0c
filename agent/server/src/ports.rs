//! The agent's listeners: the health check, the read-only port, the HTTPS port, the socket.

use std::net::SocketAddr;
use std::path::Path;

use pintle_daemon::serve::listen::{Listener, PortName, ServeError, bind_socket, bind_tcp};

/// The program that often occupies one of the agent's ports.
const RIVAL: &str = "a kubelet";

/// Everything that is listened on.
#[derive(Debug)]
pub(crate) struct Ports {
    pub(crate) healthz: Option<Listener>,
    pub(crate) read_only: Option<Listener>,
    pub(crate) https: Option<(std::net::TcpListener, SocketAddr)>,
    pub(crate) socket: Listener,
}

/// Addresses of the ports; `None` for those that are off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) healthz: Option<SocketAddr>,
    pub(crate) read_only: Option<SocketAddr>,
    pub(crate) https: Option<SocketAddr>,
}

impl Ports {
    /// Binds all or nothing.
    pub(crate) fn bind(at: Addresses, socket: &Path) -> Result<Self, ServeError> {
        let tcp = |what, field, address: Option<SocketAddr>| {
            address.map(|at| bind_tcp(PortName { what, field, rival: RIVAL }, at)).transpose()
        };
        let plain = |bound: Option<_>| bound.map(|(listener, at)| Listener::Tcp(listener, at));
        Ok(Self {
            healthz: plain(tcp("the health check", "healthzPort", at.healthz)?),
            read_only: plain(tcp("the read-only port", "readOnlyPort", at.read_only)?),
            https: tcp("the HTTPS server", "port", at.https)?,
            socket: Listener::Unix(bind_socket(socket, "--pintle-socket")?),
        })
    }
}
