//! Removal of wanted pods' garbage, through the whole core.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::eviction::Settings as EvictionSettings;
use crate::eviction::observed::{DiskLayout, Freed, Observation, ResourceReading};
use crate::eviction::signal::Signal;
use crate::eviction::threshold::{Threshold, ThresholdLevel};
use crate::garbage::containers::DeadLimits;
use crate::status::testing;
use crate::worker::testing::{Host, of_folder, plain, small_settings};
use crate::worker::{PodsInput, ReadFailure, Settings};

const LONG: Duration = Duration::from_secs(600);

fn settings(per_container: Option<usize>) -> Settings {
    let garbage = DeadLimits { per_container, ..DeadLimits::default() };
    Settings { garbage, ..small_settings() }
}

/// Containers of the pod in the runtime, the newest first, as `attempt:state`.
fn left(host: &Host) -> String {
    let containers = host.records["p"].containers.iter();
    let shown: Vec<_> = containers.map(|c| format!("{}:{:?}", c.restart_count, c.state)).collect();
    shown.join(" ")
}

/// Ends the container this many times; it runs again after each end.
fn crash(host: &mut Host, times: u32) {
    for _ in 0..times {
        host.end("p", "c", 1);
        host.wait(LONG);
    }
}

/// The runtime is listed once more, late enough for a check of the rest.
fn collect(host: &mut Host) {
    host.wait(Duration::from_secs(61));
    host.send(PodsInput::Lost);
}

fn crashed(per_container: Option<usize>, pod: Pod, times: u32) -> Host {
    let mut host = Host::with(settings(per_container));
    host.want(pod);
    crash(&mut host, times);
    host
}

/// The API server's copy of the pod.
fn ended(phase: &str, reason: &str) -> Pod {
    let mut pod = plain("p", "100m");
    let status = json!({"phase": phase, "reason": reason});
    pod.status = serde_json::from_value(status).expect("a status");
    pod.spec.as_mut().expect("a spec").restart_policy = Some("Never".to_owned());
    pod
}

#[test]
fn crash_loop_leaves_as_many_dead_containers_as_the_limit_allows() {
    for (limit, expected) in [
        (Some(1), "4:Running 3:Exited"),
        (Some(3), "4:Running 3:Exited 2:Exited 1:Exited"),
        (Some(0), "4:Running"),
        // As for the kubelet, which removes all but one when a container is started again.
        (None, "4:Running 3:Exited"),
    ] {
        let mut host = crashed(limit, plain("p", "100m"), 4);
        collect(&mut host);
        assert_eq!(left(&host), expected, "{limit:?}");
        let last = &host.status("p")["containerStatuses"][0]["lastState"]["terminated"];
        assert_eq!(last["exitCode"], 1, "{limit:?}: people see the last end all the same");
    }
}

#[test]
fn the_last_end_stays_while_the_next_start_waits() {
    let mut host = crashed(Some(0), plain("p", "100m"), 3);
    // It is started again at once after the first end, and waits after the second.
    host.end("p", "c", 1);
    host.end("p", "c", 1);
    host.send(PodsInput::Lost);
    assert_eq!(left(&host), "4:Exited");
    host.wait(LONG);
    assert_eq!(left(&host), "5:Running 4:Exited", "its count goes on");
}

#[test]
fn garbage_collection_waits_until_all_sources_are_ready() {
    let mut host = crashed(Some(3), plain("p", "100m"), 4);
    host.pods = super::Pods::new(settings(Some(0)));
    host.send(PodsInput::Tick);
    host.want(plain("p", "100m"));
    for _ in 0..3 {
        collect(&mut host);
    }
    assert_eq!(left(&host), "4:Running 3:Exited", "as much as a start leaves");
    host.send(PodsInput::SourcesReady);
    collect(&mut host);
    assert_eq!(left(&host), "4:Running");
}

