//! The server on a port of the loopback, served by a thread of its own.
//!
//! Input: a listener. Output: responses over HTTP/1.1, without TLS. Dropping the value ends it.

use std::net::TcpListener;
use std::ops::Deref;
use std::thread::{self, JoinHandle};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::answer::answer;
use crate::shared::SharedServer;

/// Longest request that is read, in bytes.
const BODY_BYTES_MAX: usize = 8 << 20;

/// A served API server in memory.
#[derive(Debug)]
pub struct HttpServer {
    server: SharedServer,
    port: u16,
    thread: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl HttpServer {
    /// Serves on a free port of the loopback.
    ///
    /// # Errors
    /// When no port or thread is to be had.
    pub fn start(server: SharedServer) -> std::io::Result<Self> {
        Self::on(TcpListener::bind("127.0.0.1:0")?, server)
    }

    /// Serves on this port of a loopback, such as that of a node's network.
    ///
    /// # Errors
    /// When the listener does not work or no thread is to be had.
    pub fn on(listener: TcpListener, server: SharedServer) -> std::io::Result<Self> {
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = server.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("memory-http".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {} // sent or dropped: both mean stop
                    served = serve(serving, listener) => served.expect("the loopback works"),
                }
            });
        })?;
        Ok(Self { server, port, thread: Some((stop, thread)) })
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A kubeconfig for it.
    pub fn kubeconfig(&self) -> Value {
        json!({
            "kind": "Config", "apiVersion": "v1", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.url()}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}], "users": [],
        })
    }
}

impl Deref for HttpServer {
    type Target = SharedServer;
    fn deref(&self) -> &SharedServer {
        &self.server
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        let Some((stop, thread)) = self.thread.take() else { return };
        drop(stop);
        // A thread that panicked has printed why.
        let _ = thread.join();
    }
}

async fn serve(server: SharedServer, listener: TcpListener) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let router = axum::Router::new().fallback(respond).with_state(server);
    axum::serve(listener, router).await
}

async fn respond(State(server): State<SharedServer>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    // A body that is truncated or too long is treated as empty, which is not valid JSON.
    let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await.unwrap_or_default();
    answer(&server, &Request::from_parts(head, body.to_vec()))
}
