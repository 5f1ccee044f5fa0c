//! Images: is it there, may it be pulled, pull it once for everybody who waits.
//!
//! Input: a container's image and pull policy. Output: the runtime's id of the image, or the
//! reason that the container's status shows. An image that is present never waits for a pull. One
//! pull per image and credentials is under way at a time, shared by all who want it; at most
//! `parallel` of them run at once, first come first served. A failed pull backs off per pod and
//! image: 10 s doubling to 300 s, as for the kubelet. Bounds: the back-off table holds entries of
//! live pods only; `QPS`-limited starts as configured.
// k8s: pkg/kubelet/images/image_manager.go EnsureImageExists, pullImage

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared};
use k8s_openapi::api::core::v1::Pod;
use pintle_cri::{Client, v1};
use tokio::sync::Semaphore;

use crate::config::duration::GoDuration;
use crate::runtime::credentials::NodeCredentials;
use crate::runtime::image_name::{self, ImageNameError};
use crate::runtime::keyring::Keyring;
use crate::runtime::provider::Providers;
use crate::runtime::pull_credential::Credential;
use crate::runtime::pull_rate::PullRate;
use crate::runtime::security::ImageUser;
use crate::runtime::start::rpc_text;
use crate::status::timeline::Recorder;
use crate::types::PodUid;
use crate::worker::Failure;

/// First and longest wait after a failed pull.
// k8s: pkg/kubelet/kubelet.go imageBackOffPeriod, MaxImageBackOff
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// So long after a failed pull the pod is looked at again, which tells users that it backs off.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// Credentials that are not a pod's own, tried after those of its secrets.
pub struct NodeKeys {
    /// Docker's configuration files.
    pub files: NodeCredentials,
    /// Plugins.
    pub providers: Providers,
}

/// How images are pulled.
#[derive(Clone, Copy, Debug)]
pub struct PullLimits {
    /// Pulls at the same time; `None` for no limit.
    pub parallel: Option<usize>,
    /// Pulls started per second; 0 for no limit.
    pub per_second: f64,
    /// Pulls that may be started at once.
    pub burst: u32,
}

/// What a container wants.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The pod.
    pub uid: &'a PodUid,
    /// Its definition, for plugins that ask whose pod it is.
    pub pod: &'a Pod,
    /// The container, for events; `None` for an image volume, which is the pod's.
    pub container: Option<&'a str>,
    /// The image as the pod names it.
    pub image: &'a str,
    /// `Always`, `IfNotPresent` or `Never`.
    pub policy: &'a str,
    /// The pod's sandbox, which the runtime wants to know.
    pub sandbox: &'a v1::PodSandboxConfig,
    /// The pod's own credentials, tried before the node's; or why they cannot be read.
    pub keyring: &'a Result<Keyring, String>,
}

type PullResult = Result<Pulled, String>;
/// Image and credentials: whoever has others does not share the pull.
type PullKey = (String, Vec<v1::AuthConfig>);
type SharedPull = Shared<LocalBoxFuture<'static, PullResult>>;

#[derive(Clone, Debug)]
struct Pulled {
    id: String,
    took: Duration,
    image: Option<v1::Image>,
}

/// An image that is there.
#[derive(Clone, Debug)]
pub struct Found {
    /// The runtime's id of it.
    pub id: String,
    /// The user that it names.
    pub user: ImageUser,
}

struct BackOff {
    wait: Duration,
    failed_at: Instant,
    reason: String,
}

/// The images of this node.
pub struct Images {
    client: Client,
    recorder: Recorder,
    keys: NodeKeys,
    turns: Option<Rc<Semaphore>>,
    rate: RefCell<PullRate>,
    pulls: Rc<RefCell<Vec<(PullKey, SharedPull)>>>,
    back_off: RefCell<HashMap<(PodUid, String), BackOff>>,
}

impl Images {
    /// Images of the runtime behind `client`.
    pub fn new(client: Client, recorder: Recorder, keys: NodeKeys, limits: PullLimits) -> Self {
        Self {
            client,
            recorder,
            keys,
            turns: limits.parallel.map(|n| Rc::new(Semaphore::new(n))),
            rate: RefCell::new(PullRate::new(limits.per_second, limits.burst, Instant::now())),
            pulls: Rc::default(),
            back_off: RefCell::default(),
        }
    }

