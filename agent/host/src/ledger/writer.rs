//! Makes the checkpoints durable, off the main thread.
//!
//! One task writes. Changes during a write go out with the next one, so a burst of pods costs two
//! or three writes and not one for each (group commit). A sync with an effect that the runtime does
//! not show waits for its record (`wait`). A file is replaced in one step: written beside, synced,
//! renamed, folder synced. A write that fails is logged once and retried until it succeeds, or
//! until there is a newer state: after a while, or at once for a caller that has made room on the
//! disk (`Writing::again`). Waiting callers learn of the failure and may go on.
//!
//! Both files go to the kernel together, through the ring of the agent's own files
//! (docs/adr/0003-io-uring.md); their texts are put together in the pool. Bounds: one state that
//! waits, one write under way.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::stat::Mode;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use pintle_ring::FileError;
use pintle_ring::durable::{self, NewFile};
use tokio::sync::{Notify, watch};

use super::checkpoint::{self, Draft, Entries};

/// File of the allocated resources of pods.
pub const ALLOCATED: &str = "allocated_pods_state";
/// File of the resources applied at the runtime.
pub const ACTUATED: &str = "actuated_pods_state";
/// Longest checkpoint that is read, in bytes.
const CHECKPOINT_BYTES_MAX: u64 = 64 << 20;

/// First and longest wait before a write that failed is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// A state to be written.
#[derive(Debug)]
struct LedgerWrite {
    number: u64,
    allocated: Draft,
    actuated: Draft,
}

/// How far the writing task has come.
#[derive(Clone, Copy, Debug, Default)]
struct Saved {
    /// The newest state that it tried to write.
    tried: u64,
    /// The newest state that is durable.
    written: u64,
    /// How often it has tried.
    attempts: u64,
}

/// The content of both files.
type Texts = (String, String);

/// Orders writes and reports when they are done.
#[derive(Debug)]
pub struct Ledger {
    jobs: watch::Sender<Option<Arc<LedgerWrite>>>,
    saved: watch::Receiver<Saved>,
    again: Arc<Notify>,
    last: u64,
}

/// A state with a caller that waits for the write.
#[derive(Debug)]
pub struct Writing {
    due: u64,
    saved: watch::Receiver<Saved>,
    again: Arc<Notify>,
}

/// The records of an earlier run of an agent.
#[derive(Debug, Default)]
pub struct Restored {
    /// The allocated resources of pods.
    pub allocated: Entries,
    /// The resources applied at the runtime.
    pub actuated: Entries,
}

