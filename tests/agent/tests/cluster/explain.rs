//! `pintle-agent explain`, `pods` and `timeline` for pods of the API, as used by an engineer on
//! call.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::{With, condition, phase, pod, script};
use pintle_testbed::node::agent_binary;
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};
use xtask::shell;

/// Runs a command of the agent on the node and returns its output.
pub fn ask(test: &TestCluster, args: &[&str]) -> Result<String> {
    let mut command = test.cluster().node_command(NODE, Path::new(agent_binary()))?;
    shell::capture(command.args(args))
}

/// Waits until the explanation has this reason; its sentence and its remedy.
fn explained(test: &TestCluster, name: &str, reason: &str) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    until(LONG, &format!("{name} is explained by {reason}"), || {
        let answer = ask(test, &["explain", name, "-o", "json"])?;
        let answer: Value = serde_json::from_str(&answer).context("the answer is JSON")?;
        ensure!(answer["reason"] == reason, "{answer:#}");
        Ok((text(&answer["sentence"]), text(&answer["remedy"])))
    })
}

fn told(test: &TestCluster, name: &str, reason: &str, sentence: &str, remedy: &str) {
    until(LONG, &format!("{name}: {sentence}"), || {
        let (said, advice) = explained(test, name, reason);
        ensure!(said.contains(sentence) && advice.contains(remedy), "{said} remedy: {advice}");
        Ok(())
    });
}

fn here(manifest: Value) -> Value {
    manifest.with_spec("nodeName", json!(NODE))
}

fn sleeping(name: &str) -> Value {
    here(pod(name, &[script("c", "trap 'exit 0' TERM; while :; do sleep 0.1; done")]))
}

/// Pods that do not get as far as running, and why.
fn apply_troubled(test: &TestCluster) {
    let volume = json!([{"name": "v", "secret": {"secretName": "nope"}}]);
    test.apply(&sleeping("no-secret").with_spec("volumes", volume));
    let huge = json!({"requests": {"cpu": "900"}});
    test.apply(&here(pod("too-big", &[script("c", "sleep 1").with("resources", huge)])));
    let elsewhere = script("c", "sleep 1").with("image", json!("registry.invalid/none:1"));
    let elsewhere = elsewhere.with("imagePullPolicy", json!("IfNotPresent"));
    test.apply(&here(pod("no-image", &[elsewhere])));
    test.apply(&here(pod("crashes", &[script("c", "echo no such table; exit 3")])));
    let hook = json!({"postStart": {"exec": {"command": ["sleep", "1000"]}}});
    test.apply(&here(pod("hooked", &[script("c", "sleep 1000").with("lifecycle", hook)])));
}

#[test]
fn explain_names_the_cause_that_blocks_a_pod_also_after_an_agent_restart() {
    let test = TestCluster::take();
    apply_troubled(&test);
    told(
        &test,
        "no-secret",
        "FailedMount",
        "Waits for volume v",
        "create secret nope in namespace default",
    );
    told(&test, "too-big", "OutOfcpu", "Was refused by this node (OutOfcpu)", "request less");
    told(&test, "no-image", "ImagePullBackOff", "registry.invalid/none:1", "registry");
    told(&test, "crashes", "CrashLoopBackOff", "ended with exit code 3", "");
    told(&test, "hooked", "PostStartHookRuns", "postStart hook of container c has run", "hook");
    let (hook, _) = explained(&test, "hooked", "PostStartHookRuns");
    assert!(hook.contains("(pid "), "{hook}");

    // A restarted agent knows only the API server's and the runtime's state.
    test.cluster().kill("n1-agent").expect("the agent dies");
    test.cluster().start("n1-agent").expect("the agent starts");
    told(&test, "too-big", "OutOfcpu", "Was refused by this node (OutOfcpu)", "request less");
    told(&test, "no-secret", "FailedMount", "secret \"nope\" not found", "create secret nope");
    told(&test, "crashes", "CrashLoopBackOff", "ended with exit code 3", "");
}

#[test]
fn explain_names_the_finalizer_or_container_that_delays_a_pods_deletion() {
    let test = TestCluster::take();
    let mut kept = sleeping("kept");
    kept["metadata"]["finalizers"] = json!(["pintle.test/keep"]);
    test.apply(&kept);
    let stubborn = script("c", "trap '' TERM; while :; do sleep 0.1; done");
    let stubborn = here(pod("stubborn", &[stubborn]));
    test.apply(&stubborn.with_spec("terminationGracePeriodSeconds", json!(600)));
    test.apply(&sleeping("steady"));
    for name in ["kept", "stubborn", "steady"] {
        test.pod_until(name, "is ready", |p| condition(p, "Ready"));
    }

    test.kubectl(&["delete", "pod", "kept", "stubborn", "--wait=false"]).expect("deleted");
    let (sentence, _) = explained(&test, "stubborn", "Terminating");
    assert!(sentence.contains("container c is still running"), "{sentence}");
    assert!(sentence.contains("grace"), "{sentence}");
    told(&test, "kept", "WaitingForFinalizers", "finalizer pintle.test/keep", "finalizer");
    let free = json!({"metadata": {"finalizers": null}}).to_string();
    test.kubectl(&["patch", "pod", "kept", "--type=merge", "-p", &free]).expect("patched");
    test.pod_gone("kept");
    test.kubectl(&["delete", "pod", "stubborn", "--force", "--grace-period=0"]).expect("forced");

    // Without an API server the answers have all that the agent knows, and the time of the outage.
    let before = test.pod("steady").expect("an answer").expect("a pod");
    let text = ask(&test, &["timeline", "steady"]).expect("a timeline");
    for what in ["Seen", "StatusWritten", "Started", "generation 1"] {
        assert!(text.contains(what), "{what} is missing: {text}");
    }
    test.cluster().stop("apiserver").expect("the API server stops");
    until(LONG, "the outage is reported", || {
        let pods = ask(&test, &["pods"])?;
        ensure!(pods.contains("no pods are delivered by the API server"), "{pods}");
        Ok(())
    });
    test.cluster().start("apiserver").expect("the API server starts");
    until(LONG, "the outage is over", || {
        let pods = ask(&test, &["pods"])?;
        ensure!(!pods.contains("API server:"), "{pods}");
        Ok(())
    });
    assert_eq!(phase(&before), "Running");
}

#[test]
fn explain_finds_a_pod_by_name_prefix_or_uid_and_refuses_an_ambiguous_prefix() {
    let test = TestCluster::take();
    for name in ["shop-web-1", "shop-web-2", "shop-db"] {
        test.apply(&sleeping(name));
    }
    let found = test.pod_until("shop-db", "is ready", |p| condition(p, "Ready"));
    let uid = found.metadata.uid.expect("a uid");
    for asked in ["shop-db", "default/shop-db", "shop-d", &uid, &uid[..13]] {
        let text = ask(&test, &["explain", asked]).expect("an explanation");
        assert!(text.starts_with("default/shop-db: Runs and is ready."), "{asked}: {text}");
    }
    let refused = |asked: &str| match ask(&test, &["explain", asked]) {
        Ok(text) => bail!("{asked}: {text}"),
        Err(error) => Ok(format!("{error:#}")),
    };
    let several = refused("shop-web").expect("a refusal");
    assert!(several.contains("shop-web-1") && several.contains("shop-web-2"), "{several}");
    let none = refused("shop-dv").expect("a refusal");
    assert!(none.contains("did you mean default/shop-db?"), "{none}");
}
