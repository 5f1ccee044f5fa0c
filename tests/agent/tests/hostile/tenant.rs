//! Attacks of a tenant by its pod's content and its processes.

use std::fs;

use anyhow::ensure;
use pintle_testbed::attacks;
use pintle_testbed::manifest::{
    With, condition, container, is_running, pod, restarts, script, status_of,
};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};

use crate::ground::AttackedNode;
use crate::support::{goes, host, running, stubborn, with_host};

attacks!(AttackedNode, "tenant":
    a_grace_of_twelve_thousand_years,
    numbers_at_their_limits,
    numbers_beyond_their_limits,
    hooks_that_never_end,
    dozens_that_ignore_sigterm,
    ten_thousand_ends_a_second,
    a_crowd_in_a_crash_loop,
    memory_that_runs_out_again_and_again,
    a_flood_of_log,
    a_line_of_a_hundred_megabytes,
    cgroups_of_its_own,
    one_name_for_two_and_a_uid_that_climbs,
);

/// The grace period is longer than any clock counts; the process ends at once on SIGTERM.
fn a_grace_of_twelve_thousand_years(ground: &mut AttackedNode) {
    let patient = pod("patient", &[container("c", &["/box", "pause"])])
        .with_spec("terminationGracePeriodSeconds", json!(400_000_000_000_i64));
    ground.node.put("patient.json", &patient);
    ground.node.pod_until("patient", "is ready", |p| condition(p, "Ready"));
    ground.bystander("while it runs");
    ground.node.remove("patient.json");
    goes(ground, "patient");
}

/// Each number that has a meaning is as large as its type allows.
fn numbers_at_their_limits(ground: &mut AttackedNode) {
    let (long, int) = (i64::MAX, i32::MAX);
    let patient = |period: i32| {
        json!({"httpGet": {"port": 65535, "path": "/"}, "periodSeconds": period,
            "timeoutSeconds": int, "initialDelaySeconds": 0, "failureThreshold": int})
    };
    let pause = || container("c", &["/box", "pause"]);
    let grace =
        |pod: Value, seconds: i64| pod.with_spec("terminationGracePeriodSeconds", json!(seconds));
    let delayed = patient(1).with("initialDelaySeconds", json!(int));
    let all: Vec<(&str, Value)> = vec![
        ("grace", grace(pod("grace", &[pause()]), long)),
        ("deadline", pod("deadline", &[pause()]).with_spec("activeDeadlineSeconds", json!(int))),
        ("period", pod("period", &[pause().with("livenessProbe", patient(int))])),
        ("delay", pod("delay", &[pause().with("livenessProbe", delayed)])),
        ("startup", pod("startup", &[pause().with("startupProbe", patient(int))])),
        (
            "group",
            pod("group", &[pause()])
                .with_spec("securityContext", json!({"fsGroup": int, "runAsUser": int}))
                .with_spec("volumes", json!([{"name": "v", "emptyDir": {"sizeLimit": "9E"}}])),
        ),
        (
            "tolerant",
            pod("tolerant", &[pause()]).with_spec(
                "tolerations",
                json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": long}]),
            ),
        ),
    ];
    for (name, manifest) in &all {
        ground.node.put(&format!("{name}.json"), manifest);
    }
    for (name, _) in &all {
        running(&ground.node, name, &["c"]);
    }
    ground.bystander("while they run");
    for (name, _) in &all {
        ground.node.remove(&format!("{name}.json"));
    }
    for (name, _) in &all {
        goes(ground, name);
    }
}