#[test]
fn containers_of_a_finished_pod_are_removed_after_its_source_knows_the_end() {
    let ended_here = |pod: Pod| {
        let mut host = Host::with(settings(Some(0)));
        host.want(pod);
        host.end("p", "c", 0);
        collect(&mut host);
        host
    };
    let mut host = ended_here(ended("Running", ""));
    assert_eq!(left(&host), "0:Exited", "after a crash of the agent it would be run again");
    let pod = Arc::new(ended("Succeeded", ""));
    host.send(PodsInput::Reconciled { uid: "p".into(), pod });
    collect(&mut host);
    assert_eq!((left(&host), host.records["p"].sandboxes.len()), (String::new(), 1));
    assert_eq!(host.status("p")["phase"], "Succeeded");
    let end = &host.status("p")["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(end["exitCode"], 0, "people see its end all the same");
    let mut host = ended_here(of_folder(ended("Running", ""), "p"));
    let pod = Arc::new(of_folder(ended("Succeeded", ""), "p"));
    host.send(PodsInput::Reconciled { uid: "p".into(), pod });
    collect(&mut host);
    assert_eq!(left(&host), "0:Exited", "only its container shows that a static pod is over");
}

#[test]
fn evicted_or_preempted_pod_leaves_no_container_and_no_sandbox() {
    for (reason, expected) in [("Evicted", (0, 0)), ("Preempting", (0, 0)), ("Terminated", (1, 1))]
    {
        let mut host = Host::with(settings(Some(1)));
        host.want(ended("Running", ""));
        host.end("p", "c", 1);
        let pod = Arc::new(ended("Failed", reason));
        host.send(PodsInput::Reconciled { uid: "p".into(), pod });
        let left = |host: &Host| {
            let record = &host.records["p"];
            (record.containers.len(), record.sandboxes.len())
        };
        assert_eq!(left(&host), expected, "{reason}: at once");
        collect(&mut host);
        assert_eq!(left(&host), expected, "{reason}");
        assert_eq!(host.status("p")["phase"], "Failed", "{reason}");
    }
}

#[test]
fn replaced_sandbox_is_removed() {
    let mut host = crashed(Some(1), plain("p", "100m"), 0);
    let record = host.records.get_mut("p").expect("a record");
    let mut old = testing::sandbox();
    (old.id, old.ready) = ("old".into(), false);
    record.sandboxes[0].attempt = 1;
    record.sandboxes.push(old);
    collect(&mut host);
    collect(&mut host);
    let left: Vec<_> = host.records["p"].sandboxes.iter().map(|s| s.ready).collect();
    assert_eq!(left, [true]);
}

#[test]
fn failing_list_of_the_runtime_is_reported_once_a_minute() {
    let mut host = Host::with(settings(Some(1)));
    let mut fail = |after: u64| {
        host.now = host.now.plus(Duration::from_secs(after));
        let result = Err(ReadFailure("rpc error: code = Unavailable desc = gone".to_owned()));
        host.send(PodsInput::Listed { stamp: 1, result });
        host.take()
    };
    let told = "rpc error: code = Unavailable desc = gone";
    assert_eq!(fail(61), told);
    assert_eq!(fail(30), "");
    assert_eq!(fail(31), told);
}

/// A node without room on its disk, and two dead containers of a pod that is over.
fn short_of_disk() -> Host {
    let level = ThresholdLevel::parse("10%").expect("a level");
    let (signal, grace) = (Signal::NodeFsAvailable, Duration::ZERO);
    let eviction = EvictionSettings {
        thresholds: vec![Threshold { signal, level, grace, min_reclaim: None }],
        transition: Duration::from_secs(300),
        grace_seconds_max: 60,
        local_storage: false,
        stall_min: None,
    };
    let mut host = Host::with(Settings { eviction, ..settings(Some(5)) });
    host.want(ended("Running", ""));
    host.end("p", "c", 1);
    host.send(PodsInput::Reconciled { uid: "p".into(), pod: Arc::new(ended("Failed", "")) });
    collect(&mut host);
    assert_eq!(left(&host), "0:Exited", "the limits leave it");
    host
}

fn tell_full(host: &mut Host) {
    let reading = ResourceReading { available: 1, capacity: 1000, at: host.now.wall };
    let observation = Observation {
        at: host.now.wall,
        readings: [(Signal::NodeFsAvailable, reading)].into(),
        layout: DiskLayout::default(),
        stall: None,
        cache: std::collections::BTreeMap::new(),
        pods: None,
    };
    let (ticket, ..) = host.looks.pop().expect("a look was asked for");
    host.send(PodsInput::Pressure { ticket, observation: Box::new(observation) });
}

#[test]
fn eviction_has_dead_containers_removed_before_images() {
    let mut host = short_of_disk();
    host.lingers = true;
    tell_full(&mut host);
    assert_eq!(host.reclaims, [0; 0], "the removal of a container is under way");
    host.finish("p");
    assert_eq!((left(&host), host.reclaims.len()), (String::new(), 1));
    assert_eq!(host.records["p"].sandboxes.len(), 0, "nothing of it is needed");
    let ticket = host.reclaims[0];
    let freed = host.pods.with_containers(ticket, &Freed { images: 2, ..Freed::default() });
    assert_eq!((freed.containers, freed.images), (1, 2));
    let other = host.pods.with_containers(ticket, &Freed::default());
    assert_eq!(other.containers, 0, "counted once");
}

#[test]
fn images_do_not_wait_for_ever_for_a_container_that_cannot_be_removed() {
    let mut host = short_of_disk();
    host.lingers = true;
    tell_full(&mut host);
    host.wait(Duration::from_secs(59));
    assert_eq!(host.reclaims, [0; 0]);
    assert!(
        host.pods.next_wake().is_some_and(|at| at.since(host.now.mono) <= Duration::from_secs(2))
    );
    host.wait(Duration::from_secs(2));
    assert_eq!(host.reclaims.len(), 1);
}
