//! Manifests end to end without files: decoding, errors with their places, merging, adoption.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;

use super::manifest::{ManifestError, decode_pod, decode_pods, fuzz_manifest};
use super::merge::RunningUid;
use super::static_pod::ManifestOrigin;
use super::{PodSources, Problem, ProblemCause, SourceKind, SourceReading, SourceUpdate};
use pintle_api_types::ids::{PodUid, UnixNanos};
use pintle_api_types::pod;

const GOOD: &str = "apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: c
    image: busybox
";

fn origin(place: &str) -> ManifestOrigin {
    ManifestOrigin { kind: SourceKind::File, place: place.into(), changed_at: UnixNanos(1) }
}

fn decode(text: &str) -> Result<Pod, ManifestError> {
    decode_pod(text.as_bytes(), &origin("/m/web.yaml"), "node")
}

fn shown(text: &str) -> String {
    decode(text).expect_err("a broken manifest").to_string()
}

fn none(_: &Pod, _: UnixNanos) -> Option<PodUid> {
    None
}

fn reading(pods: &[&Pod]) -> SourceReading {
    let pods = pods.iter().map(|pod| (Arc::new((*pod).clone()), UnixNanos(1))).collect();
    SourceReading { pods, ..SourceReading::default() }
}

fn broken(place: &str) -> Arc<Problem> {
    let error = ProblemCause::Manifest(ManifestError::Empty);
    Arc::new(Problem { place: place.into(), error, keeps_previous: false })
}

fn kinds(updates: &[SourceUpdate]) -> Vec<&'static str> {
    let kind = |update: &SourceUpdate| match update {
        SourceUpdate::Add(_) => "add",
        SourceUpdate::Update(_) => "update",
        SourceUpdate::Delete(_) => "delete",
        SourceUpdate::Remove(_) => "remove",
        SourceUpdate::Reconcile(_) => "reconcile",
        SourceUpdate::Ready(_) => "ready",
        SourceUpdate::Broken(_) => "broken",
        SourceUpdate::Duplicate(_) => "duplicate",
    };
    updates.iter().map(kind).collect()
}

#[test]
fn an_error_names_line_and_field() {
    for (text, want) in [
        (
            GOOD.replace("image: busybox", "image: ''"),
            "invalid pod: line 8: spec.containers[0].image: Required value",
        ),
        (
            GOOD.replace("    image: busybox\n", ""),
            "invalid pod: line 7: spec.containers[0].image: Required value",
        ),
        (
            GOOD.replace("containers", "contianers"),
            "invalid pod: line 6: spec.containers: Required value",
        ),
        (
            GOOD.replace("busybox", "[1]"),
            "line 8: spec.containers[0].image: couldn't parse as pod(",
        ),
        (GOOD.replace("    image", "   image"), "line 8: couldn't parse as pod("),
        (GOOD.replace("kind: Pod\n", ""), "couldn't parse as pod(Object 'Kind' is missing)"),
        (
            GOOD.replace("apiVersion: v1\n", ""),
            "couldn't parse as pod(Object 'apiVersion' is missing)",
        ),
        (GOOD.replace("kind: Pod", "kind: Service"), "v1 Service is no v1 Pod"),
        (
            GOOD.replace("  name: web", "  namespace: x"),
            "invalid pod: line 4: metadata.name: Required value",
        ),
        (
            format!("{GOOD}  serviceAccountName: x\n"),
            "static pods may not reference serviceaccounts",
        ),
        (" \n".to_owned(), "no content"),
    ] {
        let got = shown(&text);
        assert!(got.starts_with(want), "{text}\ngot  {got}\nwant {want}");
    }
}

#[test]
fn json_is_read_like_yaml() {
    let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},
        "spec":{"containers":[{"name":"c","image":"busybox"}]}}"#;
    let (mut a, mut b) = (decode(json).expect("a pod"), decode(GOOD).expect("a pod"));
    assert_eq!(a.metadata.uid, b.metadata.uid, "the notation is no part of the identity");
    for pod in [&mut a, &mut b] {
        pod.metadata.managed_fields = None;
    }
    assert_eq!(a, b);
}

