//! Images: is it there, may the pod use it, pull it if not.
//!
//! Input: a container's image and pull policy. Output: the runtime's id of the image, or the reason
//! that the container's status shows. An image that is present and may be used never waits for a
//! pull. A failed pull backs off per pod and image: 10 s doubling to 300 s, as for the kubelet, or
//! until the pod's pull secrets change. Bounds: the back-off table holds entries of live pods only;
//! pulls are `puller`'s.
// k8s: pkg/kubelet/images/image_manager.go EnsureImageExists, pullImage

pub mod credentials;
pub mod provider;
pub mod pull_queue;
pub mod pull_records;
pub mod puller;
mod volumes;

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_cluster::objects::KeyringError;
use pintle_agent_core::image::keyring::Keyring;
use pintle_agent_core::image::pull_credential::Credential;
use pintle_agent_core::request::security::ImageUser;
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::worker::Failure;
use pintle_agent_metrics::Metrics;
use pintle_api_types::duration::GoDuration;
use pintle_api_types::pod::image_name;
use pintle_api_types::pod::image_name::ImageNameError;
use pintle_cri::{Client, v1};
use tokio::sync::OnceCell;

use crate::garbage::holds::{Hold, Holds};
use credentials::{CredentialsError, NodeCredentials};
use provider::Providers;
use pull_records::Access;
use puller::{Pull, PullResult, Puller};

/// First and longest wait after a failed pull.
// k8s: pkg/kubelet/kubelet.go imageBackOffPeriod, MaxImageBackOff
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// The wait of a pod with other pull secrets than when the pull failed.
const BACK_OFF_OTHER_KEYS: Duration = Duration::from_secs(1);

/// Delay after a failed pull before the pod syncs again, which reports the back-off to users.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// Credentials that are not a pod's own, tried after those of its secrets.
pub struct NodeKeys {
    /// Docker's configuration files.
    pub files: NodeCredentials,
    /// Plugins.
    pub providers: Providers,
}

/// The image request of a container.
#[derive(Clone, Copy, Debug)]
pub struct ImageRequest<'a> {
    /// The pod.
    pub uid: &'a PodUid,
    /// Its definition, for plugins that need the pod's identity.
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
    pub keyring: &'a Result<Keyring, KeyringError>,
}

/// An image that is there.
#[derive(Clone, Debug)]
pub struct PresentImage {
    /// The runtime's id of it.
    pub id: String,
    /// The user that it names.
    pub user: ImageUser,
    /// Keeps it from being removed before there is a container of it.
    pub(crate) hold: Rc<Hold>,
}

struct BackOff {
    wait: Duration,
    failed_at: Instant,
    reason: String,
    /// Fingerprint of the pod's own credentials, `Images::fingerprint`.
    keys: u64,
    /// A user has ended the wait.
    is_over: bool,
}

/// The images of this node.
pub struct Images {
    client: Client,
    recorder: Recorder,
    keys: NodeKeys,
    puller: Rc<Puller>,
    holds: Holds,
    metrics: Arc<Metrics>,
    back_off: RefCell<HashMap<(PodUid, String), BackOff>>,
    seed: RandomState,
}

/// The credentials of a pod for an image: looked up once, and only if needed.
struct Lookup<'a> {
    images: &'a Images,
    wanted: &'a ImageRequest<'a>,
    /// With its tag.
    image: String,
    found: OnceCell<Result<Vec<Credential>, CredentialsError>>,
}

/// The facts found for a request.
#[derive(Default)]
struct ImageFacts {
    present: Option<bool>,
    pull: Option<bool>,
}

impl Images {
    /// Images of the runtime behind `client`.
    pub fn new(
        client: Client,
        recorder: Recorder,
        keys: NodeKeys,
        puller: Puller,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (puller, back_off) = (Rc::new(puller), RefCell::default());
        let (holds, seed) = (Holds::default(), RandomState::new());
        Self { client, recorder, keys, puller, holds, metrics, back_off, seed }
    }

    /// Ensures that the image is present and returns the facts that containers need of it.
    pub async fn ensure(&self, wanted: &ImageRequest<'_>) -> Result<PresentImage, Failure> {
        let mut seen = ImageFacts::default();
        let found = self.find_and_hold(wanted, &mut seen).await;
        self.metrics.images().requested(wanted.policy, seen.present, seen.pull);
        found
    }

    /// Finds the image and holds it; if it was removed in between, it is looked up again.
    async fn find_and_hold(
        &self,
        wanted: &ImageRequest<'_>,
        seen: &mut ImageFacts,
    ) -> Result<PresentImage, Failure> {
        let mut before = Vec::new();
        loop {
            let resolving = self.holds.resolving();
            let found = self.find_or_pull(wanted, seen).await?;
            if !resolving.lost(&found.id).await {
                return Ok(found);
            }
            // Kept meanwhile: the same image is not removed twice under one start.
            before.push(found.hold);
        }
    }

