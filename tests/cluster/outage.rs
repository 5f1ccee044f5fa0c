//! The API server away for a while: pods live and end without it, and nothing of that is lost.

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use pintle_tests::cluster::{NODE, TestCluster};
use pintle_tests::manifest::{
    With, condition, container_id, is_running, last_end, phase, pod, restarts, script,
};
use pintle_tests::{LONG, until};
use serde_json::{Value, json};

/// Ends with this code once a file is in its volume, and leaves a line there for each start.
fn until_told(name: &str, policy: &str, code: u8) -> Value {
    let text = format!(
        "echo started >> /v/starts; until [ -e /v/end ]; do sleep 0.05; done; rm /v/end; exit {code}"
    );
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    pod(name, &[script("c", &text).with("volumeMounts", mounts)])
        .with_spec("restartPolicy", json!(policy))
        .with_spec("nodeName", json!(NODE))
        .with_spec("volumes", json!([{"name": "v", "emptyDir": {}}]))
}

fn started(test: &TestCluster, name: &str) -> Pod {
    test.pod_until(name, "runs", |p| is_running(p, "c") && condition(p, "Ready"))
}

/// Lets the container end and waits until the runtime says so; the API server is not asked.
fn end(test: &TestCluster, pod: &Pod) {
    let id = container_id(pod, "c");
    std::fs::write(test.empty_dir(pod, "v").join("end"), "").expect("the volume is there");
    until(LONG, "the container ends", || {
        ensure!(!test.running()?.contains(&id), "{id} still runs");
        Ok(())
    });
}

#[test]
fn what_ends_while_the_api_server_is_away_is_told_when_it_is_back() {
    let test = TestCluster::take();
    for (name, policy, code) in [("fails", "Never", 3), ("ends", "OnFailure", 0)] {
        test.apply(&until_told(name, policy, code));
    }
    test.apply(&until_told("again", "Always", 5));
    let [fails, ends, again] = ["fails", "ends", "again"].map(|name| started(&test, name));

    test.cluster().stop("apiserver").expect("the API server stops");
    for pod in [&fails, &ends, &again] {
        end(&test, pod);
    }
    // A restart needs no API server either.
    let starts = test.empty_dir(&again, "v").join("starts");
    until(LONG, "the container runs again", || {
        let lines = std::fs::read_to_string(&starts)?.lines().count();
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
fn a_pod_deleted_while_the_agent_is_away_is_stopped_when_it_is_back() {
    let test = TestCluster::take();
    test.apply(&until_told("deleted", "Always", 0));
    let pod = started(&test, "deleted");
    let id = container_id(&pod, "c");

    test.cluster().kill("n1-agent").expect("the agent dies");
    test.kubectl(&["delete", "pod", "deleted", "--wait=false"]).expect("deleted");
    assert!(test.running().expect("a list").contains(&id), "nobody is there to stop it");
    test.cluster().start("n1-agent").expect("the agent starts");

    test.pod_gone("deleted");
    assert!(!test.running().expect("a list").contains(&id), "gone only after its end");
}
