//! Static pods from a folder (or one file): effects of the file source.
//!
//! Input: the folder. Output: a `SourceReading` of all its manifests after each change; one that
//! was removed is missing from a reading, even if it is back. One inotify watch wakes the task and
//! names the files to check; every `fileCheckFrequency` it checks all of them anyway, since the
//! folder may not exist yet, may be replaced, or lie on a file system without events. Files are
//! read again only when their stamp changed. Owner: the task of `run`. Bounds: `FILES_MAX` files of
//! at most 10 MiB each, read one at a time.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Pod;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use pintle_agent_core::types::UnixNanos;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::manifest::{MANIFEST_BYTES_MAX, ManifestError, decode_pod};
use super::static_pod::ManifestOrigin;
use super::{Problem, ProblemCause, SourceKind, SourceReading};

/// Most manifests of a folder; the others are ignored and reported.
const FILES_MAX: usize = 4096;

/// A file that changed this short before it was read is read again: the clock of the file system is
/// too coarse to show a second change in the same tick.
const SETTLE: Duration = Duration::from_secs(1);

/// The folder and its manifests as read.
#[derive(Debug)]
pub(crate) struct ManifestFolder {
    path: PathBuf,
    node_name: String,
    files: BTreeMap<PathBuf, Manifest>,
    /// Number of files beyond `FILES_MAX`, as last reported.
    ignored: usize,
    scanned: bool,
    /// The last scan of everything found a folder, and not one file or nothing.
    is_folder: bool,
    /// The folder changed since the last reading.
    unsaid: bool,
}

/// The files that may have changed in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Touched {
    /// Unknown.
    Anything,
    /// Files of these names, and whether one was removed meanwhile, even if it is back.
    Names(BTreeMap<OsString, bool>),
}

/// One file: the state of its last read and the last good pod.
#[derive(Debug)]
struct Manifest {
    stamp: ContentStamp,
    settled: bool,
    pod: Option<(Arc<Pod>, UnixNanos)>,
    problem: Option<Arc<Problem>>,
}

/// Changes whenever the file's content may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ContentStamp {
    inode: u64,
    size: u64,
    modified: UnixNanos,
    changed: (i64, i64),
}