    /// Makes sure that the image is there and returns what containers need of it.
    pub async fn ensure(&self, wanted: &Wanted<'_>) -> Result<Found, Failure> {
        let image =
            image_name::with_default_tag(wanted.image).map_err(|e| self.bad_name(wanted, &e))?;
        if wanted.policy != "Always" {
            let spec = v1::ImageSpec { image: image.clone(), ..v1::ImageSpec::default() };
            let request = v1::ImageStatusRequest { image: Some(spec), verbose: false };
            let answer = self.client.image_status(request).await.map_err(|error| {
                let message = format!("Failed to inspect image \"\": {error}");
                self.warn(wanted, "InspectFailed", &message);
                Failure::new("ImageInspectError", message)
            })?;
            if let Some(found) = answer.image {
                let name = wanted.image;
                self.note(wanted, "Pulled", &format!(
                    "Container image \"{name}\" already present on machine and can be accessed by \
                     the pod"
                ));
                return Ok(Found { user: ImageUser::of(Some(&found)), id: found.id });
            }
            if wanted.policy == "Never" {
                let name = wanted.image;
                let message =
                    format!("Container image \"{name}\" is not present with pull policy of Never");
                self.warn(wanted, "ErrImageNeverPull", &message);
                return Err(Failure::new("ErrImageNeverPull", message));
            }
        }
        self.pull(wanted, image).await
    }

    /// Forgets a pod's failed pulls.
    pub fn forget(&self, uid: &PodUid) {
        self.back_off.borrow_mut().retain(|(of, _), _| of != uid);
    }

    async fn pull(&self, wanted: &Wanted<'_>, image: String) -> Result<Found, Failure> {
        let key = (wanted.uid.clone(), wanted.image.to_owned());
        if let Some((left, reason)) = self.backing_off(&key) {
            let message = format!("Back-off pulling image \"{}\"", wanted.image);
            self.note(wanted, "BackOff", &message);
            let mut failure = Failure::new("ImagePullBackOff", format!("{message}: {reason}"));
            failure.retry_after = Some(left);
            return Err(failure);
        }
        self.note(wanted, "Pulling", &format!("Pulling image \"{}\"", wanted.image));
        let begun = Instant::now();
        match self.shared(wanted, image).await {
            Ok(pulled) => {
                self.back_off.borrow_mut().remove(&key);
                let text = format!(
                    "Successfully pulled image \"{}\" in {} ({} including waiting). Image size: {} \
                     bytes.",
                    wanted.image,
                    millis(pulled.took),
                    millis(begun.elapsed()),
                    pulled.image.as_ref().map_or(0, |image| image.size),
                );
                self.note(wanted, "Pulled", &text);
                Ok(Found { id: pulled.id, user: ImageUser::of(pulled.image.as_ref()) })
            }
            Err(error) => {
                let text = format!("Failed to pull image \"{}\": {error}", wanted.image);
                self.warn(wanted, "Failed", &text);
                let (reason, message) = image_name::pull_error(wanted.image, &error);
                let wait = self.failed(key, format!("{reason}: {message}"));
                let mut failure = Failure::new(reason, message);
                failure.retry_after = Some(wait.min(TELL_AFTER));
                Err(failure)
            }
        }
    }

    /// What the pod may try for this image, in order.
    // k8s: pkg/kubelet/images/image_manager.go makeLookupPullCredentialsFunc
    async fn credentials(
        &self,
        wanted: &Wanted<'_>,
        image: &str,
    ) -> Result<Vec<Credential>, String> {
        let mut found = wanted.keyring.as_ref().map_err(Clone::clone)?.of(image);
        found.extend(self.keys.files.of(image));
        found.extend(self.keys.providers.keyring(image, wanted.pod).await.of(image));
        Ok(found)
    }

