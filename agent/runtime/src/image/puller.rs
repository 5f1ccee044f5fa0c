//! Pulls: one per image and credentials at a time, shared by all waiters, with records.
//!
//! Input: an image and the credentials to try. Output: the pulled image, or the errors of all
//! tries. A pull runs in a task of its own, with its intent and record: the first waiter may give
//! up, and a pull that the runtime completes is always recorded. At most `parallel` run at once,
//! first come first served; starts are limited as configured, and those that wait for their turn
//! have not started.
// k8s: pkg/kubelet/images/image_manager.go pullImage, puller.go,
// pkg/kubelet/kuberuntime/kuberuntime_image.go PullImage

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared};
use pintle_agent_core::image::pull_credential::Credential;
use pintle_api_types::rate::{Bucket, Rate};
use pintle_cri::{Client, v1};
use tokio::sync::Semaphore;

use crate::image::pull_queue::PullQueue;
use crate::image::pull_records::PullRecords;

/// How images are pulled.
#[derive(Clone, Copy, Debug)]
pub struct PullLimits {
    /// Pulls at the same time; `None` for no limit.
    pub parallel: Option<usize>,
    /// Pulls that are started; one that comes too early is refused, not held back.
    pub rate: Rate,
}

/// A pull to make.
pub(crate) struct Pull {
    /// As the pod names it.
    pub(crate) name: String,
    /// With its tag.
    pub(crate) image: String,
    pub(crate) sandbox: v1::PodSandboxConfig,
    /// To be tried one after the other; none for an anonymous pull.
    pub(crate) credentials: Vec<Credential>,
}

pub(crate) type PullResult = Result<Pulled, String>;
/// Image and credentials: requests with other credentials do not share the pull.
type PullKey = (String, Vec<(String, String)>, Vec<v1::AuthConfig>);
type SharedPull = Shared<LocalBoxFuture<'static, PullResult>>;

#[derive(Clone, Debug)]
pub(crate) struct Pulled {
    pub(crate) id: String,
    pub(crate) took: Duration,
    pub(crate) image: Option<v1::Image>,
    /// Which of the credentials it was; `None` for none.
    used: Option<usize>,
}

/// Pulls images.
pub struct Puller {
    client: Client,
    turns: Option<Rc<Semaphore>>,
    queue: PullQueue,
    rate: Rc<RefCell<Bucket>>,
    pulls: Rc<RefCell<Vec<(PullKey, SharedPull)>>>,
    records: Option<PullRecords>,
}

impl Puller {
    /// Pulls by the runtime behind `client`; `records` is `None` if access to images is not
    /// checked.
    pub fn new(client: Client, limits: PullLimits, records: Option<PullRecords>) -> Self {
        Self {
            client,
            turns: limits.parallel.map(|n| Rc::new(Semaphore::new(n))),
            queue: PullQueue::default(),
            rate: Rc::new(RefCell::new(Bucket::new(limits.rate))),
            pulls: Rc::default(),
            records,
        }
    }

    /// Reports waiting pulls in this queue.
    pub fn queued_in(self, queue: PullQueue) -> Self {
        Self { queue, ..self }
    }

    /// The records of pulls.
    pub(crate) fn records(&self) -> Option<&PullRecords> {
        self.records.as_ref()
    }

