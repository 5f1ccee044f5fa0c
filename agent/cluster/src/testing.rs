//! Servers on the loopback that stand in for an API server, and clients of them.

use axum::Router;
use kube::{Client, Config};

/// Serves as long as the runtime lives; returns the port.
pub(crate) async fn served(router: Router) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let _ = axum::serve(listener, router).await;
    });
    port
}

/// A client of the server on that port.
pub(crate) fn client_at(port: u16) -> Client {
    let url = format!("http://127.0.0.1:{port}").parse().expect("a URL");
    Client::try_from(Config::new(url)).expect("a client")
}
