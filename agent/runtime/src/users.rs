//! Ids of the node for pods with users of their own (`hostUsers: false`).
//!
//! Every such pod gets a range of `userNamespaces.idsPerPod` ids that no other pod has, noted in
//! `<pod dir>/userns` in the kubelet's format before the sandbox is made, so that it keeps them
//! over restarts of either agent. The available ids come from `getsubids kubelet`, else they are
//! all above the first range. Owner of the ranges in use; they are read once at the start. Effects:
//! reads and writes those files, runs `getsubids` once. Bounds: as many ranges as there are ids.
// k8s: pkg/kubelet/userns/userns_manager.go

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::request::RuntimeHandler;
use pintle_agent_core::request::security::IdRange;
use pintle_agent_core::types::PodUid;
use pintle_api_types::pod;
use pintle_daemon::blocking;
use pintle_daemon::blocking::{Blocked, JobPlace};
use pintle_daemon::durable;
use pintle_daemon::regular_file;
use serde::{Deserialize, Serialize};

/// Ids of a pod when nothing else is configured.
const IDS_PER_POD: u32 = 65_536;
/// File below a pod's directory.
const FILE: &str = "userns";
/// Its mode, as the kubelet leaves it.
const FILE_MODE: u32 = 0o600;
/// Longest such file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// The user with the subordinate ids for pods.
const USER: &str = "kubelet";

/// The ids that pods may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ids {
    first: u32,
    /// Ranges of `length`.
    ranges: u32,
    length: u32,
}

