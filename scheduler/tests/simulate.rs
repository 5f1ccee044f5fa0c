//! The command itself: files in, tables and JSON out, errors of the input.
#![allow(missing_docs)]

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn node(name: &str, cpu: &str, zone: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels":
        {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}}})
}

fn pod(name: &str, cpu: &str, node: Option<&str>, priority: i32) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "d", "uid": name},
        "spec": {"nodeName": node, "priority": priority, "schedulerName": "default-scheduler",
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}})
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("temporary folder"))
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).expect("file");
        path
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_pintle-scheduler"))
            .arg("simulate")
            .args(arguments)
            .current_dir(self.0.path())
            .output()
            .expect("runs")
    }

    /// Returns the error of `what-if` about a cluster that does not exist.
    fn what_if(&self, arguments: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_pintle-scheduler"))
            .args(["what-if", "--kubeconfig", "no-cluster"])
            .args(arguments)
            .current_dir(self.0.path())
            .output()
            .expect("runs");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["-o", "json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

fn cluster() -> Files {
    let files = Files::new();
    let list = json!({"apiVersion": "v1", "kind": "List", "items":
        [node("n1", "2", "a"), node("n2", "2", "b")]});
    files.write("nodes.json", &list.to_string());
    // A stream of objects, as jq and kubectl --watch write them.
    let pods = [
        pod("bound", "1500m", Some("n1"), 0),
        pod("low", "1", None, 0),
        pod("high", "1500m", None, 100),
        pod("huge", "64", None, 0),
    ];
    let text: Vec<String> = pods.iter().map(Value::to_string).collect();
    files.write("pods.json", &text.join("\n"));
    files
}

#[test]
fn pods_are_placed_in_order_of_priority_and_the_rest_is_explained() {
    let found = cluster().json(&["--nodes", "nodes.json", "--pods", "pods.json"]);
    assert_eq!(found["placed"].as_array().map(Vec::len), Some(1));
    assert_eq!(found["placed"][0]["pod"], "d/high");
    assert_eq!(found["placed"][0]["node"], "n2");
    let low = &found["unplaced"][0];
    assert_eq!(low["message"], "0/2 nodes are available: 2 Insufficient cpu.");
    let change = &low["remedy"]["changes"][0];
    assert_eq!((&change["change"], &change["missing"]), (&json!("free"), &json!(500)));
    let huge = &found["unplaced"][1]["remedy"]["changes"][0];
    assert_eq!(huge["beyondNode"], true);
}

#[test]
fn pods_are_placed_on_added_nodes_and_moved_off_drained_nodes() {
    let files = cluster();
    let both = ["--nodes", "nodes.json", "--pods", "pods.json"];
    let found = files.json(&[&both[..], &["--add-nodes", "2", "--like", "n1"]].concat());
    assert_eq!(found["nodes"], 4);
    assert_eq!(found["placed"].as_array().map(Vec::len), Some(2));
    let found = files.json(&[&both[..], &["--drain", "n1"]].concat());
    let all = [&found["placed"], &found["unplaced"]].map(|l| l.as_array().cloned().expect("list"));
    let moved = all.concat().into_iter().find(|p| p["pod"] == "d/bound").expect("drained pod");
    assert_eq!(moved["from"], "n1");
    assert_ne!(moved["node"], "n1");
}

#[test]
fn why_lists_every_node_with_scores_or_reasons() {
    let files = cluster();
    let found = files.json(&["--nodes", "nodes.json", "--pods", "pods.json", "--why", "d/high"]);
    let nodes = found["why"]["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.len(), 2);
    assert_eq!(nodes[0]["node"], "n2");
    assert_eq!(nodes[0]["scores"]["TaintToleration"], json!([0, 100, 300]));
    assert_eq!(nodes[1]["plugin"], "NodeResourcesFit");
    let output = files.run(&["--nodes", "nodes.json", "--pods", "pods.json", "--why", "high"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("WHY d/high") && text.contains("Insufficient cpu"), "{text}");
}

#[test]
fn pod_gets_the_priority_of_its_class_and_is_rejected_if_the_class_is_missing() {
    let files = Files::new();
    let class = |name: &str, policy: &str, default: bool| {
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name}, "value": 1000, "preemptionPolicy": policy,
            "globalDefault": default})
    };
    let mut urgent = pod("urgent", "1", None, 0);
    let spec = urgent["spec"].as_object_mut().expect("a spec");
    spec.remove("priority");
    spec.insert("priorityClassName".into(), "high".into());
    let mut common = urgent.clone();
    common["spec"].as_object_mut().expect("a spec").remove("priorityClassName");
    let victims = |new: &Value, class: Value| {
        let all = [node("n1", "2", "a"), pod("bound", "1500m", Some("n1"), 0), new.clone(), class];
        let text: Vec<String> = all.iter().map(Value::to_string).collect();
        files.write("all.json", &text.join("\n"));
        files.json(&["--cluster", "all.json"])["unplaced"][0]["preemption"]["victims"].clone()
    };
    let soft = "PreemptLowerPriority";
    assert_eq!(victims(&urgent, class("high", soft, false)), json!(["d/bound"]));
    assert_eq!(victims(&urgent, class("high", "Never", false)), Value::Null);
    assert_eq!(victims(&common, class("high", soft, true)), json!(["d/bound"]));
    assert_eq!(victims(&common, class("high", soft, false)), Value::Null);
    files.write("all.json", &format!("{}\n{urgent}", node("n1", "2", "a")));
    let output = files.run(&["--cluster", "all.json"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let says = "Pod d/urgent: spec.priorityClassName: no PriorityClass with name high was found";
    assert!(!output.status.success() && text.contains(says), "{text}");
}

#[test]
fn pods_with_volumes_or_claims_are_left_out_by_name() {
    let files = Files::new();
    let volume = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "nowhere"}}]);
    let mut waits = pod("waits", "1", None, 0);
    waits["spec"]["volumes"] = volume.clone();
    let mut drained = pod("drained", "1", Some("n1"), 0);
    drained["spec"]["volumes"] = volume.clone();
    let mut stays = pod("stays", "1500m", Some("n2"), 0);
    stays["spec"]["volumes"] = volume;
    let mut devices = pod("devices", "1", None, 0);
    devices["spec"]["resourceClaims"] = json!([{"name": "d", "resourceClaimName": "nowhere"}]);
    let pods = [waits, drained, stays, devices, pod("other", "1", None, 0)];
    let all: Vec<String> = pods.iter().map(Value::to_string).collect();
    files.write("pods.json", &all.join("\n"));
    files.write("nodes.json", &format!("{}\n{}", node("n1", "8", "a"), node("n2", "2", "b")));
    let arguments = ["--nodes", "nodes.json", "--pods", "pods.json", "--drain", "n1"];
    let found = files.json(&arguments);
    assert_eq!(found["leftOut"], json!(["d/waits", "d/drained", "d/devices"]));
    // The pod that stays is counted: the other one does not fit with it.
    assert_eq!((&found["placed"], &found["bound"]), (&json!([]), &json!(1)));
    let text = String::from_utf8_lossy(&files.run(&arguments).stdout).into_owned();
    let says = "3 pods left out (volumes and resource claims are not simulated): d/waits, ";
    assert!(text.contains(says), "{text}");
    let output = files.run(&[&arguments[..], &["--why", "waits"]].concat());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("pod d/waits has volumes or resource claims"), "{text}");
}

