//! A pod's life on one node: order of its containers, restarts, hooks, deadlines, and
//! termination messages.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use pintle_testbed::TestNode;
use pintle_testbed::manifest::{
    With, condition, container, is_running, last_end, phase, pod, restarts, script, status_of,
    waiting_message, waiting_reason,
};
use pintle_testbed::node::NODE_NAME;
use serde_json::json;

use crate::support::{
    assert_order, ended, explained, lines, lines_until, log_until, remove_all, shared, sharing,
};

/// Says in `/shared/FILE` when it begins and when SIGTERM ends it.
fn recorder(name: &str, file: &str) -> serde_json::Value {
    let text = format!(
        "echo {name} begins >> /shared/{file}; \
         trap 'echo {name} ends >> /shared/{file}; exit 0' TERM; \
         while :; do sleep 0.1; done"
    );
    script(name, &text)
}

#[test]
fn init_containers_run_in_order_and_a_failing_one_blocks_the_rest() {
    let node = TestNode::usual();
    let init = |name: &str, text: &str| {
        script(
            name,
            &format!(
                "echo {name} begins >> /shared/init; {text}; echo {name} ends >> /shared/init"
            ),
        )
    };
    let manifest = pod("inits", &[recorder("main", "init")])
        .with_spec("initContainers", json!([init("one", "sleep 0.3"), init("two", "sleep 0.1")]));
    node.put("inits.json", &sharing(manifest, &node));
    // Fails twice, then succeeds: the main container has to wait for that.
    let stubborn = "echo try >> /shared/tries; [ $(wc -l < /shared/tries) -ge 3 ]";
    let manifest =
        pod("stubborn", &[script("main", "cat /shared/tries > /shared/seen; sleep 3600")])
            .with_spec("initContainers", json!([script("init", stubborn)]));
    node.put("stubborn.json", &sharing(manifest, &node));
    let manifest = pod("hopeless", &[script("main", "touch /shared/never; sleep 3600")])
        .with_spec("initContainers", json!([container("init", &["/box", "exit", "3"])]))
        .with_spec("restartPolicy", json!("Never"));
    node.put("hopeless.json", &sharing(manifest, &node));

    let inits = node.pod_until("inits", "is ready", |p| condition(p, "Ready"));
    assert_eq!(
        lines(&node, "init"),
        ["one begins", "one ends", "two begins", "two ends", "main begins"]
    );
    for name in ["one", "two"] {
        assert_eq!(ended(&inits, name).map(|e| e.exit_code), Some(0));
    }
    assert!(condition(&inits, "Initialized"));

    let hopeless = node.pod_until("hopeless", "has failed", |p| phase(p) == "Failed");
    assert_eq!(last_end(&hopeless, "init"), Some((3, "Error")));
    assert!(!crate::support::shared(&node).join("never").exists());
    explained(&node, "hopeless", &["init", "3"]);

    node.pod_until("stubborn", "waits for its init container", |p| {
        waiting_reason(p, "init") == Some("CrashLoopBackOff") && !condition(p, "Initialized")
    });
    let stubborn = node.pod_until("stubborn", "is ready", |p| condition(p, "Ready"));
    assert_eq!(restarts(&stubborn, "init"), 2);
    assert_eq!(lines_until(&node, "seen", 3), ["try", "try", "try"]);
    remove_all(&node);
}

#[test]
fn a_sidecar_starts_before_and_ends_after_the_main_container() {
    let node = TestNode::usual();
    let sidecar = |file| recorder("sidecar", file).with("restartPolicy", json!("Always"));
    let manifest = pod("served", &[recorder("main", "served")])
        .with_spec("initContainers", json!([sidecar("served")]))
        .with_spec("terminationGracePeriodSeconds", json!(20));
    node.put("served.json", &sharing(manifest, &node));
    // A pod that ends by itself takes its sidecar with it.
    let done = script("main", "echo main begins >> /shared/job; echo main ends >> /shared/job");
    let manifest = pod("job", &[done])
        .with_spec("initContainers", json!([sidecar("job")]))
        .with_spec("terminationGracePeriodSeconds", json!(20))
        .with_spec("restartPolicy", json!("Never"));
    node.put("job.json", &sharing(manifest, &node));

    let job = node.pod_until("job", "has succeeded", |p| phase(p) == "Succeeded");
    assert!(ended(&job, "sidecar").is_some());
    assert_eq!(lines(&node, "job"), ["sidecar begins", "main begins", "main ends", "sidecar ends"]);

    let served = node.pod_until("served", "is ready", |p| condition(p, "Ready"));
    assert!(is_running(&served, "sidecar"));
    node.remove("served.json");
    node.gone("served");
    assert_eq!(
        lines(&node, "served"),
        ["sidecar begins", "main begins", "main ends", "sidecar ends"]
    );
    remove_all(&node);
}