/// Why no range can be given.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The node's subordinate ids do not fit.
    #[error("subordinate ids of user {USER}: {0}")]
    Ids(String),
    /// No range is left.
    #[error("could not find an empty slot to allocate a user namespace")]
    Full,
    /// The file of a pod has invalid content.
    #[error("invalid user namespace mappings file: {0}")]
    Mapping(String),
    /// It could not be read or written.
    #[error("user namespace mappings file")]
    File(#[from] io::Error),
    /// It did not answer.
    #[error("user namespace mappings file: {0}")]
    Blocked(#[from] Blocked),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mappings {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

/// Ranges of ids, and the pods that hold them.
#[derive(Debug)]
pub struct IdUsers {
    pods_dir: PathBuf,
    ids: Ids,
    used: RefCell<BTreeMap<PodUid, u32>>,
}

impl IdUsers {
    /// Finds the node's ids and the ranges that pods have already.
    pub fn open(root: &Path, ids_per_pod: Option<i64>, pods_max: i32) -> Result<Self, UsersError> {
        let length = ids_per_pod.and_then(|ids| u32::try_from(ids).ok()).unwrap_or(IDS_PER_POD);
        let given = subordinate_ids()?;
        let (first, count) = given.unwrap_or((length, (u32::MAX - length).saturating_add(1)));
        let ids = ids(first, count, length, pods_max)?;
        let users = Self { pods_dir: root.join("pods"), ids, used: RefCell::default() };
        for entry in fs::read_dir(&users.pods_dir).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let Some(uid) = PodUid::parse(&name) else { continue };
            let known = read_if_there(&users.file(&uid)).map_err(UsersError::from);
            let known = known.and_then(|text| text.map(|text| users.take(&uid, &text)).transpose());
            if let Err(error) = known {
                tracing::warn!(pod = %uid, %error, "cannot read the user namespace ids of a pod");
            }
        }
        Ok(users)
    }

    /// The range of a pod, made if it has none; `None` for a pod with the node's users.
    pub async fn range(
        &self,
        pod: &Pod,
        handler: &RuntimeHandler,
    ) -> Result<Option<IdRange>, IdRangeError> {
        if pod::spec(pod).host_users != Some(false) {
            return Ok(None);
        }
        if !handler.user_namespaces {
            return Err(match handler.name.as_str() {
                "" => IdRangeError::Runtime,
                name => IdRangeError::Handler(name.to_owned()),
            });
        }
        let made = self.made(&pod::uid(pod)).await;
        made.map(Some)
            .map_err(|error| IdRangeError::Make(pintle_agent_core::types::with_causes(&error)))
    }

    /// The pod is gone: its ids are for others.
    pub async fn release(&self, uid: &PodUid) {
        if self.used.borrow().contains_key(uid) {
            let file = self.file(uid);
            // The pod's directory is removed with it in any case.
            let _ = blocking::run(JobPlace::change(uid), move || fs::remove_file(file)).await;
            // Only now: the ids are free for other pods once no record marks them as taken.
            self.used.borrow_mut().remove(uid);
        }
    }

    /// Frees the ids of pods with removed directories, unless the pod is known again.
    // k8s: pkg/kubelet/userns/userns_manager.go CleanupOrphanedPodUsernsAllocations
    pub fn swept(&self, removed: &[PodUid], is_known: impl Fn(&PodUid) -> bool) {
        let mut used = self.used.borrow_mut();
        for uid in removed.iter().filter(|uid| !is_known(uid)) {
            used.remove(uid);
        }
    }

    async fn made(&self, uid: &PodUid) -> Result<IdRange, UsersError> {
        if let Some(range) = self.in_memory(uid) {
            return Ok(range);
        }
        let file = self.file(uid);
        let text = blocking::run(JobPlace::look(uid), move || read_if_there(&file)).await??;
        if let Some(text) = text {
            return self.take(uid, &text);
        }
        let index = free(&self.used.borrow(), self.ids.ranges).ok_or(UsersError::Full)?;
        let range = range_at(&self.ids, index);
        // Taken before it is written: another pod may ask meanwhile.
        let taken = TakenRange { users: self, uid, keep: false };
        self.used.borrow_mut().insert(uid.clone(), index);
        let dir = self.pods_dir.join(uid.as_str());
        blocking::run(JobPlace::change(uid), move || write(&dir, &range)).await??;
        taken.keep();
        Ok(range)
    }

    fn in_memory(&self, uid: &PodUid) -> Option<IdRange> {
        self.used.borrow().get(uid).map(|index| range_at(&self.ids, *index))
    }

    /// Records the range in a pod's file.
    fn take(&self, uid: &PodUid, text: &str) -> Result<IdRange, UsersError> {
        let range = parse(text)?;
        let mut used = self.used.borrow_mut();
        let index = index_of(&self.ids, &range);
        let index = index.map_err(|foreign| UsersError::Mapping(foreign.to_string()))?;
        if used.values().any(|other| *other == index) {
            return Err(UsersError::Mapping(format!("range picked for pod {uid} already taken")));
        }
        used.insert(uid.clone(), index);
        Ok(range)
    }

    fn file(&self, uid: &PodUid) -> PathBuf {
        self.pods_dir.join(uid.as_str()).join(FILE)
    }
}

/// Checks the node's ids.
// k8s: pkg/kubelet/userns/userns_manager.go MakeUserNsManager
fn ids(first: u32, count: u32, length: u32, pods_max: i32) -> Result<Ids, UsersError> {
    let fail = |text: String| Err(UsersError::Ids(text));
    if length == 0 || !length.is_multiple_of(IDS_PER_POD) {
        return fail(format!("length {length} is not a multiple of {IDS_PER_POD}"));
    }
    if first < length || !first.is_multiple_of(length) {
        return fail(format!("the first, {first}, has to be a multiple of {length} above 0"));
    }
    let ranges = count / length;
    if ranges < u32::try_from(pods_max).unwrap_or(0) {
        return fail(format!("{count} ids are not enough for {pods_max} pods"));
    }
    Ok(Ids { first, ranges, length })
}

fn range_at(ids: &Ids, index: u32) -> IdRange {
    IdRange { host_id: ids.first + index * ids.length, length: ids.length }
}

/// Reason why a pod has no user namespace ids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdRangeError {
    /// The runtime's default handler has no user namespaces.
    #[error("can't set `spec.hostUsers: false`, runtime does not support user namespaces")]
    Runtime,
    /// The handler of the pod's RuntimeClass has none.
    #[error(
        "can't set `spec.hostUsers: false`, RuntimeClass handler {0:?} does not support user \
         namespaces"
    )]
    Handler(String),
    /// The ids cannot be chosen or kept; with all causes.
    #[error("{0}")]
    Make(String),
}

/// A range that is none of this node's.
#[derive(Debug, thiserror::Error)]
enum ForeignRange {
    #[error("wrong user namespace length {0}")]
    Length(u32),
    #[error("wrong user namespace offset specified {0}")]
    Offset(u32),
    #[error("id {0} is out of range")]
    Outside(u32),
}

fn index_of(ids: &Ids, range: &IdRange) -> Result<u32, ForeignRange> {
    if range.length != ids.length {
        return Err(ForeignRange::Length(range.length));
    }
    let offset = range.host_id.checked_sub(ids.first);
    let offset = offset.filter(|offset| offset / ids.length < ids.ranges);
    match offset {
        Some(offset) if offset.is_multiple_of(ids.length) => Ok(offset / ids.length),
        Some(_) => Err(ForeignRange::Offset(range.host_id)),
        None => Err(ForeignRange::Outside(range.host_id)),
    }
}