#[test]
fn comment_keeps_the_uid_of_a_static_pod_and_a_changed_field_changes_the_uid() {
    let uid = |text: &str| decode(text).expect("a pod").metadata.uid;
    assert_eq!(uid(GOOD), uid(&format!("# why\n{GOOD}")));
    assert_ne!(uid(GOOD), uid(&GOOD.replace("busybox", "busybox:1")));
}

#[test]
fn a_url_may_hold_a_list() {
    let item = GOOD.replace("apiVersion: v1\nkind: Pod\n", "").replace('\n', "\n  ");
    let list =
        format!("apiVersion: v1\nkind: PodList\nitems:\n- {item}\n- {}", item.replace("web", "db"));
    let pods = decode_pods(list.as_bytes(), &origin("u"), "n").expect("pods");
    assert_eq!(pods.iter().map(pod::name).collect::<Vec<_>>(), ["web-n", "db-n"]);
    let broken = list.replace("image: busybox", "image: ''");
    let error = decode_pods(broken.as_bytes(), &origin("u"), "n").expect_err("broken");
    assert!(error.line().is_some(), "{error}");
}

#[test]
fn uid_unsafe_as_a_directory_name_is_rejected_with_its_line() {
    for uid in ["../..", "..", "a/b", "/etc", "a b"] {
        let text = GOOD.replace("metadata:\n", &format!("metadata:\n  uid: '{uid}'\n"));
        let error = decode(&text).expect_err(uid);
        assert!(error.to_string().contains("metadata.uid: Invalid value"), "{error}");
        assert!(error.line().is_some(), "{error}");
    }
    let own = GOOD.replace("metadata:\n", "metadata:\n  uid: my-own.uid_1\n");
    assert_eq!(decode(&own).expect("a pod").metadata.uid.as_deref(), Some("my-own.uid_1"));
}

#[test]
fn a_changed_manifest_is_a_removal_and_an_addition() {
    let mut sources = PodSources::new([SourceKind::File]);
    let (old, new) = (decode(GOOD), decode(&GOOD.replace("busybox", "busybox:2")));
    let (old, new) = (old.expect("a pod"), new.expect("a pod"));
    let now = UnixNanos(1_763_692_195_722_523_766);
    let first = sources.set(SourceKind::File, reading(&[&old]), now, &none);
    assert_eq!(kinds(&first), ["add", "ready"]);
    let SourceUpdate::Add(added) = &first[0] else { panic!("an addition") };
    assert_eq!(
        pod::annotation(added, pod::ANNOTATION_SEEN),
        Some("2025-11-21T02:29:55.722523766Z")
    );
    assert_eq!(sources.set(SourceKind::File, reading(&[&old]), now, &none), []);
    let second = sources.set(SourceKind::File, reading(&[&new]), now, &none);
    assert_eq!(kinds(&second), ["remove", "add"]);
    let third = sources.set(SourceKind::File, SourceReading::default(), now, &none);
    assert_eq!(kinds(&third), ["remove"]);
}

#[test]
fn a_manifest_with_a_uid_of_its_own_is_updated_in_place() {
    let text = GOOD.replace("name: web", "name: web\n  uid: fixed");
    let mut sources = PodSources::new([SourceKind::File]);
    let (old, new) = (decode(&text), decode(&text.replace("busybox", "busybox:2")));
    let (old, new) = (old.expect("a pod"), new.expect("a pod"));
    let first = sources.set(SourceKind::File, reading(&[&old]), UnixNanos(1), &none);
    let SourceUpdate::Add(added) = &first[0] else { panic!("an addition") };
    let seen = pod::annotation(added, pod::ANNOTATION_SEEN).expect("seen").to_owned();
    let updates = sources.set(SourceKind::File, reading(&[&new]), UnixNanos(9), &none);
    assert_eq!(kinds(&updates), ["update"]);
    let SourceUpdate::Update(updated) = &updates[0] else { panic!("an update") };
    assert_eq!(pod::annotation(updated, pod::ANNOTATION_SEEN), Some(&*seen));
}

