//! The API server away for a while: pods live and end without it, and nothing of that is lost.

use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use pintle_testbed::cluster::{AGENT, NODE, TestCluster};
use pintle_testbed::manifest::{
    With, condition, container_id, is_running, last_end, phase, pod, restarts, script, status_of,
};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::work::Bystander;

/// Seconds of the long outage; `PINTLE_OUTAGE` names others.
const OUTAGE_SECONDS: u64 = 40;

/// A folder of the host for messages to and from pods: it outlives their volumes.
fn notes() -> TempDir {
    tempfile::tempdir().expect("a folder that the node sees too")
}

/// Ends with this code once a file is in its folder, and leaves a line there for each start.
fn until_told(notes: &TempDir, name: &str, policy: &str, code: u8) -> Value {
    let folder = json!({"path": notes.path().join(name), "type": "DirectoryOrCreate"});
    let text = format!(
        "echo started >> /v/starts; until [ -e /v/end ]; do sleep 0.05; done; rm /v/end; exit {code}"
    );
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    pod(name, &[script("c", &text).with("volumeMounts", mounts)])
        .with_spec("restartPolicy", json!(policy))
        .with_spec("nodeName", json!(NODE))
        .with_spec("volumes", json!([{"name": "v", "hostPath": folder}]))
}

fn started(test: &TestCluster, name: &str) -> Pod {
    test.pod_until(name, "runs", |p| is_running(p, "c") && condition(p, "Ready"))
}

/// Lets the container end and waits until the runtime says so; the API server is not asked.
fn end(test: &TestCluster, notes: &TempDir, pod: &Pod) {
    let (id, name) = (container_id(pod, "c"), pod.metadata.name.clone().expect("a name"));
    fs::write(notes.path().join(name).join("end"), "").expect("the folder is there");
    until(LONG, "the container ends", || {
        ensure!(!test.running()?.contains(&id), "{id} still runs");
        Ok(())
    });
}

#[test]
fn container_exits_during_an_api_server_outage_are_reported_after_the_outage() {
    let (test, notes) = (TestCluster::take(), notes());
    for (name, policy, code) in
        [("fails", "Never", 3), ("ends", "OnFailure", 0), ("again", "Always", 5)]
    {
        test.apply(&until_told(&notes, name, policy, code));
    }
    let [fails, ends, again] = ["fails", "ends", "again"].map(|name| started(&test, name));

    test.cluster().stop("apiserver").expect("the API server stops");
    for pod in [&fails, &ends, &again] {
        end(&test, &notes, pod);
    }
    // A restart needs no API server either.
    let starts = notes.path().join("again/starts");
    until(LONG, "the container runs again", || {
        let lines = fs::read_to_string(&starts)?.lines().count();
        ensure!(lines == 2, "{lines} starts");
        Ok(())
    });
    test.cluster().start("apiserver").expect("the API server starts");

    let fails = test.pod_until("fails", "has failed", |p| phase(p) == "Failed");
    assert_eq!(last_end(&fails, "c"), Some((3, "Error")));
    let ends = test.pod_until("ends", "has succeeded", |p| phase(p) == "Succeeded");
    assert_eq!(last_end(&ends, "c"), Some((0, "Completed")));
    let again = test.pod_until("again", "was restarted", |p| restarts(p, "c") == 1);
    assert_eq!(last_end(&again, "c"), Some((5, "Error")));
}

#[test]
fn pod_deleted_while_the_agent_is_down_is_stopped_after_the_agent_restarts() {
    let (test, notes) = (TestCluster::take(), notes());
    test.apply(&until_told(&notes, "deleted", "Always", 0));
    let pod = started(&test, "deleted");
    let id = container_id(&pod, "c");

    test.cluster().kill("n1-agent").expect("the agent dies");
    test.kubectl(&["delete", "pod", "deleted", "--wait=false"]).expect("deleted");
    assert!(test.running().expect("a list").contains(&id), "no agent runs that could stop it");
    test.cluster().start("n1-agent").expect("the agent starts");

    test.pod_gone("deleted");
    assert!(!test.running().expect("a list").contains(&id), "gone only after its end");
}

/// A pod of the long outage: how it ends and what must be known of that later.
struct Case<'a> {
    notes: &'a TempDir,
    pod: Pod,
    name: &'static str,
    end: (i32, &'static str),
    /// Between which seconds of the epoch it ended.
    ended_after: i64,
    ended_by: i64,
}

impl<'a> Case<'a> {
    fn start(
        test: &TestCluster,
        notes: &'a TempDir,
        name: &'static str,
        policy: &str,
        code: u8,
    ) -> Self {
        test.apply(&until_told(notes, name, policy, code));
        let reason = if code == 0 { "Completed" } else { "Error" };
        let pod = started(test, name);
        Self { notes, pod, name, end: (i32::from(code), reason), ended_after: 0, ended_by: 0 }
    }

    fn end(&mut self, test: &TestCluster) {
        self.ended_after = now();
        end(test, self.notes, &self.pod);
        self.ended_by = now();
    }

