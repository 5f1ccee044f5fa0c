//! The resources that the API server has, with what is not known about single groups.
//!
//! ```text
//!   /api, /apis (aggregated v2, or group by group) ─> parse ─> DiscoveredGroups ─> watch channel
//! ```
//! Input: a client. Output: [`DiscoveredGroups`], read again every `REFRESH_EVERY`, and twice when
//! asked for, because the definition of a kind has changed. A group that cannot be read keeps its
//! failure, so that collectors do not consider its resources deleted.
//! Owner: one task. Bounds: a page at a time, legacy groups at once; `ANSWER_MAX` a request.
// k8s: staging/src/k8s.io/client-go/discovery/{discovery_client,aggregated_discovery}.go

mod parse;
mod resources;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pintle_daemon::tasks;
use tokio::sync::{Notify, watch};

use self::parse::Page;
pub use self::resources::{ApiGroup, ApiResource, ApiVersion, DiscoveredGroups};

/// The wait between two readings.
// k8s: cmd/kube-controller-manager/app/controllermanager.go CreateControllerContext
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// The wait before a reading that was asked for, so that one serves many definitions.
const ASKED_WAIT: Duration = Duration::from_secs(1);
/// The wait after it: the server lists a kind some time after its definition has changed.
const ASKED_AGAIN: Duration = Duration::from_secs(5);
/// Longest wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(32);
/// Forms of the answer, the best first.
const ACCEPT: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

/// Why a page of discovery is not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiscoveryError {
    /// The server refuses, or there is no connection.
    #[error("{path}: {source}")]
    Refused { path: String, source: kube::Error },
    /// No answer came.
    #[error("{path}: no answer within {} s", ANSWER_MAX.as_secs())]
    Late { path: String },
    /// The answer is not JSON of this form.
    #[error("the answer cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// The answer is something else.
    #[error("{0:?} is no list of resources")]
    NoList(String),
}

/// The last result of discovery, and a way to request a refresh.
#[derive(Clone, Debug)]
pub struct DiscoveryHandle {
    known: watch::Receiver<Arc<DiscoveredGroups>>,
    refresh: Arc<Notify>,
}

impl DiscoveryHandle {
    /// The last result.
    pub fn current(&self) -> Arc<DiscoveredGroups> {
        Arc::clone(&self.known.borrow())
    }

    /// Waits until it was read again.
    pub async fn changed(&mut self) {
        if self.known.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Has it read again soon: a CustomResourceDefinition or an APIService has changed, or a
    /// namespace is to be emptied of all kinds.
    pub fn refresh(&self) {
        self.refresh.notify_one();
    }
}

/// Reads what there is.
pub struct Discoverer {
    client: kube::Client,
}

impl Discoverer {
    /// With a client that may ask much at once.
    pub fn new(client: kube::Client) -> Self {
        Self { client }
    }

    /// Reads once, and then again from time to time. Must be called on a `LocalSet`.
    pub async fn start(self) -> DiscoveryHandle {
        let first = self.read(&DiscoveredGroups::default()).await;
        let (tell, known) = watch::channel(Arc::new(first));
        let refresh = Arc::new(Notify::new());
        let handle = DiscoveryHandle { known, refresh: Arc::clone(&refresh) };
        tasks::singleton("discovery", async move {
            let mut every = REFRESH_EVERY;
            while !tell.is_closed() {
                let is_asked = tokio::time::timeout(every, refresh.notified()).await.is_ok();
                if is_asked {
                    tokio::time::sleep(ASKED_WAIT).await;
                }
                every = if is_asked { ASKED_AGAIN } else { REFRESH_EVERY };
                let before = Arc::clone(&tell.borrow());
                tell.send_replace(Arc::new(self.read(&before).await));
            }
            // Nothing reads it any more: the process ends.
            std::future::pending::<()>().await
        });
        handle
    }

    /// Everything, with what was known before where a whole page fails.
    async fn read(&self, before: &DiscoveredGroups) -> DiscoveredGroups {
        let read_at = Some(Instant::now());
        let pages = futures_util::future::join(self.page("/api"), self.page("/apis")).await;
        let mut groups = Vec::new();
        for (page, is_core) in [(pages.0, true), (pages.1, false)] {
            match page {
                Ok(read) => groups.extend(read),
                Err(error) => {
                    tracing::warn!(%error, "resources of the API server cannot be read");
                    let problem = error.to_string();
                    let known =
                        before.groups.iter().filter(|group| group.name.is_empty() == is_core);
                    groups.extend(known.map(|group| group.failed(&problem)));
                    if is_core || before.groups.is_empty() {
                        groups.push(ApiGroup::unknown(if is_core { "" } else { "*" }, &problem));
                    }
                }
            }
        }
        DiscoveredGroups { read_at, ..DiscoveredGroups::new(groups) }
    }

    async fn page(&self, path: &str) -> Result<Vec<ApiGroup>, DiscoveryError> {
        let text = self.get(path).await?;
        match parse::page(&text)? {
            Page::Aggregated(groups) => Ok(groups),
            Page::Legacy(versions) => {
                let read = join_all(versions.iter().map(async |version| {
                    let read = match self.get(&version.path()).await {
                        Ok(text) => parse::resource_list(&text, version),
                        Err(problem) => Err(problem),
                    };
                    (version, read)
                }));
                Ok(parse::grouped(read.await))
            }
        }
    }

    async fn get(&self, path: &str) -> Result<String, DiscoveryError> {
        let request = http::Request::get(path).header(http::header::ACCEPT, ACCEPT);
        let request = request.body(Vec::new()).map_err(kube::Error::HttpError);
        let answer = async { self.client.request_text(request?).await };
        match tokio::time::timeout(ANSWER_MAX, answer).await {
            Ok(Ok(text)) => Ok(text),
            Ok(Err(source)) => Err(DiscoveryError::Refused { path: path.to_owned(), source }),
            Err(_) => Err(DiscoveryError::Late { path: path.to_owned() }),
        }
    }
}