    /// The state that the collector of unused images shares with the users of images.
    pub(crate) fn for_collector(&self) -> (Holds, Rc<Puller>) {
        (self.holds.clone(), Rc::clone(&self.puller))
    }

    /// A container was removed: its image may not be used any more.
    pub(crate) fn container_removed(&self) {
        self.holds.changed();
    }

    fn present(&self, id: String, user: ImageUser) -> PresentImage {
        let hold = Rc::new(self.holds.hold(&id));
        PresentImage { id, user, hold }
    }

    async fn find_or_pull(
        &self,
        wanted: &ImageRequest<'_>,
        seen: &mut ImageFacts,
    ) -> Result<PresentImage, Failure> {
        let image =
            image_name::with_default_tag(wanted.image).map_err(|e| self.bad_name(wanted, &e))?;
        let lookup = Lookup { images: self, wanted, image, found: OnceCell::new() };
        if wanted.policy != "Always" {
            let present = self.look(wanted, &lookup.image).await?;
            seen.present = Some(present.is_some());
            if let Some(image) = present {
                if self.may_use(&lookup, &image).await? {
                    seen.pull = Some(false);
                    let user = ImageUser::of(Some(&image));
                    return Ok(self.present(image.id, user));
                }
                seen.pull = Some(true);
            }
            // A pod without access must not learn that the image is present.
            if wanted.policy == "Never" {
                return Err(self.not_there(wanted));
            }
        }
        seen.pull = Some(true);
        self.pull(&lookup).await
    }

    /// The image as the runtime has it.
    async fn look(
        &self,
        wanted: &ImageRequest<'_>,
        image: &str,
    ) -> Result<Option<v1::Image>, Failure> {
        let spec = puller::image_spec(image, wanted.sandbox);
        let request = v1::ImageStatusRequest { image: Some(spec), verbose: false };
        let answer = self.client.image_status(request).await.map_err(|error| {
            let message = format!("Failed to inspect image \"\": {}", error.rpc_text());
            self.warn(wanted, "InspectFailed", &message);
            Failure::new("ImageInspectError", message)
        })?;
        Ok(answer.image)
    }

    async fn may_use(&self, lookup: &Lookup<'_>, image: &v1::Image) -> Result<bool, Failure> {
        let wanted = lookup.wanted;
        let name = wanted.image;
        let mut message = format!("Container image \"{name}\" already present on machine");
        if let Some(records) = self.puller.records() {
            match records.access(name, &image.id, lookup.credentials()).await {
                Ok(Access::Granted) => message.push_str(" and can be accessed by the pod"),
                Ok(Access::Ask) => return Ok(false),
                Err(error) => return Err(Failure::new("ErrImagePull", error.to_string())),
            }
        }
        self.note(wanted, "Pulled", &message);
        Ok(true)
    }

    fn not_there(&self, wanted: &ImageRequest<'_>) -> Failure {
        let name = wanted.image;
        let message =
            format!("Container image \"{name}\" is not present with pull policy of Never");
        self.warn(wanted, "ErrImageNeverPull", &message);
        Failure::new("ErrImageNeverPull", message)
    }

    /// Forgets a pod's failed pulls.
    pub fn forget(&self, uid: &PodUid) {
        self.back_off.borrow_mut().retain(|(of, _), _| of != uid);
    }

    /// Ends the waits after a pod's failed pulls; one that fails again waits longer.
    pub fn retry(&self, uid: &PodUid) {
        let mut table = self.back_off.borrow_mut();
        let of_pod = table.iter_mut().filter(|((of, _), _)| of == uid);
        of_pod.for_each(|(_, entry)| entry.is_over = true);
    }