    /// Joins the pull of this image, or begins it.
    async fn shared(&self, wanted: &Wanted<'_>, image: String) -> PullResult {
        let credentials = self.credentials(wanted, &image).await?;
        let auths: Vec<_> = credentials.into_iter().map(|credential| credential.auth).collect();
        let key = (image.clone(), auths.clone());
        let under_way = self.pulls.borrow().iter().find(|(k, _)| *k == key).cloned();
        let pull = match under_way {
            Some((_, pull)) => pull,
            None => {
                if !self.rate.borrow_mut().take(Instant::now()) {
                    return Err("pull QPS exceeded".to_owned());
                }
                let pull = pull_once(
                    self.client.clone(),
                    self.turns.clone(),
                    image,
                    wanted.sandbox.clone(),
                    auths,
                );
                let (pulls, own_key) = (Rc::clone(&self.pulls), key.clone());
                let pull = pull.inspect(move |_| {
                    pulls.borrow_mut().retain(|(key, _)| *key != own_key);
                });
                let pull = pull.boxed_local().shared();
                self.pulls.borrow_mut().push((key, pull.clone()));
                // Driven by a task of its own: whoever asked first may give up, the others not.
                tokio::task::spawn_local(pull.clone());
                pull
            }
        };
        pull.await
    }

    fn backing_off(&self, key: &(PodUid, String)) -> Option<(Duration, String)> {
        let table = self.back_off.borrow();
        let entry = table.get(key)?;
        let left = entry.wait.checked_sub(entry.failed_at.elapsed())?;
        (!left.is_zero()).then(|| (left, entry.reason.clone()))
    }

    fn failed(&self, key: (PodUid, String), reason: String) -> Duration {
        let mut table = self.back_off.borrow_mut();
        let before = table.get(&key).map(|entry| entry.wait);
        let wait = before.map_or(BACK_OFF.0, |wait| (wait * 2).min(BACK_OFF.1));
        table.insert(key, BackOff { wait, failed_at: Instant::now(), reason });
        wait
    }

    fn bad_name(&self, wanted: &Wanted<'_>, error: &ImageNameError) -> Failure {
        let message = format!("Failed to apply default image tag \"{}\": {error}", wanted.image);
        self.warn(wanted, "InspectFailed", &message);
        Failure::new("InvalidImageName", message)
    }

    fn note(&self, wanted: &Wanted<'_>, reason: &str, message: &str) {
        self.recorder.event(wanted.uid, false, reason, message, wanted.container);
    }

    fn warn(&self, wanted: &Wanted<'_>, reason: &str, message: &str) {
        self.recorder.event(wanted.uid, true, reason, message, wanted.container);
    }
}

async fn pull_once(
    client: Client,
    turns: Option<Rc<Semaphore>>,
    image: String,
    sandbox: v1::PodSandboxConfig,
    auths: Vec<v1::AuthConfig>,
) -> PullResult {
    let _turn = match &turns {
        Some(turns) => turns.acquire().await.ok(),
        None => None,
    };
    let begun = Instant::now();
    let spec = v1::ImageSpec { image, ..v1::ImageSpec::default() };
    let mut tries: Vec<Option<v1::AuthConfig>> = auths.into_iter().map(Some).collect();
    if tries.is_empty() {
        tries.push(None);
    }
    let mut errors = Vec::new();
    for auth in tries {
        let request = v1::PullImageRequest {
            image: Some(spec.clone()),
            auth,
            sandbox_config: Some(sandbox.clone()),
        };
        match client.pull_image(request).await {
            Ok(answer) => {
                let took = begun.elapsed();
                let image = status_of(&client, &answer.image_ref).await;
                return Ok(Pulled { id: answer.image_ref, took, image });
            }
            Err(error) => errors.push(pull_text(&error)),
        }
    }
    Err(match errors.len() {
        1 => errors.remove(0),
        _ => format!("[{}]", errors.join(", ")),
    })
}

/// A code that says nothing is left out.
// k8s: staging/src/k8s.io/cri-client/pkg/remote_image.go PullImage
fn pull_text(error: &pintle_cri::Error) -> String {
    let text = rpc_text(error);
    let plain = text.strip_prefix("rpc error: code = Unknown desc = ").map(str::to_owned);
    plain.unwrap_or(text)
}

async fn status_of(client: &Client, id: &str) -> Option<v1::Image> {
    let spec = v1::ImageSpec { image: id.to_owned(), ..v1::ImageSpec::default() };
    let request = v1::ImageStatusRequest { image: Some(spec), verbose: false };
    client.image_status(request).await.ok().and_then(|answer| answer.image)
}

/// A duration cut to whole milliseconds, as Go prints it.
fn millis(took: Duration) -> GoDuration {
    let cut = Duration::from_millis(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
    GoDuration::from_std(cut)
}