impl ContentStamp {
    fn of(metadata: &Metadata) -> Self {
        let nanos = metadata.mtime().saturating_mul(1_000_000_000);
        Self {
            inode: metadata.ino(),
            size: metadata.size(),
            modified: UnixNanos(nanos.saturating_add(metadata.mtime_nsec())),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// True when any later change will have another stamp.
    fn is_settled(&self) -> bool {
        let changed = Duration::new(
            u64::try_from(self.changed.0).unwrap_or(0),
            u32::try_from(self.changed.1).unwrap_or(0),
        );
        let changed = SystemTime::UNIX_EPOCH.checked_add(changed);
        changed.and_then(|changed| changed.elapsed().ok()).is_some_and(|since| since > SETTLE)
    }
}

impl ManifestFolder {
    /// A folder of manifests, or a single manifest, for that node.
    pub(crate) fn new(path: impl Into<PathBuf>, node_name: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            node_name: node_name.into(),
            files: BTreeMap::new(),
            ignored: 0,
            scanned: false,
            is_folder: false,
            unsaid: false,
        }
    }

    /// Reads the changes among the touched files; nothing if there are none since the last scan.
    fn look(&mut self, touched: &Touched) -> io::Result<Vec<SourceReading>> {
        let mut readings = Vec::new();
        let mut is_all = false;
        if let Touched::Names(names) = touched
            && self.scanned
            && self.is_folder
        {
            readings.extend(self.without(names));
            is_all = self.look_at(names.keys());
        }
        let now = if is_all { Ok(self.news()) } else { self.scan() };
        // A reading that is not delivered now is delivered with the next look.
        self.unsaid |= now.is_err() && !readings.is_empty();
        readings.extend(now?);
        Ok(readings)
    }

    /// All manifests without the removed files. One that is back is another manifest, even with
    /// equal content: its pod ends, and begins again.
    // k8s: pkg/kubelet/config/file_linux.go consumeWatchEvent
    fn without(&mut self, names: &BTreeMap<OsString, bool>) -> Option<SourceReading> {
        for (name, _) in names.iter().filter(|(_, was_removed)| **was_removed) {
            self.unsaid |= self.files.remove(&self.path.join(name)).is_some();
        }
        self.news()
    }

    /// Checks files of these names only. False if that does not suffice: a touched name leads to
    /// other files, or there are too many.
    fn look_at<'a>(&mut self, names: impl Iterator<Item = &'a OsString> + Clone) -> bool {
        for name in names.clone().filter(|name| !is_hidden(Path::new(name))) {
            let path = self.path.join(name);
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_file() && self.files.len() < FILES_MAX => {
                    let known = self.files.remove(&path);
                    let (manifest, is_news) = self.now(&path, &metadata, known);
                    self.unsaid |= is_news;
                    self.files.insert(path, manifest);
                }
                Ok(_) => return false,
                Err(_) => self.unsaid |= self.files.remove(&path).is_some(),
            }
        }
        // One that was ignored may be taken now.
        self.ignored == 0 && !names.into_iter().any(|name| leads_elsewhere(name))
    }

    /// The whole reading, if the folder changed since the last one.
    fn news(&mut self) -> Option<SourceReading> {
        std::mem::take(&mut self.unsaid).then(|| self.reading())
    }

    /// Reads the changes; `None` if there are none since the last scan. A folder that does not
    /// exist is empty.
    // k8s: pkg/kubelet/config/file.go listConfig
    pub(crate) fn scan(&mut self) -> io::Result<Option<SourceReading>> {
        let (found, ignored) = list(&self.path)?;
        self.is_folder = self.path.is_dir();
        if ignored > 0 && self.ignored == 0 {
            let path = self.path.display();
            tracing::warn!(%path, ignored, read = FILES_MAX, "too many manifests; the last are ignored");
        }
        self.ignored = ignored;
        self.unsaid |= !self.scanned || found.len() != self.files.len();
        let mut files = BTreeMap::new();
        for (path, metadata) in found {
            let known = self.files.remove(&path);
            let (manifest, is_news) = self.now(&path, &metadata, known);
            self.unsaid |= is_news;
            files.insert(path, manifest);
        }
        self.unsaid |= !self.files.is_empty();
        self.files = files;
        self.scanned = true;
        Ok(self.news())
    }

    /// The manifest of a file now; true if it differs from the known one.
    fn now(&self, path: &Path, metadata: &Metadata, known: Option<Manifest>) -> (Manifest, bool) {
        let stamp = ContentStamp::of(metadata);
        let known = match known {
            Some(known) if known.stamp == stamp && known.settled => return (known, false),
            known => known,
        };
        let previous = known.as_ref().and_then(|known| known.pod.clone());
        let read = self.read(path, stamp, previous);
        match known.filter(|known| known.is_same_content(&read)) {
            // Its pod stays the same object, which others compare at once.
            Some(known) => (Manifest { stamp, settled: read.settled, ..known }, false),
            None => (read, true),
        }
    }

    fn read(
        &self,
        path: &Path,
        stamp: ContentStamp,
        previous: Option<(Arc<Pod>, UnixNanos)>,
    ) -> Manifest {
        let settled = stamp.is_settled();
        let place = path.display().to_string();
        let origin = ManifestOrigin {
            kind: SourceKind::File,
            place: place.clone(),
            changed_at: stamp.modified,
        };
        let decoded = read_bounded(path).and_then(|bytes| {
            decode_pod(&bytes, &origin, &self.node_name).map_err(ProblemCause::from)
        });
        match decoded {
            Ok(pod) => {
                let pod = Some((Arc::new(pod), stamp.modified));
                Manifest { stamp, settled, pod, problem: None }
            }
            Err(error) => {
                let problem = Problem { place, error, keeps_previous: previous.is_some() };
                Manifest { stamp, settled, pod: previous, problem: Some(Arc::new(problem)) }
            }
        }
    }

    fn reading(&self) -> SourceReading {
        let pods = self.files.values().filter_map(|file| file.pod.clone());
        let problems = self.files.values().filter_map(|file| file.problem.clone());
        SourceReading {
            pods: pods.collect(),
            problems: problems.collect(),
            ..SourceReading::default()
        }
    }
}