    /// SIGKILL for the container's processes, as from a user of the node.
    fn kill(&mut self, test: &TestCluster) {
        self.ended_after = now();
        let id = container_id(&self.pod, "c");
        let mut ctr = test.cluster().node_command(NODE, "ctr".as_ref()).expect("a command");
        ctr.args(["-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", &id]);
        assert!(ctr.status().expect("ctr runs").success());
        until(LONG, "the container is dead", || {
            ensure!(!test.running()?.contains(&id), "{id} still runs");
            Ok(())
        });
        self.end = (137, "Error");
        self.ended_by = now();
    }

    fn lines(&self, file: &str) -> Vec<String> {
        let path = self.notes.path().join(self.name).join(file);
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The API server has its end, and when it was; it is the same pod.
    fn check(&self, test: &TestCluster) {
        let is_told = |p: &Pod| last_end(p, "c") == Some(self.end);
        let pod = test.pod_until(self.name, &format!("has ended with {:?}", self.end), is_told);
        assert_eq!(pod.metadata.uid, self.pod.metadata.uid);
        let told = finished_at(&pod).expect("the end has a time");
        let true_times = self.ended_after..=self.ended_by;
        assert!(true_times.contains(&told), "{}: {told} is not in {true_times:?}", self.name);
    }
}

fn finished_at(pod: &Pod) -> Option<i64> {
    let status = status_of(pod, "c")?;
    let states = [status.state.as_ref(), status.last_state.as_ref()];
    let ended = states.into_iter().flatten().find_map(|s| s.terminated.as_ref())?;
    Some(ended.finished_at.as_ref()?.0.as_second())
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(now.as_secs()).expect("it fits")
}

#[test]
fn long_api_server_outage_with_an_agent_restart_loses_no_exit_and_stops_no_pod() {
    let (test, notes) = (TestCluster::take(), notes());
    let bystander = Bystander::start(&test, "bystander");
    let mut early = Case::start(&test, &notes, "early", "Never", 3);
    let mut killed = Case::start(&test, &notes, "killed", "Never", 0);
    let mut between = Case::start(&test, &notes, "between", "Never", 4);
    let mut late = Case::start(&test, &notes, "late", "OnFailure", 0);
    let mut again = Case::start(&test, &notes, "again", "Always", 5);
    let mut orphan = Case::start(&test, &notes, "orphan", "Always", 6);

    test.cluster().stop("apiserver").expect("the API server stops");
    let (begin, length) = (Instant::now(), outage());
    early.end(&test);
    killed.kill(&test);
    again.end(&test);
    // A restart needs no API server.
    until(LONG, "the container runs again", || {
        ensure!(again.lines("starts").len() == 2, "{:?}", again.lines("starts"));
        Ok(())
    });
    test.cluster().kill(AGENT).expect("the agent dies");
    between.end(&test);
    test.cluster().start(AGENT).expect("the agent starts");
    // It does not know its pods now: it leaves alone what runs.
    late.end(&test);
    orphan.end(&test);
    // The length is what is tried: leases, caches and back-offs run out.
    std::thread::sleep(length.saturating_sub(begin.elapsed()));
    let running = test.containers().expect("a list").into_iter().filter(|c| c.runs);
    let running: Vec<String> = running.map(|c| c.pod).collect();
    for name in ["again", "bystander"] {
        assert!(running.iter().any(|pod| pod == name), "{name} was stopped: {running:?}");
    }
    test.cluster().start("apiserver").expect("the API server starts");
    restart_what_lost_its_lease(&test);

    for case in [&early, &killed, &between, &late, &again, &orphan] {
        case.check(&test);
    }
    for (case, phase_now) in [(&early, "Failed"), (&killed, "Failed"), (&between, "Failed")] {
        test.pod_until(case.name, phase_now, |p| phase(p) == phase_now);
    }
    test.pod_until("late", "Succeeded", |p| phase(p) == "Succeeded");
    for case in [&again, &orphan] {
        let pod = test.pod_until(case.name, "runs again", |p| condition(p, "Ready"));
        let starts = i32::try_from(case.lines("starts").len()).expect("few");
        assert_eq!((restarts(&pod, "c"), starts), (1, 2), "{}", case.name);
    }
    for case in [&early, &killed, &between, &late] {
        assert_eq!(case.lines("starts").len(), 1, "{} ran once", case.name);
    }
    bystander.check(&test);
}

fn outage() -> Duration {
    let given = std::env::var("PINTLE_OUTAGE").ok();
    let given = given.map(|text| text.parse().context("PINTLE_OUTAGE is a number of seconds"));
    Duration::from_secs(given.map_or(OUTAGE_SECONDS, |given| given.expect("a number")))
}

/// Controllers and scheduler end when they cannot renew their leases.
fn restart_what_lost_its_lease(test: &TestCluster) {
    for part in ["controllers", "scheduler"] {
        if test.cluster().pid(part).is_none() {
            test.cluster().start(part).expect("it starts");
        }
    }
}