fn free(used: &BTreeMap<PodUid, u32>, ranges: u32) -> Option<u32> {
    let taken: BTreeSet<u32> = used.values().copied().collect();
    (0..ranges).find(|index| !taken.contains(index))
}

fn parse(text: &str) -> Result<IdRange, UsersError> {
    let mappings: Mappings =
        serde_json::from_str(text).map_err(|error| UsersError::Mapping(error.to_string()))?;
    match (mappings.uid_mappings.as_slice(), mappings.gid_mappings.as_slice()) {
        ([uids], [gids]) if uids == gids && uids.container_id == 0 => {
            Ok(IdRange { host_id: uids.host_id, length: uids.length })
        }
        _ => {
            Err(UsersError::Mapping("one mapping of id 0 is expected for users and groups".into()))
        }
    }
}

/// A range that is written down just now; free again when that comes to nothing.
struct TakenRange<'a> {
    users: &'a IdUsers,
    uid: &'a PodUid,
    keep: bool,
}

impl TakenRange<'_> {
    fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for TakenRange<'_> {
    fn drop(&mut self) {
        if !self.keep {
            self.users.used.borrow_mut().remove(self.uid);
        }
    }
}

fn read_if_there(path: &Path) -> io::Result<Option<String>> {
    use std::io::Read;
    let file = match regular_file::open_at(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(Some(text))
}

/// Durable before the sandbox is made: another pod must never get these ids.
fn write(dir: &Path, range: &IdRange) -> io::Result<()> {
    let mapping = Mapping { host_id: range.host_id, container_id: 0, length: range.length };
    let mappings = Mappings { uid_mappings: vec![mapping], gid_mappings: vec![mapping] };
    let text = serde_json::to_string(&mappings).map_err(io::Error::other)?;
    durable::replace(&dir.join(FILE), text.as_bytes(), FILE_MODE)?;
    fs::File::open(dir)?.sync_all()
}

/// First id and number of the subordinate ids of user `kubelet`, if the node has such.
// k8s: pkg/kubelet/kubelet_pods.go getKubeletMappings
fn subordinate_ids() -> Result<Option<(u32, u32)>, UsersError> {
    if !matches!(nix::unistd::User::from_name(USER), Ok(Some(_))) {
        return Ok(None);
    }
    let run = |args: &[&str]| match Command::new("getsubids").args(args).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(output) if output.status.success() => {
            Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
        }
        Ok(output) => Err(UsersError::Ids(format!("getsubids ended with {}", output.status))),
        Err(error) => Err(error.into()),
    };
    let (Some(users), Some(groups)) = (run(&[USER])?, run(&["-g", USER])?) else {
        return Ok(None);
    };
    if users != groups {
        return Err(UsersError::Ids("users and groups differ".to_owned()));
    }
    parse_subordinate(&users).map(Some)
}