/// Reads both checkpoints; a missing or broken one counts as empty.
pub fn load(root: &Path) -> Restored {
    let read = |name: &str| {
        let path = root.join(name);
        match read_bounded(&path) {
            Ok(text) => checkpoint::decode(&text).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), %error,
                    "checkpoint cannot be used; pods are taken as their sources have them");
                Entries::default()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Entries::default(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "checkpoint cannot be read");
                Entries::default()
            }
        }
    };
    Restored { allocated: read(ALLOCATED), actuated: read(ACTUATED) }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    fs::File::open(path)?.take(CHECKPOINT_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

impl Ledger {
    /// Starts the writing task.
    pub fn start(root: PathBuf) -> Self {
        let (jobs, queue) = watch::channel(None);
        let (done, saved) = watch::channel(Saved::default());
        let again = Arc::<Notify>::default();
        let work = write_all(root, queue, done, Arc::clone(&again));
        pintle_daemon::tasks::singleton("ledger", work);
        Self { jobs, saved, again, last: 0 }
    }

    /// Orders a write of this state; it replaces one that still waits.
    pub fn save(&mut self, allocated: Draft, actuated: Draft) {
        self.last += 1;
        let number = self.last;
        // The task runs as long as the driver.
        let _ = self.jobs.send(Some(Arc::new(LedgerWrite { number, allocated, actuated })));
    }

    /// The write of the state that is ordered last, or, with `unsaved`, of the next one.
    pub fn wait(&self, unsaved: bool) -> Writing {
        let due = self.last + u64::from(unsaved);
        Writing { due, saved: self.saved.clone(), again: Arc::clone(&self.again) }
    }
}

impl Writing {
    /// Ends when the state, or a newer one, has been written or could not be: whether it is durable.
    pub async fn ended(&mut self) -> bool {
        let due = self.due;
        let saved = self.saved.wait_for(|saved| saved.tried >= due).await;
        saved.is_ok_and(|saved| saved.written >= due)
    }

    /// Has a write that failed tried again now; whether the state is durable then.
    pub async fn again(&mut self) -> bool {
        let due = self.due;
        // One that is under way may have begun before there was room.
        for _ in 0..2 {
            let before = self.saved.borrow().attempts;
            self.again.notify_one();
            let ended = |saved: &Saved| saved.written >= due || saved.attempts > before;
            let saved = self.saved.wait_for(ended).await;
            if saved.is_ok_and(|saved| saved.written >= due) {
                return true;
            }
        }
        false
    }
}

async fn write_all(
    root: PathBuf,
    mut queue: watch::Receiver<Option<Arc<LedgerWrite>>>,
    done: watch::Sender<Saved>,
    again: Arc<Notify>,
) {
    let mut written: Option<Texts> = None;
    // How long to wait before the next attempt, after one that failed.
    let mut retry: Option<Duration> = None;
    loop {
        let changed = tokio::select! {
            changed = queue.changed() => changed,
            () = again.notified() => match &mut retry {
                // There may be room now, so the waits start over.
                Some(wait) => {
                    *wait = RETRY.0 / 2;
                    Ok(())
                }
                None => continue,
            },
            () = tokio::time::sleep(retry.unwrap_or_default()), if retry.is_some() => Ok(()),
        };
        if changed.is_err() {
            return;
        }
        let Some(job) = queue.borrow_and_update().clone() else { continue };
        let outcome = write(&root, Arc::clone(&job), written.take()).await;
        let is_written = outcome.is_ok();
        match outcome {
            Ok(texts) => {
                if retry.take().is_some() {
                    tracing::info!(root = %root.display(), "checkpoints can be written again");
                }
                written = Some(texts);
            }
            Err(error) => {
                if retry.is_none() {
                    tracing::warn!(%error, root = %root.display(),
                        "--root-dir: checkpoints cannot be written; after a restart resizes may \
                         repeat and pods that were evicted may begin again");
                }
                retry = Some(retry.map_or(RETRY.0, |wait| (wait * 2).min(RETRY.1)));
            }
        }
        done.send_modify(|saved| {
            saved.tried = job.number;
            saved.attempts += 1;
            if is_written {
                saved.written = job.number;
            }
        });
    }
}

async fn write(
    root: &Path,
    job: Arc<LedgerWrite>,
    before: Option<Texts>,
) -> Result<Texts, FileError> {
    let place = || JobPlace::own("checkpoints");
    let texts = move || (job.allocated.text(), job.actuated.text());
    let texts = blocking::run(place(), texts).await?;
    let mut files = Vec::new();
    if before.as_ref().is_none_or(|before| before.0 != texts.0) {
        files.push(file(ALLOCATED, &texts.0));
    }
    if before.as_ref().is_none_or(|before| before.1 != texts.1) {
        files.push(file(ACTUATED, &texts.1));
    }
    durable::replace(place(), root, &files).await?;
    Ok(texts)
}

fn file(name: &str, text: &str) -> NewFile {
    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
    NewFile { name: name.to_owned(), bytes: text.into(), mode }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_core::ledger::LedgerEntry;
    use pintle_agent_core::types::PodUid;

    fn text(uid: &str) -> Draft {
        [(&PodUid::from(uid), &LedgerEntry::default())].into_iter().collect()
    }

    fn replace(root: &Path, name: &str, text: &str) -> io::Result<()> {
        pintle_daemon::durable::replace(&root.join(name), text.as_bytes(), 0o600)
    }

    fn uids(entries: &Entries) -> Vec<&str> {
        entries.keys().map(PodUid::as_str).collect()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_last_state_is_durable_when_the_wait_ends() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().to_owned();
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async move {
                let mut ledger = Ledger::start(path.clone());
                let mut next = ledger.wait(true);
                for uid in ["a", "b", "c"] {
                    ledger.save(text(uid), text("z"));
                }
                assert!(next.ended().await && ledger.wait(false).ended().await);
                let restored = load(&path);
                assert_eq!(uids(&restored.allocated), ["c"]);
                assert_eq!(uids(&restored.actuated), ["z"]);
            })
            .await;
    }

    /// A ledger with two pods to write in a folder without room, and the file that fills it.
    fn on_a_full_disk(look: impl AsyncFnOnce(Ledger, PathBuf, PathBuf) + Send + 'static) {
        crate::volume::tests::with_private_mounts(|| {
            let root = tempfile::tempdir().expect("a folder");
            crate::volume::mount::tmpfs(root.path(), Some(64 << 10)).expect("tmpfs");
            let full = root.path().join("full");
            let fill = || fs::write(&full, vec![0; 128 << 10]).expect_err("the disk is full");
            assert_eq!(fill().raw_os_error(), Some(nix::libc::ENOSPC));
            let path = root.path().to_owned();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime.expect("a runtime"), async move {
                let mut ledger = Ledger::start(path.clone());
                ledger.save(text("a"), text("z"));
                look(ledger, path, full).await;
            });
        });
    }

    #[test]
    fn a_write_that_found_the_disk_full_is_repeated_without_another_change() {
        on_a_full_disk(async |ledger, path, full| {
            assert!(!ledger.wait(false).ended().await, "the wait ends with the failure");
            assert!(load(&path).allocated.is_empty());
            fs::remove_file(&full).expect("room again");
            while uids(&load(&path).actuated) != ["z"] {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(uids(&load(&path).allocated), ["a"]);
        });
    }

    #[test]
    fn checkpoint_write_is_retried_at_once_after_disk_space_is_freed() {
        on_a_full_disk(async |ledger, path, full| {
            let mut writing = ledger.wait(false);
            assert!(!writing.ended().await && !writing.again().await, "still full");
            // Long after the first failure.
            tokio::time::sleep(RETRY.0 * 4).await;
            fs::remove_file(&full).expect("room again");
            let began = tokio::time::Instant::now();
            assert!(writing.again().await && writing.ended().await);
            assert!(began.elapsed() < RETRY.0, "{:?}", began.elapsed());
            assert_eq!(uids(&load(&path).allocated), ["a"]);
        });
    }

    #[test]
    fn missing_or_corrupt_checkpoint_counts_as_empty() {
        let root = tempfile::tempdir().expect("a folder");
        assert!(load(root.path()).allocated.is_empty());
        replace(root.path(), ALLOCATED, "{\"data\":\"{}\",\"checksum\":1}").expect("written");
        replace(root.path(), ACTUATED, &text("u").text()).expect("written");
        let restored = load(root.path());
        assert!(restored.allocated.is_empty());
        assert_eq!(uids(&restored.actuated), ["u"]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_write_that_was_cut_leaves_the_old_file() {
        let root = tempfile::tempdir().expect("a folder");
        replace(root.path(), ALLOCATED, &text("old").text()).expect("written");
        // As a crash between writing and renaming leaves it.
        let beside = root.path().join(format!(".{ALLOCATED}.new"));
        fs::write(beside, "half").expect("written");
        assert_eq!(uids(&load(root.path()).allocated), ["old"]);
        let job = LedgerWrite { number: 1, allocated: text("new"), actuated: text("new") };
        write(root.path(), Arc::new(job), None).await.expect("written");
        assert_eq!(uids(&load(root.path()).allocated), ["new"]);
    }
}