    async fn pull(&self, lookup: &Lookup<'_>) -> Result<PresentImage, Failure> {
        let wanted = lookup.wanted;
        let key = (wanted.uid.clone(), wanted.image.to_owned());
        let keys = self.fingerprint(wanted);
        if let Some((left, reason)) = self.backing_off(&key, keys) {
            let message = format!("Back-off pulling image \"{}\"", wanted.image);
            self.note(wanted, "BackOff", &message);
            let mut failure = Failure::new("ImagePullBackOff", format!("{message}: {reason}"));
            failure.retry_after = Some(left);
            return Err(failure);
        }
        // Nothing is pulled without them: no event of a pull, and they are looked up again next
        // time.
        // k8s: pkg/kubelet/images/image_manager.go EnsureImageExists
        let credentials = lookup.credentials().await;
        let credentials =
            credentials.map_err(|error| Failure::new("ErrImagePull", error.to_string()))?;
        self.note(wanted, "Pulling", &format!("Pulling image \"{}\"", wanted.image));
        let begun = Instant::now();
        match self.pulled(lookup, credentials).await {
            Ok(pulled) => {
                let size = pulled.image.as_ref().map_or(0, |image| image.size);
                self.metrics.pulled(wanted.uid, begun.elapsed(), size);
                let text = format!(
                    "Successfully pulled image \"{}\" in {} ({} including waiting). Image size: {} \
                     bytes.",
                    wanted.image,
                    millis(pulled.took),
                    millis(begun.elapsed()),
                    size,
                );
                self.note(wanted, "Pulled", &text);
                let user = ImageUser::of(pulled.image.as_ref());
                Ok(self.present(pulled.id, user))
            }
            Err(error) => {
                let text = format!("Failed to pull image \"{}\": {error}", wanted.image);
                self.warn(wanted, "Failed", &text);
                let (reason, message) = image_name::pull_error(wanted.image, &error);
                let wait = self.failed(key, keys, format!("{reason}: {message}"));
                let mut failure = Failure::new(reason, message);
                failure.retry_after = Some(wait.min(TELL_AFTER));
                Err(failure)
            }
        }
    }

    async fn pulled(&self, lookup: &Lookup<'_>, credentials: Vec<Credential>) -> PullResult {
        let pull = Pull {
            name: lookup.wanted.image.to_owned(),
            image: lookup.image.clone(),
            sandbox: lookup.wanted.sandbox.clone(),
            credentials,
        };
        self.puller.pull(pull).await
    }

    /// Two fingerprints differ if the pod's own credentials do; the node's are not included.
    fn fingerprint(&self, wanted: &ImageRequest<'_>) -> u64 {
        let own = wanted.keyring.as_ref().map(|keyring| keyring.of(wanted.image));
        let own = own.map(|keys| keys.iter().map(Credential::hash).collect::<Vec<_>>());
        self.seed.hash_one(own)
    }

    fn backing_off(&self, key: &(PodUid, String), keys: u64) -> Option<(Duration, String)> {
        let table = self.back_off.borrow();
        let entry = table.get(key).filter(|entry| !entry.is_over)?;
        let same = entry.keys == keys;
        let wait = if same { entry.wait } else { entry.wait.min(BACK_OFF_OTHER_KEYS) };
        let left = wait.checked_sub(entry.failed_at.elapsed())?;
        (!left.is_zero()).then(|| (left, entry.reason.clone()))
    }

    fn failed(&self, key: (PodUid, String), keys: u64, reason: String) -> Duration {
        let mut table = self.back_off.borrow_mut();
        // A pull that succeeded meanwhile changes nothing.
        let recent = |entry: &&BackOff| entry.failed_at.elapsed() <= 2 * BACK_OFF.1;
        let before = table.get(&key).filter(recent).map(|entry| entry.wait);
        let wait = before.map_or(BACK_OFF.0, |wait| (wait * 2).min(BACK_OFF.1));
        table
            .insert(key, BackOff { wait, failed_at: Instant::now(), reason, keys, is_over: false });
        wait
    }

    fn bad_name(&self, wanted: &ImageRequest<'_>, error: &ImageNameError) -> Failure {
        let message = format!("Failed to apply default image tag \"{}\": {error}", wanted.image);
        self.warn(wanted, "InspectFailed", &message);
        Failure::new("InvalidImageName", message)
    }

    fn note(&self, wanted: &ImageRequest<'_>, reason: &str, message: &str) {
        self.recorder.event(wanted.uid, false, reason, message, wanted.container);
    }

    fn warn(&self, wanted: &ImageRequest<'_>, reason: &str, message: &str) {
        self.recorder.event(wanted.uid, true, reason, message, wanted.container);
    }
}

impl Lookup<'_> {
    /// The credentials that the pod may try for its image, in order.
    // k8s: pkg/kubelet/images/image_manager.go makeLookupPullCredentialsFunc
    async fn credentials(&self) -> Result<Vec<Credential>, CredentialsError> {
        let found = self.found.get_or_init(async || {
            let (image, keys) = (&self.image, &self.images.keys);
            let mut found = self.wanted.keyring.as_ref().map_err(Clone::clone)?.of(image);
            let of_files = keys.files.of(image).await;
            found.extend(of_files.map_err(|error| CredentialsError::Files(error.to_string()))?);
            found.extend(keys.providers.keyring(image, self.wanted.pod).await.of(image));
            Ok(found)
        });
        found.await.clone()
    }
}

/// A duration cut to whole milliseconds, as Go prints it.
fn millis(took: Duration) -> GoDuration {
    let cut = Duration::from_millis(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
    GoDuration::from_std(cut)
}

#[cfg(test)]
mod tests;
