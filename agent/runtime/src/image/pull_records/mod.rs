//! Records of pulls, so that a pod without the password cannot use an image because it is present.
//!
//! ```text
//!   pull:  intent on disk ─> runtime ─> record on disk ─> intent removed
//!   image is there:  record, policy ─> credentials of the pod (only where they count) ─> may it?
//! ```
//! Input: pulls as they begin and end, and pods that want an image that is there. Output: the
//! decision whether a pull has to prove access at the registry. The files are the kubelet's, read
//! at each request: either agent continues where the other stopped. An intent without a pull under
//! way is from a crash; if its image is there after all, it gets a record without credentials, so
//! the next pod has to prove its access.
//!
//! Effects: files, on the blocking pool. Owner: `Images`. With an unreadable file a pull has to
//! prove access. A record is removed with its image.
// k8s: pkg/kubelet/images/pullmanager/image_pull_manager.go

mod files;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::image::credentials::CredentialsError;
use pintle_agent_config::image_policy::VerificationPolicy;
use pintle_agent_core::image::pull_credential::Credential;
use pintle_agent_core::image::pull_record::{CredentialOwners, Match, PulledImage};
use pintle_agent_metrics::Metrics;
use pintle_cri::{Client, v1};
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use tokio::sync::{Mutex, OnceCell};

use files::RecordFiles;

/// Records of pulls.
pub struct PullRecords {
    files: RecordFiles,
    policy: VerificationPolicy,
    client: Client,
    metrics: Arc<Metrics>,
    /// Pulls under way by the image's name in the pod.
    under_way: RefCell<BTreeMap<String, u32>>,
    /// Held by the only reader and writer of files, because a change of a record depends on the
    /// record read.
    turn: Mutex<()>,
    taken_over: OnceCell<()>,
}

/// Access of a pod to an image that is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It may.
    Granted,
    /// The registry has to decide.
    Ask,
}

impl PullRecords {
    /// The records below the agent's root directory.
    pub fn open(
        root: &Path,
        policy: VerificationPolicy,
        client: Client,
        metrics: Arc<Metrics>,
    ) -> io::Result<Self> {
        let files = RecordFiles::open(root)?;
        Ok(Self {
            files,
            policy,
            client,
            metrics,
            under_way: RefCell::default(),
            turn: Mutex::default(),
            taken_over: OnceCell::new(),
        })
    }

    /// A pull of `image` is about to begin; to be called before the runtime is.
    pub async fn begin(&self, image: &str) -> io::Result<()> {
        self.take_over().await;
        let _turn = self.turn.lock().await;
        let name = image.to_owned();
        self.change(move |files| files.write_intent(&name)).await?;
        *self.under_way.borrow_mut().entry(image.to_owned()).or_default() += 1;
        Ok(())
    }

    /// A pull succeeded with these credentials; `None` for none. When the record cannot be written
    /// the intent stays: the image still counts as pulled.
    // k8s: pkg/kubelet/images/pullmanager/image_pull_manager.go RecordImagePulled
    pub async fn succeeded(&self, image: &str, image_ref: &str, used: Option<&Credential>) {
        let known = CredentialOwners::of_pull(used);
        match self.write(image, image_ref, Some(known)).await {
            Ok(()) => self.end(image).await,
            Err(error) => tracing::error!(%error, image, "the record of a pull cannot be written"),
        }
    }

    /// A pull failed, or never began after all.
    pub async fn failed(&self, image: &str) {
        self.end(image).await;
    }

    /// Handles the removal of an image: the next pull proves access again. A record written since
    /// the removal `began` belongs to a later pull, and stays.
    // k8s: pkg/kubelet/images/pullmanager/image_pull_manager.go PruneUnknownRecords
    pub async fn removed(&self, image_ref: &str, began: jiff::Timestamp) {
        let _turn = self.turn.lock().await;
        let (id, second) = (image_ref.to_owned(), second(began));
        let remove = move |files: &RecordFiles| match files.record(&id) {
            Ok(Some(record)) if !record.is_older_than(&second) => Ok(()),
            _ => files.remove_record(&id),
        };
        if let Err(error) = self.change(remove).await {
            tracing::error!(%error, image_ref, "the record of a removed image cannot be removed");
        }
    }

    /// Images with a record that are none of these, which were listed after `listed`: another
    /// client removed them. An image pulled since then is not returned.
    pub async fn unknown(
        &self,
        images: BTreeSet<String>,
        listed: jiff::Timestamp,
    ) -> io::Result<Vec<String>> {
        let _turn = self.turn.lock().await;
        let second = second(listed);
        self.on_disk(move |files| {
            let mut recorded = files.recorded_before(&second);
            recorded.retain(|image| !images.contains(image));
            Ok(recorded)
        })
        .await
    }

    /// Decides whether a pod may use an image that is present, by its name in the pod and the
    /// runtime's id. `credentials` are read only where they count; their error is returned.
    // k8s: pkg/kubelet/images/pullmanager/image_pull_manager.go MustAttemptImagePull
    pub async fn access(
        &self,
        image: &str,
        image_ref: &str,
        credentials: impl Future<Output = Result<Vec<Credential>, CredentialsError>>,
    ) -> Result<Access, CredentialsError> {
        let mut result = "error";
        let access = self.look(image, image_ref, credentials, &mut result).await;
        self.metrics.images().verified(result);
        access
    }