#[test]
fn a_crashing_container_is_started_after_pauses_that_double() {
    let node = TestNode::usual();
    // The host's uptime, in seconds with two decimals: one clock for all instances.
    let crash = "cut -d' ' -f1 /proc/uptime >> /shared/starts; exit 7";
    let neighbour = container("neighbour", &["/box", "pause"]);
    node.put("loop.json", &sharing(pod("loop", &[script("crash", crash), neighbour]), &node));
    node.pod_until("loop", "waits", |p| waiting_reason(p, "crash") == Some("CrashLoopBackOff"));
    explained(&node, "loop", &["crash", "7"]);
    let starts = lines_until(&node, "starts", 4);
    let at: Vec<f64> = starts.iter().map(|s| s.parse().expect("seconds")).collect();
    let gaps: Vec<f64> = at.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps[1] >= 10.0, "10 s before the second restart: {gaps:?}");
    assert!(gaps[2] >= 20.0, "20 s before the third: {gaps:?}");
    let looping = node.pod_until("loop", "counts", |p| restarts(p, "crash") >= 3);
    assert_eq!(last_end(&looping, "crash"), Some((7, "Error")));
    assert!(is_running(&looping, "neighbour"));
    assert_eq!(restarts(&looping, "neighbour"), 0);
    remove_all(&node);
}

#[test]
fn retry_command_ends_the_back_off_of_a_repaired_crash_loop() {
    let node = TestNode::usual();
    let main = "[ -e /shared/mended ] && exec /box pause; exit 7";
    node.put("mended.json", &sharing(pod("mended", &[script("c", main)]), &node));
    // It takes 10 and 20 s to reach a wait that is long enough to be cut short noticeably.
    let wait = Duration::from_secs(40);
    let third = |p: &Pod| waiting_message(p, "c").is_some_and(|m| m.starts_with("back-off 40s"));
    node.pod_until("mended", "waits for long", third);
    let full = format!("mended-{NODE_NAME}");
    std::fs::write(shared(&node).join("mended"), "").expect("written");
    let asked = Instant::now();
    let told = node.cli(&["retry", &full]).expect("answered");
    assert!(told.contains("container c would have waited "), "{told}");
    assert!(told.contains("(CrashLoopBackOff)"), "{told}");
    node.pod_until("mended", "runs", |p| is_running(p, "c"));
    assert!(asked.elapsed() < wait * 3 / 4, "{:?}", asked.elapsed());
    let idle = node.cli(&["retry", &full]).expect("answered");
    assert!(idle.contains("had nothing to wait for"), "{idle}");
    let wrong = node.cli(&["retry", "nobody"]).expect_err("there is no such pod");
    assert!(format!("{wrong:#}").contains("this node has no pod nobody"), "{wrong:#}");
    remove_all(&node);
}

#[test]
fn restart_policies_lead_to_succeeded_failed_or_another_try() {
    let node = TestNode::usual();
    let exits = |name: &str, policy: &str, code: &str| {
        pod(name, &[container("c", &["/box", "exit", code])])
            .with_spec("restartPolicy", json!(policy))
    };
    node.put("never-ok.json", &exits("never-ok", "Never", "0"));
    node.put("never-bad.json", &exits("never-bad", "Never", "4"));
    node.put("failure-ok.json", &exits("failure-ok", "OnFailure", "0"));
    let second = "echo try >> /shared/second; [ $(wc -l < /shared/second) -ge 2 ]";
    let manifest =
        pod("failure-bad", &[script("c", second)]).with_spec("restartPolicy", json!("OnFailure"));
    node.put("failure-bad.json", &sharing(manifest, &node));
    node.put("always.json", &exits("always", "Always", "0"));
    let sleeps = pod("deadline", &[container("c", &["/box", "pause"])])
        .with_spec("activeDeadlineSeconds", json!(2));
    node.put("deadline.json", &sleeps);

    for (name, wanted, end, count) in [
        ("never-ok", "Succeeded", (0, "Completed"), 0),
        ("never-bad", "Failed", (4, "Error"), 0),
        ("failure-ok", "Succeeded", (0, "Completed"), 0),
        ("failure-bad", "Succeeded", (0, "Completed"), 1),
    ] {
        let it = node.pod_until(name, wanted, |p| phase(p) == wanted);
        assert_eq!((last_end(&it, "c"), restarts(&it, "c")), (Some(end), count), "{name}");
        assert!(!condition(&it, "Ready"), "{name}");
    }
    node.pod_until("always", "is restarted", |p| restarts(p, "c") >= 2);
    let deadline = node.pod_until("deadline", "has failed", |p| phase(p) == "Failed");
    let reason = deadline.status.as_ref().and_then(|s| s.reason.as_deref());
    assert_eq!(reason, Some("DeadlineExceeded"));
    node.pod_until("deadline", "has no running container", |p| ended(p, "c").is_some());
    remove_all(&node);
}