impl Manifest {
    fn is_same_content(&self, other: &Self) -> bool {
        self.pod == other.pod && self.problem == other.problem
    }
}

/// The regular files of a folder that may be manifests, or the one file; and how many files there
/// are beyond those that are read.
fn list(path: &Path) -> io::Result<(BTreeMap<PathBuf, Metadata>, usize)> {
    let mut found = BTreeMap::new();
    let root = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((found, 0)),
        root => root?,
    };
    if root.is_file() {
        found.insert(path.to_owned(), root);
        return Ok((found, 0));
    }
    let mut names: Vec<_> = fs::read_dir(path)?.flatten().map(|entry| entry.path()).collect();
    names.retain(|path| !is_hidden(path));
    names.sort();
    let ignored = names.len().saturating_sub(FILES_MAX);
    for path in names.into_iter().take(FILES_MAX) {
        // A file that vanished meanwhile or cannot be read is treated as deleted.
        if let Ok(metadata) = fs::metadata(&path)
            && metadata.is_file()
        {
            found.insert(path, metadata);
        }
    }
    Ok((found, ignored))
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Manifests may be links through these to their content: `..data` is exchanged to change them all.
// k8s: pkg/volume/util/atomic_writer.go
fn leads_elsewhere(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"..")
}

/// A file's bytes, unless it is larger than a manifest may be.
fn read_bounded(path: &Path) -> Result<Vec<u8>, ProblemCause> {
    let said = |error: io::Error| ProblemCause::Read(error.to_string());
    // Links are followed, as they are when the folder is listed; an irregular file is not waited
    // for.
    let options = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path);
    let file = options.map_err(said)?;
    let metadata = file.metadata().map_err(said)?;
    if !metadata.is_file() {
        return Err(ProblemCause::Read("not a regular file".to_owned()));
    }
    let too_large = || Err(ManifestError::TooLarge.into());
    let Some(size) = usize::try_from(metadata.len()).ok().filter(|n| *n <= MANIFEST_BYTES_MAX)
    else {
        return too_large();
    };
    // It may grow meanwhile: one byte more than allowed shows that.
    let mut bytes = Vec::with_capacity(size + 1);
    file.take(MANIFEST_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(said)?;
    if bytes.len() > MANIFEST_BYTES_MAX { too_large() } else { Ok(bytes) }
}