    async fn look(
        &self,
        image: &str,
        image_ref: &str,
        credentials: impl Future<Output = Result<Vec<Credential>, CredentialsError>>,
        result: &mut &'static str,
    ) -> Result<Access, CredentialsError> {
        self.take_over().await;
        let (record, pulled) = match self.read(image, image_ref).await {
            Ok(read) => read,
            Err(error) => {
                tracing::error!(%error, image, "the records of an image cannot be read");
                return Ok(Access::Ask);
            }
        };
        if !self.policy.verifies(image, pulled) {
            *result = "credentialPolicyAllowed";
            return Ok(Access::Granted);
        }
        let known = record.as_ref().and_then(|record| record.known(image));
        let found = match known {
            Some(known) if known.node_pods_accessible => Match::Known,
            Some(known) if known.names_credentials() => known.compare(&credentials.await?),
            _ => Match::None,
        };
        *result = if found == Match::None { "mustAuthenticate" } else { "credentialRecordFound" };
        match found {
            Match::None => return Ok(Access::Ask),
            Match::Known => {}
            Match::Learned(learned) => {
                if let Err(error) = self.write(image, image_ref, Some(learned)).await {
                    tracing::error!(%error, image, "an image's record cannot be written");
                }
            }
        }
        Ok(Access::Granted)
    }

    /// The record, and whether the image was ever pulled by an agent.
    async fn read(&self, image: &str, image_ref: &str) -> io::Result<(Option<PulledImage>, bool)> {
        let _turn = self.turn.lock().await;
        let under_way = self.under_way.borrow().contains_key(image);
        let (name, id) = (image.to_owned(), image_ref.to_owned());
        self.on_disk(move |files| {
            let record = files.record(&id)?;
            let pulled = record.is_some() || under_way || files.has_intent(&name)?;
            Ok((record, pulled))
        })
        .await
    }

    /// Adds to a record, or makes one; `None` for an image of unknown origin.
    // k8s: pkg/kubelet/images/pullmanager/image_pull_manager.go writePulledRecordIfChanged
    async fn write(
        &self,
        image: &str,
        image_ref: &str,
        known: Option<CredentialOwners>,
    ) -> io::Result<()> {
        let _turn = self.turn.lock().await;
        let (name, id) = (image.to_owned(), image_ref.to_owned());
        let now = second(jiff::Timestamp::now());
        self.change(move |files| {
            // An unreadable record is as good as none: it is written again.
            let old = files.record(&id).ok().flatten();
            let new = old.clone().unwrap_or_else(|| PulledImage::new(&id, &now));
            let more = known.and_then(|known| new.with(&name, &known, &now));
            match more {
                Some(record) => files.write_record(&record),
                None if old.is_none() => files.write_record(&new),
                None => Ok(()),
            }
        })
        .await
    }

    async fn end(&self, image: &str) {
        let _turn = self.turn.lock().await;
        let last = {
            let mut under_way = self.under_way.borrow_mut();
            let count = under_way.get_mut(image).map(|count| {
                *count = count.saturating_sub(1);
                *count
            });
            count.unwrap_or_default() == 0
        };
        if !last {
            return;
        }
        let name = image.to_owned();
        if let Err(error) = self.change(move |files| files.remove_intent(&name)).await {
            tracing::error!(%error, image, "a pull intent cannot be removed");
        }
        self.under_way.borrow_mut().remove(image);
    }

    /// Turns the intents of present images into records, once, before anything else.
    // k8s: pkg/kubelet/images/pullmanager/image_pull_manager.go initialize
    async fn take_over(&self) {
        self.taken_over
            .get_or_init(async || {
                let intents = self.on_disk(|files| Ok(files.take_over())).await;
                let intents: BTreeSet<String> = intents.unwrap_or_default().into_iter().collect();
                if intents.is_empty() {
                    return;
                }
                let request = v1::ListImagesRequest { filter: None };
                let images = match self.client.list_images(request).await {
                    Ok(answer) => answer.images,
                    Err(error) => {
                        tracing::error!(%error, "images cannot be listed: pull intents stay");
                        return;
                    }
                };
                for image in images {
                    let names = image.repo_digests.iter().chain(&image.repo_tags);
                    for name in names.filter(|name| intents.contains(*name)) {
                        self.settle(name, &image.id).await;
                    }
                }
            })
            .await;
    }

    async fn settle(&self, image: &str, image_ref: &str) {
        if let Err(error) = self.write(image, image_ref, None).await {
            tracing::error!(%error, image, "the record of a pull cannot be written");
            return;
        }
        self.end(image).await;
    }

    /// Changes files and counts them.
    async fn change(
        &self,
        work: impl FnOnce(&RecordFiles) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let metrics = Arc::clone(&self.metrics);
        self.on_disk(move |files| {
            let done = work(files);
            let (intents, records) = files.counts();
            metrics.images().on_disk(intents, records);
            done
        })
        .await
    }

    /// Works with the files on a blocking thread, without holding up other tasks.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&RecordFiles) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let files = self.files.clone();
        blocking::try_run(JobPlace::own("pull records"), move || work(&files)).await
    }
}

/// The time in the format of a record.
fn second(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