#[test]
fn a_pre_stop_hook_has_the_grace_period_and_no_more() {
    let node = TestNode::usual();
    let hook = |text: &str| json!({"preStop": {"exec": {"command": ["sh", "-c", text]}}});
    let patient = recorder("main", "patient").with(
        "lifecycle",
        hook("echo hook begins >> /shared/patient; sleep 1; echo hook ends >> /shared/patient"),
    );
    let manifest = pod("patient", &[patient]).with_spec("terminationGracePeriodSeconds", json!(30));
    node.put("patient.json", &sharing(manifest, &node));
    let endless = recorder("main", "endless").with(
        "lifecycle",
        hook("echo hook begins >> /shared/endless; sleep 3600; echo hook ends >> /shared/endless"),
    );
    // The hook has to begin within it.
    let grace = json!(2 * pintle_testbed::patience());
    let manifest = pod("endless", &[endless]).with_spec("terminationGracePeriodSeconds", grace);
    node.put("endless.json", &sharing(manifest, &node));
    for name in ["patient", "endless"] {
        node.pod_until(name, "is ready", |p| condition(p, "Ready"));
        lines_until(&node, name, 1);
    }
    remove_all(&node);
    assert_eq!(lines(&node, "patient"), ["main begins", "hook begins", "hook ends", "main ends"]);
    let endless = lines(&node, "endless");
    assert_order(&endless, &["main begins", "hook begins"]);
    assert!(!endless.iter().any(|l| l == "hook ends"), "{endless:?}");
}

#[test]
fn post_start_hook_runs_in_a_started_container_and_its_failure_restarts_it() {
    let node = TestNode::usual();
    let hook = |text: &str| json!({"postStart": {"exec": {"command": ["sh", "-c", text]}}});
    let good = recorder("main", "good").with("lifecycle", hook("echo hooked >> /shared/good"));
    node.put("good.json", &sharing(pod("good", &[good]), &node));
    let once = "echo try >> /shared/bad; [ $(wc -l < /shared/bad) -ge 2 ]";
    let bad = container("main", &["/box", "pause"]).with("lifecycle", hook(once));
    node.put("bad.json", &sharing(pod("bad", &[bad]), &node));
    node.pod_until("good", "is ready", |p| condition(p, "Ready"));
    let good = lines_until(&node, "good", 2);
    assert!(good.iter().any(|l| l == "hooked"), "{good:?}");
    let bad = node
        .pod_until("bad", "was restarted", |p| restarts(p, "main") == 1 && condition(p, "Ready"));
    assert!(is_running(&bad, "main"));
    assert_eq!(lines(&node, "bad"), ["try", "try"]);
    remove_all(&node);
}

#[test]
fn last_words_come_from_the_message_file_or_from_the_log_when_asked() {
    let node = TestNode::usual();
    let never = |name: &str, c: serde_json::Value| {
        pod(name, &[c]).with_spec("restartPolicy", json!("Never"))
    };
    let file = script("c", "echo loud; echo -n from the file > /dev/termination-log; exit 1");
    node.put("file.json", &never("file", file));
    let own = script("c", "echo -n from my file > /tmp/words; exit 1")
        .with("terminationMessagePath", json!("/tmp/words"));
    node.put("own.json", &never("own", own));
    let fallback = script("c", "echo from the log; exit 1")
        .with("terminationMessagePolicy", json!("FallbackToLogsOnError"));
    node.put("fallback.json", &never("fallback", fallback));
    let quiet = script("c", "echo only in the log; exit 0")
        .with("terminationMessagePolicy", json!("FallbackToLogsOnError"));
    node.put("quiet.json", &never("quiet", quiet));
    for (name, message) in [
        ("file", Some("from the file")),
        ("own", Some("from my file")),
        ("fallback", Some("from the log\n")),
        ("quiet", None),
    ] {
        let it = node.pod_until(name, "has ended", |p| {
            matches!(phase(p), "Succeeded" | "Failed") && ended(p, "c").is_some()
        });
        let said = ended(&it, "c").and_then(|e| e.message.as_deref()).filter(|m| !m.is_empty());
        assert_eq!(said, message, "{name}");
        assert!(status_of(&it, "c").is_some());
    }
    log_until(&node, "quiet", "c", "only in the log");
    remove_all(&node);
}
