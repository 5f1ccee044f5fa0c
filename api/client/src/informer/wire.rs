//! Requests for lists and watches, and their answers in pieces.
//!
//! `kube`'s own reader holds an answer whole and prints one that it cannot parse, which may be a
//! secret; so only its connection is used. Bounds: `ERROR_BYTES_MAX` of an error answer; pieces are
//! as long as the connection's window at most.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http::header::{ACCEPT, ACCEPT_ENCODING};
use kube::Client;
use kube::client::Body;
use pintle_api_types::url::escaped;

use super::error::InformerError;
use super::reflector::{ListAt, ListPlan, WatchPlan};
use crate::{AnswerWithin, TenantShare};

/// Limit of an error answer's body.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// The paths of a kind's objects, and the selected ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectSource {
    /// Paths of the kind, such as `/api/v1/pods`: the first that the server has.
    pub paths: Vec<String>,
    /// Such as `spec.nodeName=a`; empty for all.
    pub field_selector: String,
    /// Such as `app=a,b!=c`; empty for all.
    pub label_selector: String,
    /// Only the metadata of each object is requested.
    pub only_metadata: bool,
}

/// The content type that the answer must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepts {
    Objects,
    /// A list of metadata.
    MetadataList,
    /// Events with metadata.
    Metadata,
}

impl Accepts {
    // k8s: staging/src/k8s.io/client-go/metadata/metadata.go
    fn header(self) -> &'static str {
        match self {
            Self::Objects => "application/json",
            Self::MetadataList => {
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
            }
            Self::Metadata => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        }
    }
}

impl ObjectSource {
    pub(super) fn accepts(&self, of_list: bool) -> Accepts {
        match (self.only_metadata, of_list) {
            (false, _) => Accepts::Objects,
            (true, true) => Accepts::MetadataList,
            (true, false) => Accepts::Metadata,
        }
    }

    fn query(&self, path: usize, parts: &[(&str, &str)]) -> String {
        let selectors =
            [("fieldSelector", &*self.field_selector), ("labelSelector", &*self.label_selector)];
        let parts = parts.iter().chain(&selectors).filter(|(_, value)| !value.is_empty());
        let query: Vec<_> =
            parts.map(|(name, value)| format!("{name}={}", escaped(value))).collect();
        format!("{}?{}", self.paths[path], query.join("&"))
    }

    pub(super) fn list_path(&self, plan: &ListPlan) -> String {
        let limit = plan.limit.map(|limit| limit.to_string()).unwrap_or_default();
        let token = plan.token.as_deref().unwrap_or_default();
        // The rest of a list is of its beginning's version, which must not be named again.
        let (version, than) = match &plan.at {
            _ if plan.token.is_some() => ("", ""),
            ListAt::Any => ("0", "NotOlderThan"),
            ListAt::NotOlderThan(version) => (version.as_str(), "NotOlderThan"),
            ListAt::Newest => ("", ""),
        };
        let parts = [
            ("limit", limit.as_str()),
            ("continue", token),
            ("resourceVersion", version),
            ("resourceVersionMatch", than),
        ];
        self.query(plan.path, &parts)
    }

    pub(super) fn watch_path(&self, plan: &WatchPlan) -> String {
        let seconds = plan.seconds.to_string();
        let parts = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", seconds.as_str()),
            ("resourceVersion", plan.from.as_str()),
        ];
        self.query(plan.path, &parts)
    }
}

/// An answer's body, in pieces.
pub(super) struct Pieces<B = Body>(Pin<Box<B>>);

impl<B: http_body::Body<Data = Bytes, Error: std::error::Error + 'static>> Pieces<B> {
    /// The next piece; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, InformerError>> {
        loop {
            let frame = poll_fn(|context| self.0.as_mut().poll_frame(context)).await?;
            match frame.map(http_body::Frame::into_data) {
                Ok(Ok(bytes)) => return Some(Ok(bytes)),
                Ok(Err(_trailers)) => {}
                Err(error) => return Some(Err(InformerError::transport(&error))),
            }
        }
    }
}

/// The longest wait for the body of an error answer.
const REFUSAL_MAX: Duration = Duration::from_secs(10);

/// Requests a list or a watch; an error answer is an error here as well. The answer has to begin
/// within that time from the request's turn on.
pub(super) async fn open(
    client: &Client,
    path: &str,
    accepts: Accepts,
    share: &TenantShare,
    within: Option<Duration>,
) -> Result<Pieces, InformerError> {
    let mut request = Request::get(path)
        .header(ACCEPT, accepts.header())
        .header(ACCEPT_ENCODING, "identity")
        .extension(share.clone())
        .body(Body::empty())
        .map_err(|error| InformerError::Failed(error.to_string()))?;
    if let Some(within) = within {
        request.extensions_mut().insert(AnswerWithin(within));
    }
    let answer = client.send(request).await.map_err(|error| InformerError::transport(&error))?;
    let status = answer.status();
    let pieces = Pieces(Box::pin(answer.into_body()));
    if status.is_success() {
        return Ok(pieces);
    }
    let body = refusal(pieces, REFUSAL_MAX).await;
    Err(InformerError::answered(status, &body))
}

/// The body of an error answer; of a body that does not end, the part that comes in that time.
async fn refusal<B>(mut pieces: Pieces<B>, within: Duration) -> Vec<u8>
where
    B: http_body::Body<Data = Bytes, Error: std::error::Error + 'static>,
{
    let mut body = Vec::new();
    let read = async {
        while body.len() < ERROR_BYTES_MAX
            && let Some(Ok(bytes)) = pieces.next().await
        {
            body.extend_from_slice(&bytes);
        }
    };
    let _ = tokio::time::timeout(within, read).await; // the bytes so far are the message
    body
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    #[tokio::test]
    async fn unfinished_refusal_body_is_cut_off_and_its_received_part_returned() {
        let begun = [Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(b"not")))];
        let body = StreamBody::new(stream::iter(begun).chain(stream::pending()));
        let said = refusal(Pieces(Box::pin(body)), Duration::from_millis(20)).await;
        assert_eq!(said, b"not");
    }

    #[test]
    fn list_and_watch_requests_carry_their_resource_version() {
        let source = ObjectSource {
            paths: vec!["/a".to_owned(), "/b".to_owned()],
            field_selector: "spec.nodeName=n".to_owned(),
            ..Default::default()
        };
        let list = |at: ListAt, limit, token: Option<&str>| {
            let token = token.map(str::to_owned);
            source.list_path(&ListPlan { path: 1, at, limit, token })
        };
        let at_7 = || ListAt::NotOlderThan("7".to_owned());
        let only = "fieldSelector=spec.nodeName%3Dn";
        for (got, want) in [
            (
                list(ListAt::Any, Some(5), None),
                "limit=5&resourceVersion=0&resourceVersionMatch=NotOlderThan&",
            ),
            (list(at_7(), None, None), "resourceVersion=7&resourceVersionMatch=NotOlderThan&"),
            (list(ListAt::Newest, Some(5), None), "limit=5&"),
            (list(at_7(), Some(5), Some("x=")), "limit=5&continue=x%3D&"),
        ] {
            assert_eq!(got, format!("/b?{want}{only}"));
        }
        let from = "7".to_owned();
        let watch =
            WatchPlan { path: 0, from, seconds: 9, lasts_max: Default::default(), idle_max: None };
        let want = "/a?watch=true&allowWatchBookmarks=true&timeoutSeconds=9&resourceVersion=7&";
        assert_eq!(source.watch_path(&watch), format!("{want}{only}"));
    }
}