    /// Pulls an image, or waits for a pull of it that is under way.
    pub(crate) async fn pull(self: &Rc<Self>, pull: Pull) -> PullResult {
        let puller = Rc::clone(self);
        let task = pintle_daemon::tasks::spawn("pull", async move { puller.recorded(pull).await });
        // The agent ends, or a pull panicked.
        task.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    async fn recorded(&self, pull: Pull) -> PullResult {
        let Some(records) = &self.records else { return self.shared(&pull).await };
        let name = &pull.name;
        records
            .begin(name)
            .await
            .map_err(|error| format!("failed to record image pull intent: {error}"))?;
        let result = self.shared(&pull).await;
        match &result {
            Ok(pulled) => {
                let used = pulled.used.and_then(|at| pull.credentials.get(at));
                records.succeeded(name, &pulled.id, used).await;
            }
            Err(_) => records.failed(name).await,
        }
        result
    }

    /// Joins the pull of this image, or begins it.
    async fn shared(&self, pull: &Pull) -> PullResult {
        let auths = pull.credentials.iter().map(|credential| credential.auth.clone());
        let key = (
            pull.image.clone(),
            distinguishing_annotations(&pull.sandbox),
            auths.collect::<Vec<_>>(),
        );
        let under_way = self.pulls.borrow().iter().find(|(k, _)| *k == key).cloned();
        if let Some((_, pull)) = under_way {
            return pull.await;
        }
        let (client, turns, rate) =
            (self.client.clone(), self.turns.clone(), Rc::clone(&self.rate));
        let queue = self.queue.clone();
        let (image, sandbox, auths) = (pull.image.clone(), pull.sandbox.clone(), key.2.clone());
        let once = async move {
            let _turn = match &turns {
                Some(turns) => {
                    let _place = queue.enter(&image);
                    turns.acquire().await.ok()
                }
                None => None,
            };
            // k8s: pkg/kubelet/images/helpers.go throttledImageService.PullImage
            if !rate.borrow_mut().try_take(Instant::now()) {
                return Err("pull QPS exceeded".to_owned());
            }
            pull_once(client, image, sandbox, auths).await
        };
        let (pulls, own_key) = (Rc::clone(&self.pulls), key.clone());
        let once = async move {
            let pulled = pintle_daemon::tasks::caught(once).await;
            // Whatever the result, the next request starts a new pull.
            pulls.borrow_mut().retain(|(key, _)| *key != own_key);
            pulled.unwrap_or_else(|panic| {
                pintle_daemon::tasks::counted("pull");
                Err(panic.to_string())
            })
        };
        let once = once.boxed_local().shared();
        self.pulls.borrow_mut().push((key, once.clone()));
        once.await
    }
}

async fn pull_once(
    client: Client,
    image: String,
    sandbox: v1::PodSandboxConfig,
    auths: Vec<v1::AuthConfig>,
) -> PullResult {
    let begun = Instant::now();
    let spec = image_spec(&image, &sandbox);
    let mut tries: Vec<_> = auths.into_iter().enumerate().map(Some).collect();
    if tries.is_empty() {
        tries.push(None);
    }
    let mut errors = Vec::new();
    for attempt in tries {
        let (used, auth) = attempt.unzip();
        let request = v1::PullImageRequest {
            image: Some(spec.clone()),
            auth,
            sandbox_config: Some(sandbox.clone()),
        };
        match client.pull_image(request).await {
            Ok(answer) => {
                let took = begun.elapsed();
                let image = status_of(&client, &answer.image_ref).await;
                return Ok(Pulled { id: answer.image_ref, took, image, used });
            }
            Err(error) => errors.push(pull_text(&error)),
        }
    }
    Err(aggregate(&errors))
}

/// An image as a pod wants it: the pod's annotations may decide where the runtime puts it, as with
/// a snapshotter for each runtime.
// k8s: pkg/kubelet/images/image_manager.go EnsureImageExists
pub(crate) fn image_spec(image: &str, sandbox: &v1::PodSandboxConfig) -> v1::ImageSpec {
    v1::ImageSpec {
        image: image.to_owned(),
        annotations: sandbox.annotations.clone(),
        ..v1::ImageSpec::default()
    }
}

/// Annotations that distinguish pulls. Those that the agent adds differ from pod to pod and mean
/// nothing to the runtime.
fn distinguishing_annotations(sandbox: &v1::PodSandboxConfig) -> Vec<(String, String)> {
    let own = |name: &str| name.starts_with("kubernetes.io/config.");
    let others = sandbox.annotations.iter().filter(|(name, _)| !own(name));
    let mut others: Vec<_> = others.map(|(name, value)| (name.clone(), value.clone())).collect();
    others.sort();
    others
}

/// Several errors as one, each once.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/errors/errors.go aggregate.Error
pub(crate) fn aggregate(errors: &[String]) -> String {
    let mut told: Vec<&str> = Vec::new();
    for error in errors {
        if !told.contains(&error.as_str()) {
            told.push(error);
        }
    }
    match told.as_slice() {
        [one] => (*one).to_owned(),
        all => format!("[{}]", all.join(", ")),
    }
}

/// A code without meaning is left out.
// k8s: staging/src/k8s.io/cri-client/pkg/remote_image.go PullImage
fn pull_text(error: &pintle_cri::Error) -> String {
    let text = error.rpc_text();
    let plain = text.strip_prefix("rpc error: code = Unknown desc = ").map(str::to_owned);
    plain.unwrap_or(text)
}

async fn status_of(client: &Client, id: &str) -> Option<v1::Image> {
    let spec = v1::ImageSpec { image: id.to_owned(), ..v1::ImageSpec::default() };
    let request = v1::ImageStatusRequest { image: Some(spec), verbose: false };
    client.image_status(request).await.ok().and_then(|answer| answer.image)
}

#[cfg(test)]
mod tests {
    use pintle_cri::v1;

    use super::{aggregate, distinguishing_annotations, image_spec};

    #[test]
    fn pod_annotations_are_sent_with_the_image_spec() {
        let annotations = [("kubernetes.io/config.seen", "now"), ("snapshotter", "nydus")];
        let annotations = annotations.map(|(n, v)| (n.to_owned(), v.to_owned()));
        let annotations = annotations.into_iter().collect();
        let sandbox = v1::PodSandboxConfig { annotations, ..v1::PodSandboxConfig::default() };
        let spec = image_spec("busybox:latest", &sandbox);
        assert_eq!(
            (spec.image.as_str(), &spec.annotations),
            ("busybox:latest", &sandbox.annotations)
        );
        assert_eq!(
            distinguishing_annotations(&sandbox),
            [("snapshotter".to_owned(), "nydus".to_owned())]
        );
    }

    #[test]
    fn aggregated_errors_list_each_error_once() {
        let all = |errors: &[&str]| {
            aggregate(&errors.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(all(&["a"]), "a");
        assert_eq!(all(&["a", "a"]), "a");
        assert_eq!(all(&["a", "b", "a"]), "[a, b]");
    }
}