#[test]
fn later_manifest_with_a_duplicate_name_is_dropped_and_reported() {
    let mut sources = PodSources::new([SourceKind::File]);
    let (a, b) = (decode(GOOD).expect("a pod"), decode(&GOOD.replace("busybox", "x")).expect("b"));
    let updates = sources.set(SourceKind::File, reading(&[&a, &b]), UnixNanos(1), &none);
    assert_eq!(kinds(&updates), ["add", "duplicate", "broken", "ready"]);
    let SourceUpdate::Duplicate(dropped) = &updates[1] else { panic!("a duplicate") };
    assert_eq!(dropped.metadata.uid, b.metadata.uid);
    let again = sources.set(SourceKind::File, reading(&[&a, &b]), UnixNanos(1), &none);
    assert_eq!(kinds(&again), ["duplicate"], "in each reading, logged once");
    let unread = broken("/m/c");
    let kept = || SourceReading { problems: vec![Arc::clone(&unread)], ..reading(&[&a, &b]) };
    let kept_twice = [(); 2]
        .map(|()| kinds(&sources.set(SourceKind::File, kept(), UnixNanos(1), &none)).join(" "));
    assert_eq!(kept_twice, ["broken", ""], "what is only kept is no news");
    let fewer = SourceReading { problems: vec![Arc::clone(&unread)], ..reading(&[&a]) };
    sources.set(SourceKind::File, fewer, UnixNanos(1), &none);
    let back = sources.set(SourceKind::File, kept(), UnixNanos(1), &none);
    assert_eq!(kinds(&back), ["duplicate", "broken"]);
}

#[test]
fn broken_manifest_list_is_rebuilt_only_when_it_changes() {
    let mut sources = PodSources::new([SourceKind::File, SourceKind::Http]);
    let web = decode(GOOD).expect("a pod");
    let mut broken: Vec<_> = (0..5000).map(|n| broken(&format!("/m/{n}"))).collect();
    let mut set = |kind, pods: &[&Pod], problems: &[Arc<Problem>]| {
        let reading = SourceReading { problems: problems.to_vec(), ..reading(pods) };
        let updates = sources.set(kind, reading, UnixNanos(1), &none);
        let told = updates.iter().filter(|update| matches!(update, SourceUpdate::Broken(_)));
        (told.count(), Arc::clone(sources.problems()))
    };
    let (told, first) = set(SourceKind::File, &[], &broken);
    assert_eq!((told, first.len()), (5000, 5000));
    let (told, same) = set(SourceKind::File, &[&web], &broken);
    assert!(told == 0 && Arc::ptr_eq(&first, &same), "a pod beside them changes nothing");
    let (told, same) = set(SourceKind::Http, &[], &[]);
    assert!(told == 0 && Arc::ptr_eq(&first, &same), "nor does another source");
    broken[7] = Arc::new(Problem { keeps_previous: true, ..Problem::clone(&broken[7]) });
    let (told, other) = set(SourceKind::File, &[&web], &broken);
    assert_eq!(told, 1);
    let kept = first.iter().zip(other.iter()).filter(|(old, new)| Arc::ptr_eq(old, new));
    assert_eq!(kept.count(), 4999, "the others are the same, not copies");
    assert_eq!(set(SourceKind::File, &[&web], &broken[1..]).1.len(), 4999);
}

#[test]
fn sources_are_ready_only_after_all_were_read_even_with_a_broken_manifest() {
    let mut sources = PodSources::new([SourceKind::File, SourceKind::Http]);
    sources.set(SourceKind::Http, SourceReading::default(), UnixNanos(1), &none);
    assert!(!sources.all_ready());
    let reading = SourceReading { problems: vec![broken("/m/a")], ..SourceReading::default() };
    sources.set(SourceKind::File, reading, UnixNanos(1), &none);
    assert!(sources.all_ready(), "one manifest must not keep all other pods from being cleaned up");
}

#[test]
fn undecodable_pod_is_kept_and_does_not_block_source_readiness() {
    let mut sources = PodSources::new([SourceKind::Api]);
    let pod = decode(GOOD).expect("a pod");
    let uids = BTreeSet::from(["never read".into(), pod::uid(&pod)]);
    let broken = || SourceReading { unreadable: uids.clone(), ..SourceReading::default() };
    // A change alone is no complete list.
    sources.change(SourceKind::Api, pod.clone(), UnixNanos(1));
    assert!(!sources.all_ready());
    let updates = sources.set(SourceKind::Api, broken(), UnixNanos(1), &none);
    assert_eq!((kinds(&updates), sources.all_ready()), (vec!["ready"], true));
    assert_eq!(sources.unreadable(), uids);
    // It can be read again, the other one is gone.
    assert_eq!(sources.change(SourceKind::Api, pod.clone(), UnixNanos(1)), None);
    assert_eq!(sources.unreadable(), BTreeSet::from(["never read".into()]));
    assert_eq!(sources.remove(SourceKind::Api, &"never read".into()), None);
    assert_eq!(sources.unreadable(), BTreeSet::new());
    let gone = sources.set(SourceKind::Api, SourceReading::default(), UnixNanos(1), &none);
    assert_eq!(kinds(&gone), ["remove"]);
}

