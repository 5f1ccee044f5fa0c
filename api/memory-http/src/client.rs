//! Clients in the process of the server, without a connection, or with one that loses things.
//!
//! Input: requests of `kube`. Output: the server's responses. A watch ends when its client drops it
//! or a test cuts it.

use std::time::Duration;

use axum::http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::client::Body;

use crate::answer::{answer, failure};
use crate::request::refusal;
use crate::shared::SharedServer;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// It is answered.
    Through,
    /// It is refused with this code, and changes nothing.
    Refused(u16),
    /// It is handled at once, and answered so much later.
    Late(Duration),
    /// It never arrives, and has no answer.
    Lost,
}

impl SharedServer {
    /// A client of this server.
    pub fn client(&self) -> kube::Client {
        self.client_through(|_| Passage::Through)
    }

    /// A client whose connection decides about each request by its method.
    pub fn client_through(
        &self,
        passage: impl Fn(&Method) -> Passage + Send + Sync + 'static,
    ) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, passage) = (server.clone(), passage(request.method()));
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let request = Request::from_parts(head, body.to_vec());
                Ok::<_, kube::Error>(match passage {
                    Passage::Through => answer(&server, &request),
                    Passage::Refused(code) => failure(&refusal(code, "the connection refuses it")),
                    Passage::Late(after) => {
                        let response = answer(&server, &request);
                        tokio::time::sleep(after).await;
                        response
                    }
                    Passage::Lost => std::future::pending().await,
                })
            }
        });
        kube::Client::new(service, "default")
    }
}