/// Numbers beyond every limit: none of them ends the agent, or another pod.
fn numbers_beyond_their_limits(ground: &mut AttackedNode) {
    let pause = || container("c", &["/box", "pause"]);
    let probe = |field: &str, value: Value| {
        let probe = json!({"tcpSocket": {"port": 1}}).with(field, value);
        pod("x", &[pause().with("readinessProbe", probe)])
    };
    let with_port = |port: Value| {
        pod("x", &[pause().with("ports", json!([{"containerPort": 80, "hostPort": port}]))])
    };
    let memory =
        |text: &str| pod("x", &[pause().with("resources", json!({"limits": {"memory": text}}))]);
    let sysctl = json!({"sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "9 ".repeat(100_000)}]});
    let all = [
        pod(
            "x",
            &[pause().with("lifecycle", json!({"preStop": {"sleep": {"seconds": i64::MAX}}}))],
        ),
        pod("x", &[pause()]).with_spec("terminationGracePeriodSeconds", json!(i64::MIN)),
        pod("x", &[pause()]).with_spec("activeDeadlineSeconds", json!(i64::MIN)),
        pod("x", &[pause()]).with_spec("activeDeadlineSeconds", json!(0)),
        pod("x", &[pause()]).with_spec("priority", json!(i32::MIN)),
        probe("periodSeconds", json!(i32::MIN)),
        probe("timeoutSeconds", json!(-1)),
        probe("initialDelaySeconds", json!(i32::MIN)),
        probe("failureThreshold", json!(i32::MIN)),
        probe("terminationGracePeriodSeconds", json!(i64::MAX)),
        probe("tcpSocket", json!({"port": 70_000})),
        with_port(json!(-1)),
        with_port(json!(70_000)),
        memory("1e30"),
        memory("99999999999999999999999999E"),
        memory("-1"),
        pod("x", &[pause()]).with_spec("securityContext", json!({"fsGroup": -1})),
        pod("x", &[pause()]).with_spec("securityContext", json!({"runAsUser": i64::MAX})),
        pod("x", &[pause()]).with_spec("securityContext", sysctl),
        pod("x", &[pause()]).with_spec("terminationGracePeriodSeconds", json!(1e300)),
    ];
    for (n, mut manifest) in all.into_iter().enumerate() {
        manifest["metadata"]["name"] = json!(format!("beyond{n}"));
        ground.node.put(&format!("beyond{n}.json"), &manifest);
    }
    ground.bystander("while each is refused or held");
}

/// Hooks that sleep, hang, get an endless answer, or call a server that never answers.
fn hooks_that_never_end(ground: &mut AttackedNode) {
    let rude = container(
        "rude",
        &["/box", "rude", "silent=9001", "drip=9002", "body=9003", "redirect=9004"],
    );
    let get = |port: u16| json!({"httpGet": {"port": port, "path": "/"}});
    let start = |name: &str, hook: Value| {
        container(name, &["/box", "pause"]).with("lifecycle", json!({"postStart": hook}))
    };
    let stop = |name: &str, hook: Value| {
        container(name, &["/box", "pause"]).with("lifecycle", json!({"preStop": hook}))
    };
    let sleep =
        json!({"exec": {"command": ["sh", "-c", "trap '' TERM; while :; do sleep 60; done"]}});
    let loud = json!({"exec": {"command": ["sh", "-c", "yes"]}});
    ground.node.put(
        "stops.json",
        &pod(
            "stops",
            &[
                rude.clone(),
                stop("s1", get(9001)),
                stop("s2", get(9002)),
                stop("s3", get(9003)),
                stop("s4", get(9004)),
                stop("s5", sleep.clone()),
                stop("s6", loud.clone()),
            ],
        )
        .with_spec("terminationGracePeriodSeconds", json!(8)),
    );
    running(&ground.node, "stops", &["rude", "s1", "s6"]);
    let starts = [get(9001), get(9002), get(9003), get(9004), sleep, loud];
    for (n, hook) in starts.into_iter().enumerate() {
        let name = format!("starts{n}");
        let manifest = pod(&name, &[start("c", hook)]).with_spec("hostNetwork", json!(true));
        ground.node.put(&format!("{name}.json"), &manifest);
    }
    let host = pod("host", &[rude]).with_spec("hostNetwork", json!(true));
    ground.node.put("host.json", &host);
    ground.node.remove("stops.json");
    ground.bystander("while hooks hang");
}

/// Thirty-two pods that ignore SIGTERM are removed at the same time.
fn dozens_that_ignore_sigterm(ground: &mut AttackedNode) {
    let names: Vec<String> = (0..4).map(|n| format!("stubborn{n}")).collect();
    let containers: Vec<Value> = (0..8).map(|n| stubborn(&format!("c{n}"))).collect();
    for name in &names {
        let manifest = pod(name, &containers).with_spec("terminationGracePeriodSeconds", json!(6));
        ground.node.put(&format!("{name}.json"), &manifest);
    }
    for name in &names {
        running(&ground.node, name, &["c0", "c7"]);
    }
    for name in &names {
        ground.node.remove(&format!("{name}.json"));
    }
    ground.bystander("while they are waited for");
}

/// Processes of one container that start and end as fast as the kernel can create them.
fn ten_thousand_ends_a_second(ground: &mut AttackedNode) {
    let text = "n=0; while [ $n -lt 4 ]; do (while :; do (:); (:); (:); (:); done) & \
                n=$((n+1)); done; wait";
    ground.node.put("forks.json", &pod("forks", &[script("c", text)]));
    running(&ground.node, "forks", &["c"]);
    ground.bystander("while processes come and go");
}

/// Sixty containers that end at once, each time they are started.
fn a_crowd_in_a_crash_loop(ground: &mut AttackedNode) {
    let containers: Vec<Value> =
        (0..15).map(|n| container(&format!("c{n}"), &["/box", "exit", "1"])).collect();
    let names: Vec<String> = (0..4).map(|n| format!("loop{n}")).collect();
    for name in &names {
        ground.node.put(&format!("{name}.json"), &pod(name, &containers));
    }
    for name in &names {
        ground.node.pod_until(name, "crashes again", |p| {
            ["c0", "c14"].iter().all(|c| restarts(p, c) >= 1)
        });
    }
    ground.bystander("while they crash");
}

/// Containers that take more memory than they may, as fast as they are started.
fn memory_that_runs_out_again_and_again(ground: &mut AttackedNode) {
    let limits = json!({"limits": {"memory": "24Mi"}});
    let hog = |name: &str, args: &[&str]| container(name, args).with("resources", limits.clone());
    // In a child, again and again, without an end of the container.
    let text = "while :; do /box hog 64; done";
    let children = script("children", text).with("resources", limits.clone());
    let containers =
        [hog("a", &["/box", "hog", "64"]), hog("b", &["/box", "hog", "64", "child"]), children];
    ground.node.put("hog.json", &pod("hog", &containers));
    ground.node.pod_until("hog", "runs out of memory", |p| {
        status_of(p, "a").is_some_and(|c| c.restart_count >= 1)
    });
    ground.bystander("while the kernel kills");
}

/// A container writes 200 MB of log a second.
fn a_flood_of_log(ground: &mut AttackedNode) {
    ground
        .node
        .put("loud.json", &pod("loud", &[container("c", &["/box", "log", "200000000", "1000"])]));
    running(&ground.node, "loud", &["c"]);
    ground.bystander("while it writes");
}

/// An endless line of the log, and a container that fails on it and shows its log's end.
fn a_line_of_a_hundred_megabytes(ground: &mut AttackedNode) {
    let text = "head -c 100000000 /dev/zero | tr '\\0' x; exit 1";
    let wordy = script("c", text).with("terminationMessagePolicy", json!("FallbackToLogsOnError"));
    ground.node.put("wordy.json", &pod("wordy", &[wordy]));
    ground.node.pod_until("wordy", "has failed", |p| restarts(p, "c") >= 1);
    let log = format!(
        "/containerLogs/default/wordy-{}/c?tailLines=1&previous=true",
        pintle_testbed::node::NODE_NAME
    );
    let asked = ground.port.get(&ground.node, &log);
    ground.bystander("while its log is long");
    drop(asked);
}

/// A privileged container creates cgroups below its own, moves its processes there, and keeps doing
/// so while it is removed.
fn cgroups_of_its_own(ground: &mut AttackedNode) {
    let class = ground.node.runtime_node().cgroup("kubepods/besteffort");
    let text = format!(
        "n=0; while :; do n=$(((n + 1) % 50)); \
         for pod in /host/*{class}/pod* /host{class}/*pod*; do \
         [ -d $pod ] || continue; \
         mkdir -p $pod/mine$n/deep; echo $$ > $pod/mine$n/deep/cgroup.procs; \
         rmdir $pod/mine$(((n + 1) % 50))/deep $pod/mine$(((n + 1) % 50)); \
         done 2>/dev/null; done"
    );
    let maker = with_host(script("c", &text)).with("securityContext", json!({"privileged": true}));
    let manifest = pod("maker", &[maker]).with_spec("volumes", host("/sys/fs/cgroup".as_ref()));
    ground.node.put("maker.json", &manifest);
    running(&ground.node, "maker", &["c"]);
    ground.bystander("while cgroups come and go");
}

/// Two manifests of one name, two of one uid, and uids that are paths. Every path leads into the
/// node's own folder: an agent that follows it must not reach the machine's.
fn one_name_for_two_and_a_uid_that_climbs(ground: &mut AttackedNode) {
    let absolute = ground.node.dir().join("precious");
    let beside = ground.node.root().join("pods-precious");
    for dir in [&absolute, &beside] {
        fs::create_dir_all(dir).expect("made");
        fs::write(dir.join("file"), "precious").expect("written");
    }
    let absolute_uid = absolute.to_string_lossy().into_owned();
    let uids = [
        "../pods-precious",
        &absolute_uid,
        "a/../../pods-precious",
        ".",
        "one",
        "one",
        "\n",
        "%2e",
    ];
    for (n, uid) in uids.into_iter().enumerate() {
        let mut manifest = pod(&format!("climber{n}"), &[container("c", &["/box", "pause"])]);
        manifest["metadata"]["uid"] = json!(uid);
        ground.node.put(&format!("climber{n}.json"), &manifest);
    }
    for file in ["twin1.json", "twin2.json"] {
        ground.node.put(file, &pod("twin", &[container("c", &["/box", "pause"])]));
    }
    ground.node.pod_until("twin", "one of them runs", |p| is_running(p, "c"));
    ground.bystander("beside them");
    for n in 0..uids.len() {
        ground.node.remove(&format!("climber{n}.json"));
    }
    until(LONG, "the climbers are gone", || {
        let left: Vec<_> =
            ground.node.pods()?.into_iter().filter_map(|p| p.metadata.name).collect();
        ensure!(left.iter().all(|name| !name.starts_with("climber")), "{left:?}");
        Ok(())
    });
    for dir in [&absolute, &beside] {
        let text = fs::read_to_string(dir.join("file")).expect("what is not theirs stays");
        assert_eq!(text, "precious");
        fs::remove_dir_all(dir).expect("removed");
    }
}