#[test]
fn adopted_uid_is_kept_until_its_manifest_changes() {
    let foreign = "4af1cdbcca19c224c1ba02493adc56a0";
    let adopt = |_: &Pod, _: UnixNanos| Some(PodUid::from(foreign));
    let pod = decode(GOOD).expect("a pod");
    let mut sources = PodSources::new([SourceKind::File]);
    let first = sources.set(SourceKind::File, reading(&[&pod]), UnixNanos(1), &adopt);
    let SourceUpdate::Add(added) = &first[0] else { panic!("an addition") };
    assert_eq!(added.metadata.uid.as_deref(), Some(foreign));
    assert_eq!(pod::annotation(added, pod::ANNOTATION_HASH), Some(foreign));
    // The running pod may vanish: the uid is the pod's now.
    assert_eq!(sources.set(SourceKind::File, reading(&[&pod]), UnixNanos(1), &none), []);
    let changed = decode(&GOOD.replace("busybox", "busybox:2")).expect("a pod");
    let updates = sources.set(SourceKind::File, reading(&[&changed]), UnixNanos(1), &none);
    assert_eq!(kinds(&updates), ["remove", "add"]);
    let SourceUpdate::Add(own) = &updates[1] else { panic!("an addition") };
    assert_eq!(own.metadata.uid, changed.metadata.uid);
}

#[test]
fn repeated_pod_object_keeps_its_adopted_uid_and_causes_no_update() {
    let foreign = "4af1cdbcca19c224c1ba02493adc56a0";
    let adopt = |_: &Pod, _: UnixNanos| Some(PodUid::from(foreign));
    let mut sources = PodSources::new([SourceKind::File]);
    let mut set =
        |reading, adopt: &RunningUid| sources.set(SourceKind::File, reading, UnixNanos(1), adopt);
    let uid = |update: &SourceUpdate| update.pod().and_then(|pod| pod.metadata.uid.clone());
    let read = reading(&[&decode(GOOD).expect("a pod")]);
    assert_eq!(uid(&set(read.clone(), &adopt)[0]).as_deref(), Some(foreign));
    assert_eq!(set(read.clone(), &none), [], "the same object");
    let equal = reading(&[&read.pods[0].0]);
    assert_eq!(set(equal, &none), [], "another one that says the same");
    assert_eq!(set(read, &none), [], "the first one again");
    let gone = set(SourceReading::default(), &none);
    assert_eq!((kinds(&gone), uid(&gone[0]).as_deref()), (vec!["remove"], Some(foreign)));
}

#[test]
fn a_pod_once_wanted_under_our_uid_is_never_renamed() {
    let adopt = |_: &Pod, _: UnixNanos| Some(PodUid::from("4af1cdbcca19c224c1ba02493adc56a0"));
    let pod = decode(GOOD).expect("a pod");
    let mut sources = PodSources::new([SourceKind::File]);
    sources.set(SourceKind::File, reading(&[&pod]), UnixNanos(1), &none);
    assert_eq!(sources.set(SourceKind::File, reading(&[&pod]), UnixNanos(1), &adopt), []);
}