/// Delivers readings until the receiver is gone. Checks the files that events name, and all files
/// every `check_every`, with each new watch, and after events that were lost.
pub(crate) async fn run(
    folder: ManifestFolder,
    check_every: Duration,
    readings: mpsc::Sender<SourceReading>,
) {
    let path = folder.path.clone();
    let folder = Arc::new(Mutex::new(folder));
    let mut watch = ManifestWatch::start(&path).await;
    let mut touched = Touched::Anything;
    loop {
        let found = looked(&folder, touched).await;
        let is_seen = found.is_ok();
        match found {
            Ok(found) => {
                for reading in found {
                    if readings.send(reading).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot list manifests");
            }
        }
        tokio::select! {
            events = ManifestWatch::events(watch.as_ref()) => match events {
                Some(names) if is_seen => touched = names,
                // Files that were due for a check before are not forgotten.
                Some(_) => touched = Touched::Anything,
                None => (watch, touched) = (None, Touched::Anything),
            },
            () = tokio::time::sleep(check_every) => touched = Touched::Anything,
            () = readings.closed() => return,
        }
        if watch.is_none() {
            watch = ManifestWatch::start(&path).await;
            touched = Touched::Anything;
        }
    }
}

/// A look where it may block.
async fn looked(
    folder: &Arc<Mutex<ManifestFolder>>,
    touched: Touched,
) -> io::Result<Vec<SourceReading>> {
    let folder = Arc::clone(folder);
    // One check at a time; one that panicked left the files as they were read before.
    let look = move || folder.lock().unwrap_or_else(PoisonError::into_inner).look(&touched);
    blocking::try_run(JobPlace::own("manifests"), look).await
}

/// An inotify watch on the folder, or on the folder of the one file.
struct ManifestWatch {
    inotify: AsyncFd<InotifyFd>,
}

struct InotifyFd(Inotify);

impl AsRawFd for InotifyFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl ManifestWatch {
    /// `None` when the folder cannot be watched now; the periodic look then is all there is.
    async fn start(path: &Path) -> Option<Self> {
        let path = path.to_owned();
        let inotify = blocking::run(JobPlace::own("manifests"), move || Self::open(&path)).await;
        // `register` is unsafe because a type may hand out a descriptor it does not own. This one
        // owns its own, and the crate has no unsafe code.
        #[allow(deprecated)]
        let inotify = AsyncFd::new(InotifyFd(inotify.ok()??)).ok()?;
        Some(Self { inotify })
    }

    fn open(path: &Path) -> Option<Inotify> {
        let folder = if path.is_file() { path.parent()? } else { path };
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).ok()?;
        let events = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        inotify.add_watch(folder, events).ok()?;
        Some(inotify)
    }

    /// Waits for events, for ever without a watch. `None` when the watch is of no use any more.
    async fn events(watch: Option<&Self>) -> Option<Touched> {
        let Some(watch) = watch else {
            return std::future::pending().await;
        };
        let mut guard = watch.inotify.readable().await.ok()?;
        let gone = AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_IGNORED
            | AddWatchFlags::IN_UNMOUNT;
        let removed = AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM;
        let (mut lost, mut names) = (false, Some(BTreeMap::<_, bool>::new()));
        while let Ok(events) = watch.inotify.get_ref().0.read_events() {
            for event in events {
                lost |= event.mask.intersects(gone);
                // An event without a name is about the folder, or reports that the queue was full.
                names = names.zip(event.name).map(|(mut names, name)| {
                    *names.entry(name).or_default() |= event.mask.intersects(removed);
                    names
                });
            }
        }
        guard.clear_ready();
        (!lost).then(|| names.map_or(Touched::Anything, Touched::Names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const CHECK_EVERY: Duration = Duration::from_secs(3600);
    const WAIT_MAX: Duration = Duration::from_secs(20);

    fn manifest(name: &str, image: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  \
             - name: c\n    image: {image}\n"
        )
    }

    fn names(reading: &SourceReading) -> Vec<String> {
        reading.pods.iter().map(|(pod, _)| pintle_api_types::pod::name(pod).to_owned()).collect()
    }

    #[test]
    fn hidden_files_folders_and_other_kinds_are_no_manifests() {
        let dir = TempDir::new().expect("a folder");
        fs::write(dir.path().join("b.yaml"), manifest("b", "i")).expect("written");
        fs::write(dir.path().join("a"), manifest("a", "i")).expect("written");
        fs::write(dir.path().join(".a.swp"), manifest("x", "i")).expect("written");
        fs::create_dir(dir.path().join("sub")).expect("made");
        let mut folder = ManifestFolder::new(dir.path(), "n");
        let reading = folder.scan().expect("scanned").expect("a first reading");
        assert_eq!(names(&reading), ["a-n", "b-n"]);
        assert_eq!(reading.problems, []);
        assert_eq!(folder.scan().expect("scanned"), None, "nothing changed");
    }

    #[test]
    fn broken_manifest_keeps_its_last_good_version_and_affects_no_other_manifest() {
        let dir = TempDir::new().expect("a folder");
        let (a, b) = (dir.path().join("a.yaml"), dir.path().join("b.yaml"));
        fs::write(&a, manifest("a", "i:1")).expect("written");
        fs::write(&b, manifest("b", "i:1")).expect("written");
        let mut folder = ManifestFolder::new(dir.path(), "n");
        let before = folder.scan().expect("scanned").expect("a reading");
        fs::write(&a, manifest("a", "i:2").replace("image", "  image")).expect("written");
        let reading = folder.scan().expect("scanned").expect("a reading");
        assert_eq!(reading.pods, before.pods);
        let problem = &reading.problems[0];
        assert!(problem.keeps_previous);
        let shown = problem.to_string();
        assert!(shown.starts_with(&format!("{}: line 8: ", a.display())), "{shown}");
        fs::write(&a, manifest("a", "i:3")).expect("written");
        let fixed = folder.scan().expect("scanned").expect("a reading");
        assert_eq!(fixed.problems, []);
        assert_ne!(fixed.pods, before.pods);
        fs::remove_file(&a).expect("removed");
        assert_eq!(names(&folder.scan().expect("scanned").expect("a reading")), ["b-n"]);
    }

    /// A check of named files; no other file may be read, however many there are.
    #[test]
    fn only_named_manifests_are_read() {
        let dir = TempDir::new().expect("a folder");
        let [a, b] = ["a.yaml", "b.yaml"].map(|name| dir.path().join(name));
        for (path, name) in [(&a, "a"), (&b, "b")] {
            fs::write(path, manifest(name, "i:1")).expect("written");
        }
        let named = |names: &[&str]| {
            Touched::Names(names.iter().map(|name| (OsString::from(name), false)).collect())
        };
        let mut folder = ManifestFolder::new(dir.path(), "n");
        let mut look = |names: &[&str]| folder.look(&named(names)).expect("looked").pop();
        let first = look(&["a.yaml"]).expect("everything, for the first time");
        assert_eq!(names(&first), ["a-n", "b-n"]);
        fs::remove_file(&b).expect("removed");
        fs::write(&a, manifest("a", "i:2")).expect("written");
        let second = look(&["a.yaml", "none", ".hidden"]).expect("a changed");
        assert_eq!(names(&second), ["a-n", "b-n"], "b was not looked at");
        assert_ne!(second.pods[0], first.pods[0]);
        assert!(Arc::ptr_eq(&second.pods[1].0, &first.pods[1].0), "the same object");
        assert_eq!(look(&["a.yaml"]), None);
        assert_eq!(names(&look(&["b.yaml"]).expect("b is gone")), ["a-n"]);
        fs::write(&b, manifest("b", "i:1")).expect("written");
        assert_eq!(look(&["a.yaml"]), None);
        // A name that may lead to other files causes a read of all of them, and an earlier change
        // is reported too.
        fs::create_dir(dir.path().join("folder")).expect("made");
        for elsewhere in ["..data", "folder"] {
            fs::write(&a, manifest("a", &format!("i:{elsewhere}"))).expect("written");
            let all = look(&["a.yaml", elsewhere]).expect("a changed");
            assert_eq!((names(&all), look(&[elsewhere])), (vec!["a-n".into(), "b-n".into()], None));
        }
    }

    /// Its pod ends and begins again, however late the agent looks.
    #[test]
    fn manifest_removed_and_rewritten_between_scans_is_reported_missing_once() {
        let dir = TempDir::new().expect("a folder");
        let file = dir.path().join("a.yaml");
        fs::write(&file, manifest("a", "i:1")).expect("written");
        let mut folder = ManifestFolder::new(dir.path(), "n");
        folder.scan().expect("scanned").expect("a first reading");
        let mut look = |was_removed| {
            let touched = Touched::Names([(OsString::from("a.yaml"), was_removed)].into());
            let readings = folder.look(&touched).expect("looked");
            readings.iter().map(names).collect::<Vec<_>>()
        };
        fs::remove_file(&file).expect("removed");
        fs::write(&file, manifest("a", "i:1")).expect("written");
        assert_eq!(look(true), [vec![], vec!["a-n".to_owned()]]);
        assert!(look(false).is_empty(), "its content is the same");
        fs::remove_file(&file).expect("removed");
        assert_eq!(look(true), [vec![""; 0]]);
        assert!(look(true).is_empty(), "it was gone before");
    }

    #[test]
    fn second_change_within_a_single_clock_tick_is_observed() {
        let dir = TempDir::new().expect("a folder");
        let file = dir.path().join("a.yaml");
        fs::write(&file, manifest("a", "i:1")).expect("written");
        let mut folder = ManifestFolder::new(dir.path(), "n");
        folder.scan().expect("scanned").expect("a reading");
        let stamp = ContentStamp::of(&fs::metadata(&file).expect("metadata"));
        fs::write(&file, manifest("a", "i:2")).expect("written");
        // As if the clock had not moved on.
        let known = folder.files.get_mut(&file).expect("known");
        assert!(!known.settled, "read right after it was written");
        known.stamp = ContentStamp::of(&fs::metadata(&file).expect("metadata"));
        assert_eq!(known.stamp.size, stamp.size);
        let reading = folder.scan().expect("scanned").expect("a reading");
        let image = reading.pods[0].0.spec.as_ref().and_then(|s| s.containers[0].image.clone());
        assert_eq!(image.as_deref(), Some("i:2"));
        assert_eq!(folder.scan().expect("scanned"), None, "said once");
    }

    #[test]
    fn a_missing_folder_is_empty_and_a_single_file_is_a_source() {
        let dir = TempDir::new().expect("a folder");
        let mut folder = ManifestFolder::new(dir.path().join("none"), "n");
        assert_eq!(folder.scan().expect("scanned"), Some(SourceReading::default()));
        let file = dir.path().join("one.yaml");
        fs::write(&file, manifest("one", "i")).expect("written");
        let mut single = ManifestFolder::new(&file, "n");
        assert_eq!(names(&single.scan().expect("scanned").expect("a reading")), ["one-n"]);
    }

    #[test]
    fn a_file_beyond_the_bound_is_refused_not_read_whole() {
        let dir = TempDir::new().expect("a folder");
        let file = File::create(dir.path().join("huge.yaml")).expect("created");
        file.set_len(20 << 20).expect("grown");
        let reading =
            ManifestFolder::new(dir.path(), "n").scan().expect("scanned").expect("a reading");
        let cause = ProblemCause::Manifest(ManifestError::TooLarge);
        assert_eq!(reading.problems[0].error, cause);
    }

    async fn next(readings: &mut mpsc::Receiver<SourceReading>) -> SourceReading {
        let next = tokio::time::timeout(WAIT_MAX, readings.recv()).await;
        next.expect("an event within the bound").expect("the task runs")
    }

    #[tokio::test(flavor = "current_thread")]
    async fn writes_renames_and_deletions_are_seen_without_waiting_for_the_timer() {
        let dir = TempDir::new().expect("a folder");
        let (sender, mut readings) = mpsc::channel(16);
        let task = tokio::spawn(run(ManifestFolder::new(dir.path(), "n"), CHECK_EVERY, sender));
        assert_eq!(names(&next(&mut readings).await), [""; 0]);
        let (hidden, file) = (dir.path().join(".new"), dir.path().join("a.yaml"));
        fs::write(&hidden, manifest("a", "i")).expect("written");
        fs::rename(&hidden, &file).expect("renamed");
        assert_eq!(names(&next(&mut readings).await), ["a-n"]);
        fs::write(&file, manifest("b", "i")).expect("written");
        loop {
            let reading = next(&mut readings).await;
            if reading.problems.is_empty() && names(&reading) == ["b-n"] {
                break;
            }
        }
        fs::remove_file(&file).expect("removed");
        assert_eq!(names(&next(&mut readings).await), [""; 0]);
        drop(readings);
        task.await.expect("the task ends with its receiver");
    }
}