#[test]
fn a_bad_file_names_the_object_the_field_and_the_position() {
    let files = cluster();
    let wrong =
        pod("bad", "1", None, 0).to_string().replace("\"priority\":0", "\"priority\":\"x\"");
    files.write("bad.json", &format!("{}\n{wrong}\n", pod("fine", "1", None, 0)));
    let output = files.run(&["--nodes", "nodes.json", "--pods", "bad.json"]);
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in ["bad.json:2:", "Pod d/bad", "spec.priority"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    files.write("quantity.json", &pod("q", "lots", None, 0).to_string());
    let output = files.run(&["--nodes", "nodes.json", "--pods", "quantity.json"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in ["quantity.json:1:1", "Pod d/q", "resources.requests[cpu]", "\"lots\""] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let output = files.run(&["--nodes", "nodes.json", "--drain", "nowhere"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("\"nowhere\" is not in the dump"));
}

#[test]
fn a_configuration_changes_the_choice() {
    let files = Files::new();
    let nodes = [node("empty", "4", "a"), node("full", "4", "a")];
    let text: Vec<String> = nodes.iter().map(Value::to_string).collect();
    files.write("nodes.json", &text.join("\n"));
    let pods = [pod("bound", "2", Some("full"), 0), pod("new", "1", None, 0)];
    let text: Vec<String> = pods.iter().map(Value::to_string).collect();
    files.write("pods.json", &text.join("\n"));
    files.write(
        "pack.yaml",
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n\
         - pluginConfig:\n  - name: NodeResourcesFit\n    args:\n      scoringStrategy:\n        type: MostAllocated\n\
         \x20       resources:\n        - {name: cpu, weight: 1}\n  plugins:\n    score:\n      disabled:\n\
         \x20     - name: NodeResourcesBalancedAllocation\n",
    );
    let both = ["--nodes", "nodes.json", "--pods", "pods.json"];
    assert_eq!(files.json(&both)["placed"][0]["node"], "empty");
    let packed = files.json(&[&both[..], &["--config", "pack.yaml"]].concat());
    assert_eq!(packed["placed"][0]["node"], "full");
}

#[test]
fn invalid_arguments_are_reported_in_one_sentence() {
    let told = [
        (
            &["shadow"][..],
            "the following required arguments were not provided: --kubeconfig <FILE>",
        ),
        (&["frobnicate"], "unrecognized subcommand 'frobnicate'"),
        (&["explain", "--frob"], "unexpected argument '--frob' found"),
    ];
    for (arguments, what) in told {
        let output = Command::new(env!("CARGO_BIN_EXE_pintle-scheduler"))
            .args(arguments)
            .output()
            .expect("runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said, format!("pintle-scheduler: {what}; --help tells what there is\n"));
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn duplicate_ignored_and_lost_objects_are_noted() {
    let files = cluster();
    let notes = |arguments: &[&str]| files.json(arguments)["notes"].clone();
    let both = ["--nodes", "nodes.json", "--pods", "pods.json"];
    assert_eq!(notes(&both), json!([]));
    // The next error: all pods are in both files.
    let found = files.json(&[&both[..], &["--cluster", "pods.json"]].concat());
    assert_eq!((&found["bound"], &found["pending"]), (&json!(1), &json!(3)));
    let says = "4 objects there more than once, the last one counts: Pod d/bound (pods.json:1:1, \
        before that pods.json:1:1), Pod d/low (pods.json:2:1, ";
    let note = found["notes"][0].as_str().expect("a note");
    assert!(note.starts_with(says), "{note}");
    // A later state of a node and of a pod, as watch events.
    let later = [node("n1", "1", "a"), pod("low", "1", Some("n2"), 0)];
    files.write("later.json", &format!("{}{}", later[0], later[1]));
    let found = files.json(&[&both[..], &["--cluster", "later.json"]].concat());
    assert_eq!(
        (&found["nodes"], &found["bound"], &found["pending"]),
        (&json!(2), &json!(2), &json!(2))
    );
    assert_eq!(found["fragmentation"][0]["allocatable"], 3000);

    let others = [json!({"kind": "Foo", "metadata": {"name": "f"}}), pod("p", "1", Some("n9"), 0)];
    files.write("others.json", &format!("{}{}", others[0], others[1]));
    let ignored = "1 object of other kinds ignored: Foo";
    let lost = "1 pod on nodes that are not there: n9";
    assert_eq!(notes(&[&both[..], &["--cluster", "others.json"]].concat()), json!([ignored, lost]));
    let text = files.run(&[&both[..], &["--cluster", "others.json"]].concat()).stdout;
    assert!(String::from_utf8_lossy(&text).contains(ignored));
    let nobody =
        r#"no pod waits for scheduler "foo"; those that wait are for "default-scheduler" (3)"#;
    assert_eq!(notes(&[&both[..], &["--scheduler-name", "foo"]].concat()), json!([nobody]));
    let output = files.run(&["--pods", "pods.json"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("there is no Node in the dump"), "{said}");
    let said = files.run(&["--nodes", "missing.json"]).stderr;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("--nodes=missing.json: No such file"), "{said}");
}

#[test]
fn control_characters_of_a_dump_are_escaped_in_the_output() {
    let files = Files::new();
    let evil = "x\u{1b}[2J\u{7}\n\u{202e}\u{9b}";
    let obeyed = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    let mut other = pod("o", "1", None, 0);
    other["spec"]["schedulerName"] = json!(evil);
    let foreign = json!({"kind": format!("Kind{evil}"), "metadata": {"name": evil}});
    let all = [node("m", "4", "a"), other, foreign];
    let text: Vec<String> = all.iter().map(Value::to_string).collect();
    files.write("all.json", &text.join("\n"));
    let output = files.run(&["--cluster=all.json"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for part in
        ["Kindx\\u{1b}[2J\\u{7}\\u{a}\\u{202e}\\u{9b}", "those that wait are for \"x\\u{1b}"]
    {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(!said.contains(obeyed), "{said:?}");
    let mut tainted = node("n", "4", "a");
    tainted["spec"] = json!({"taints": [{"key": format!("k{evil}"), "effect": "NoSchedule"}]});
    let mut named = pod("p", "1", None, 0);
    named["spec"]["containers"][0]["name"] = json!(evil);
    for (wrong, field) in [
        (node(&format!("w{evil}"), "-4", "a"), "status.allocatable.cpu"),
        (pod(&format!("p{evil}"), "1", None, 0), "metadata.name"),
        (pod("p", "1", Some(evil), 0), "spec.nodeName"),
        (pod("p", evil, None, 0), "spec.containers[0].resources.requests[cpu]"),
        (tainted, "spec.taints[0].key"),
        (named, "spec.containers[0].name"),
    ] {
        files.write("wrong.json", &wrong.to_string());
        let said = files.run(&["--cluster=wrong.json"]).stderr;
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(said.contains(field) && !said.contains(obeyed), "{said:?}");
    }
}

#[test]
fn a_slipped_digit_costs_no_memory() {
    let files = cluster();
    files.write("pod.json", &pod("p", "1", None, 0).to_string());
    for (count, says) in [("999999999999", "at most 100000"), ("-1", "a number from 0 to 100000")] {
        let nodes = ["--nodes=nodes.json", "--like=n1", "--add-nodes", count];
        let said = String::from_utf8_lossy(&files.run(&nodes).stderr).into_owned();
        assert!(said.contains("--add-nodes") && said.contains(says), "{said}");
        let said = files.what_if(&["--pod=pod.json", "--replicas", count]);
        assert!(said.contains("--replicas") && said.contains(says), "{said}");
    }
    assert!(files.what_if(&["--pod=pod.json", "--replicas=0"]).contains("nothing to place"));
    let two = format!("{0}{0}", pod("p", "1", None, 0));
    files.write("two.json", &two.replacen("\"p\"", "\"q\"", 2));
    let said = files.what_if(&["--pod=two.json", "--replicas=100000"]);
    assert!(said.contains("these are 200000 pods; give at most 100000"), "{said}");
}

#[test]
fn unusable_pod_file_is_reported_before_the_cluster_is_contacted() {
    let files = Files::new();
    files.write("config.yaml", "apiVersion: kubescheduler.config.k8s.io/v1\n\
        kind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: batch}, {schedulerName: web}]\n");
    let of = |name: &str, scheduler: &str| {
        let mut pod = pod(name, "1", None, 0);
        pod["spec"]["schedulerName"] = json!(scheduler);
        pod
    };
    let said = files.what_if(&["--pod", "missing.json"]);
    assert!(said.contains("--pod=missing.json: No such file"), "{said}");
    files.write("pod.json", &of("p", "web").to_string());
    let goes_on = files.what_if(&["--pod", "pod.json", "--config", "config.yaml"]);
    assert!(goes_on.contains("no-cluster"), "{goes_on}");
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "d"}, "spec": {"template": {}}});
    let mut with_claim = of("p", "web");
    with_claim["spec"]["volumes"] =
        json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    for (text, says) in [
        (deployment.to_string(), "pod.json: holds no Pod"),
        (of("p", "other").to_string(), "no profile is named \"other\""),
        (format!("{}{}", of("p", "web"), of("q", "batch")), "several schedulers (batch, web)"),
        (with_claim.to_string(), "pod d/p has volumes or resource claims"),
    ] {
        files.write("pod.json", &text);
        let said = files.what_if(&["--pod", "pod.json", "--config", "config.yaml"]);
        assert!(said.contains(says), "{said}");
    }
}

/// A cluster at a port without a listener.
const NOWHERE: &str = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, \
    context: {cluster: c, user: u}}], users: [{name: u, user: {}}], \
    clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]}";

#[test]
fn interrupted_shadow_run_leaves_its_report() {
    let files = Files::new();
    files.write("kc.yaml", NOWHERE);
    let report = files.0.path().join("report.json");
    for end in ["INT", "TERM"] {
        let mut shadow = Command::new(env!("CARGO_BIN_EXE_pintle-scheduler"))
            .args(["shadow", "--kubeconfig=kc.yaml", "--report=report.json"])
            .current_dir(files.0.path())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("runs");
        let is_there = || std::fs::exists(&report).expect("a folder");
        while !is_there() && shadow.try_wait().expect("ours").is_none() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let sent =
            Command::new("kill").args([&format!("-{end}"), &shadow.id().to_string()]).status();
        assert!(sent.expect("runs").success(), "it still runs");
        let ended = shadow.wait().expect("it ends");
        assert_eq!(ended.code(), Some(0), "{end}");
        let text = std::fs::read_to_string(&report).expect("it is there");
        let found: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(found["bindings"]["exact"], 0, "{text}");
        std::fs::remove_file(&report).expect("it is ours");
    }
}

/// A server that rejects every request, for as long as the test runs.
fn refusing() -> String {
    use std::io::{BufRead as _, BufReader, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
        "message": "nothing is for you: it is forbidden", "reason": "Forbidden"});
    std::thread::spawn(move || {
        while let Ok((mut peer, _)) = listener.accept() {
            let head = BufReader::new(peer.try_clone().expect("a socket")).lines();
            head.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
            let (text, kind) = (body.to_string(), "content-type: application/json");
            let head = format!("HTTP/1.1 403 X\r\n{kind}\r\ncontent-length: {}\r\n", text.len());
            let _ = peer.write_all(format!("{head}connection: close\r\n\r\n{text}").as_bytes());
        }
    });
    url
}

#[test]
fn unreachable_or_refusing_cluster_is_reported_at_once_with_the_reason() {
    let files = Files::new();
    files.write("pod.json", &pod("p", "1", None, 0).to_string());
    let refuses = refusing();
    for (server, says) in [
        ("https://user:secret@127.0.0.1:1", "Connection refused (os error 111); is this the"),
        (&refuses, "nothing is for you: it is forbidden; give credentials that may list"),
    ] {
        files.write("kc.yaml", &NOWHERE.replace("https://127.0.0.1:1", server));
        for arguments in [&["explain", "p"][..], &["what-if", "--pod=pod.json"]] {
            let output = Command::new(env!("CARGO_BIN_EXE_pintle-scheduler"))
                .args([arguments, &["--kubeconfig=kc.yaml"]].concat())
                .current_dir(files.0.path())
                .output()
                .expect("runs");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{said}");
            let address = server.rsplit(['/', '@']).next().expect("host and port");
            let start = format!("pintle-scheduler: API server {address}: cannot list ");
            assert!(said.starts_with(&start) && said.contains(says), "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
    }
}