#[test]
fn pods_of_the_api_server_are_reconciled_deleted_and_removed() {
    let mut sources = PodSources::new([SourceKind::Api]);
    let mut pod = decode(GOOD).expect("a pod");
    pod.metadata.annotations = None;
    let set = |sources: &mut PodSources, pod: &Pod| {
        sources.set(SourceKind::Api, reading(&[pod]), UnixNanos(1), &none)
    };
    assert_eq!(kinds(&set(&mut sources, &pod)), ["add", "ready"]);
    pod.status.get_or_insert_default().message = Some("theirs".into());
    assert_eq!(kinds(&set(&mut sources, &pod)), ["reconcile"]);
    pod.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(UnixNanos(5).to_timestamp()));
    assert_eq!(kinds(&set(&mut sources, &pod)), ["delete"]);
    let gone = sources.set(SourceKind::Api, SourceReading::default(), UnixNanos(1), &none);
    assert_eq!(kinds(&gone), ["remove"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_bytes_make_the_manifest_reader_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..512)
    ) {
        fuzz_manifest(&bytes);
    }

    #[test]
    fn no_damage_to_a_manifest_makes_its_reader_panic(
        at in 0usize..200, cut in 0usize..40, paste in "[ -~\\n\\t]{0,24}|&a|\\*a|\\{\\[|<<: \\*a"
    ) {
        let base = format!(
            "{GOOD}    resources: {{limits: {{cpu: 1, memory: 1Gi}}}}\n    \
             ports: [{{containerPort: 80}}]\n"
        );
        let start = at.min(base.len());
        let end = (start + cut).min(base.len());
        fuzz_manifest(format!("{}{paste}{}", &base[..start], &base[end..]).as_bytes());
    }
}

#[test]
fn nesting_and_aliases_are_bounded() {
    fuzz_manifest("[".repeat(100_000).as_bytes());
    fuzz_manifest("{a: ".repeat(100_000).as_bytes());
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..30 {
        let alias = format!("*a{}", level - 1);
        bomb.push_str(&format!("a{level}: &a{level} [{}]\n", vec![alias; 8].join(", ")));
    }
    fuzz_manifest(format!("apiVersion: v1\nkind: Pod\n{bomb}").as_bytes());
}

#[test]
fn values_are_bounded_and_anchors_are_not() {
    let anchored = |count: usize| {
        let labels = (0..count).map(|n| format!("k{n}: &b{n} v, ")).collect::<String>();
        decode(&GOOD.replace("  name: web\n", &format!("  name: web\n  labels: {{{labels}}}\n")))
    };
    assert!(anchored(20_000).is_ok(), "{:?}", anchored(20_000).err());
    let Err(ManifestError::Syntax { message, .. }) = anchored(60_000) else {
        panic!("{:?}", anchored(60_000).map(|_| ()));
    };
    assert!(message.contains("more than 100000 values"), "{message}");
}

/// Manifests as templates and tools write them, and the kubelet's result.
#[test]
fn manifests_accepted_by_the_kubelet_decode_to_the_kubelets_pod() {
    let with = |fields: &str| decode(&format!("{GOOD}{fields}")).expect(fields);
    assert_eq!(with("---\n# nothing follows\n"), with(""));
    let modes = with("  volumes:\n  - name: v\n    downwardAPI: {defaultMode: 0400}\n");
    let volumes = pod::spec(&modes).volumes.clone().expect("volumes");
    assert_eq!(volumes[0].downward_api.clone().expect("a source").default_mode, Some(0o400));
    let empty =
        with("    terminationMessagePath: \"\"\n  restartPolicy: \"\"\n  nodeSelector: ~\n");
    let spec = pod::spec(&empty);
    assert_eq!(spec.restart_policy.as_deref(), Some("Always"));
    let path = spec.containers[0].termination_message_path.as_deref();
    assert_eq!(path, Some("/dev/termination-log"));
    let commit = with("    env: [{name: COMMIT, value: 12e34567}]\n");
    let env = pod::spec(&commit).containers[0].env.clone().expect("env");
    assert_eq!(env[0].value.as_deref(), Some("12e34567"));
    let last =
        with("    image: second\n  hostNetwork: yes\n  terminationGracePeriodSeconds: 1e1\n");
    let spec = pod::spec(&last);
    assert_eq!(spec.containers[0].image.as_deref(), Some("second"));
    assert_eq!((spec.host_network, spec.termination_grace_period_seconds), (Some(true), Some(10)));
    let units = GOOD.encode_utf16().flat_map(u16::to_le_bytes);
    let wide: Vec<u8> = [0xff, 0xfe].into_iter().chain(units).collect();
    assert_eq!(decode_pod(&wide, &origin("/m/web.yaml"), "node"), Ok(with("")));
    // A flow map at the start is JSON, where names stand in quotes.
    shown("{apiVersion: v1, kind: Pod, metadata: {name: a}}");
}