/// One line: `0: kubelet 65536 7208960`.
// k8s: pkg/kubelet/kubelet_pods.go parseGetSubIdsOutput
fn parse_subordinate(text: &str) -> Result<(u32, u32), UsersError> {
    let mut lines = text.trim().lines();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return Err(UsersError::Ids("exactly one range is expected".to_owned()));
    };
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, USER, first, count] = words.as_slice() else {
        return Err(UsersError::Ids(format!("{line:?} is not understood")));
    };
    let number = |text: &str| {
        text.parse().map_err(|_| UsersError::Ids(format!("{text:?} is not a number of ids")))
    };
    Ok((number(first)?, number(count)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn pod(uid: &str, host_users: Option<bool>) -> Pod {
        let spec = json!({"containers": [], "hostUsers": host_users});
        serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": spec})).expect("a pod")
    }

    fn able() -> RuntimeHandler {
        RuntimeHandler { user_namespaces: true, ..RuntimeHandler::default() }
    }

    fn open(root: &Path) -> IdUsers {
        let ids = ids(65_536, 3 * 65_536, 65_536, 3).expect("ids");
        IdUsers { pods_dir: root.join("pods"), ids, used: RefCell::default() }
    }

    fn range(users: &IdUsers, uid: &str) -> Result<Option<IdRange>, IdRangeError> {
        fs::create_dir_all(users.pods_dir.join(uid)).expect("a folder");
        on_this_thread(users.range(&pod(uid, Some(false)), &able()))
    }

    fn on_this_thread<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(work)
    }

    #[test]
    fn each_pod_gets_its_own_user_namespace_id_range_and_keeps_it() {
        let root = tempfile::tempdir().expect("a folder");
        let users = open(root.path());
        let first = |uid: &str, users: &IdUsers| range(users, uid).expect("ids").map(|r| r.host_id);
        assert_eq!(first("a", &users), Some(65_536));
        assert_eq!(first("b", &users), Some(131_072));
        assert_eq!(first("a", &users), Some(65_536));
        let text = fs::read_to_string(users.file(&"b".into())).expect("a file");
        let want = json!([{"hostId": 131_072, "containerId": 0, "length": 65_536}]);
        let read: serde_json::Value = serde_json::from_str(&text).expect("json");
        assert_eq!(read, json!({"uidMappings": want, "gidMappings": want}));
        let meta = fs::metadata(users.file(&"b".into())).expect("a file");
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o777, 0o600);
        // Another run of the agent: the file decides, whichever pod asks first.
        let again = open(root.path());
        assert_eq!(first("b", &again), Some(131_072));
        assert_eq!(first("c", &again), Some(65_536));
        assert!(range(&again, "a").expect_err("taken").to_string().contains("already taken"));
        assert_eq!(first("d", &again), Some(196_608));
        assert!(range(&again, "e").expect_err("full").to_string().contains("empty slot"));
        on_this_thread(again.release(&"b".into()));
        assert_eq!(first("e", &again), Some(131_072));
    }

    #[test]
    fn id_range_of_a_swept_pod_is_reused() {
        let root = tempfile::tempdir().expect("a folder");
        let users = open(root.path());
        for uid in ["gone", "back", "a"] {
            range(&users, uid).expect("ids");
        }
        assert!(range(&users, "b").expect_err("full").to_string().contains("empty slot"));
        users.swept(&["gone".into(), "back".into()], |uid| *uid == "back".into());
        assert_eq!(range(&users, "b").expect("ids").map(|range| range.host_id), Some(65_536));
        assert!(range(&users, "c").expect_err("full").to_string().contains("empty slot"));
    }

    #[test]
    fn a_range_that_cannot_be_written_down_is_not_given_and_stays_free() {
        let root = tempfile::tempdir().expect("a folder");
        let users = open(root.path());
        // The pod's directory is missing.
        let failed = on_this_thread(users.range(&pod("a", Some(false)), &able()));
        assert!(failed.expect_err("refused").to_string().contains("No such file"));
        assert!(users.used.borrow().is_empty());
        for (what, put) in xtask::disk::STRANGE {
            let uid = what.replace(' ', "-");
            fs::create_dir_all(users.pods_dir.join(&uid)).expect("a folder");
            put(&users.file(&uid.as_str().into()));
            assert!(range(&users, &uid).is_err(), "{what}");
        }
        assert!(users.used.borrow().is_empty());
    }

    #[test]
    fn only_a_runtime_that_can_is_asked() {
        let root = tempfile::tempdir().expect("a folder");
        let users = open(root.path());
        let of = |host_users, handler: &RuntimeHandler| {
            on_this_thread(users.range(&pod("a", host_users), handler))
        };
        let unable = RuntimeHandler::default();
        assert_eq!((of(None, &unable), of(Some(true), &unable)), (Ok(None), Ok(None)));
        let why = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
        assert_eq!(of(Some(false), &unable).expect_err("refused").to_string(), why);
        let named = RuntimeHandler { name: "x".to_owned(), ..unable };
        let why = "RuntimeClass handler \"x\" does not support user namespaces";
        assert!(of(Some(false), &named).expect_err("refused").to_string().ends_with(why));
    }

    #[test]
    fn ids_of_the_node_have_to_fit() {
        for (first, count, length, pods, fits) in [
            (65_536, 7_208_960, 65_536, 110, true),
            (65_536, 7_208_960, 65_536, 111, false),
            (65_537, 7_208_960, 65_536, 1, false),
            (0, 7_208_960, 65_536, 1, false),
            (65_536, 7_208_960, 1000, 1, false),
        ] {
            assert_eq!(ids(first, count, length, pods).is_ok(), fits, "{first} {count} {length}");
        }
        let parsed = parse_subordinate("0: kubelet 65536 7208960\n").expect("a range");
        assert_eq!(parsed, (65_536, 7_208_960));
        for text in ["", "0: other 1 2", "0: kubelet 1 x", "0: kubelet 1 2\n1: kubelet 3 4"] {
            assert!(parse_subordinate(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_file_of_any_content_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = parse(&text);
        }
    }
}
