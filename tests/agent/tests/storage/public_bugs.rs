//! Bugs that users of the kubelet have reported, and what is right in their place. Each test names the
//! reports.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use pintle_csi_driver::faults::{Fault, Rule};
use pintle_csi_driver::log::{LogFile, Phase};
use pintle_testbed::cluster::{AGENT, NODE, TestCluster};
use pintle_testbed::manifest::{With, condition, phase, pod, restarts, script};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};
use xtask::shell;

use crate::drivers::{DRIVER, Driver, SLEEP};
use crate::ground::{Bound, claimant, volume, wait_for_event};

/// gRPC's code for a peer that has gone.
const UNAVAILABLE: i32 = 14;
/// Most lines that the agent may log about one thing that does not change.
const LINES_MAX: usize = 20;

/// Binds a claim to a volume of the driver; both have this name.
fn bind(bound: &mut Bound<'_>, name: &str, handle: &str) {
    let source = json!({"driver": DRIVER, "volumeHandle": handle});
    bound.bind(&volume(name, json!({"csi": source})));
}

/// A pod that has a volume of the driver and waits.
fn start_user<'a>(
    test: &TestCluster,
    driver: &Driver<'_>,
    bound: &mut Bound<'a>,
    name: &str,
) -> (Pod, String) {
    let handle = driver.create(name);
    bind(bound, name, &handle);
    test.apply(&claimant(name, name, &format!("echo kept > /data/file; {SLEEP}")));
    (test.pod_until(name, "is ready", |pod| condition(pod, "Ready")), handle)
}

fn delete(test: &TestCluster, name: &str) {
    test.kubectl(&["delete", "pod", name, "--grace-period=1", "--wait=false"]).expect("deleted");
}

fn record(test: &TestCluster, pod: &Pod, name: &str) -> PathBuf {
    test.volume(pod, "csi", name).join("vol_data.json")
}

fn wait_for_call(driver: &Driver<'_>, method: &str, handle: &str) {
    until(LONG, &format!("{method} is called"), || {
        let lines = LogFile::new(&driver.state).read()?;
        let is_it = |line: &pintle_csi_driver::log::Line| {
            line.phase == Phase::Begin && line.method == method && line.volume == handle
        };
        ensure!(lines.iter().any(is_it), "it is not");
        Ok(())
    });
}

/// A shell on the node.
fn run(test: &TestCluster, text: &str) -> String {
    let mut sh = test.cluster().node_command(NODE, Path::new("sh")).expect("a node");
    shell::capture(sh.args(["-ec", text])).expect("it ends well")
}

// kubernetes#82526, #132921
#[test]
fn claim_that_a_pod_names_twice_is_mounted_at_both_places() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "twice", false);
    let handle = driver.create("twice");
    let mut bound = Bound::new(&test);
    bind(&mut bound, "twice", &handle);
    let of = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": "twice"}});
    let mut user = claimant("twice", "", "echo kept > /one/file && test $(cat /two/file) = kept")
        .with_spec("volumes", json!([of("one"), of("two")]));
    user["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "one", "mountPath": "/one"}, {"name": "two", "mountPath": "/two"}]);
    test.apply(&user);
    test.pod_until("twice", "succeeds", |pod| phase(pod) == "Succeeded");
    delete(&test, "twice");
    driver.nothing_is_left();
}

// kubernetes-sigs/azurefile-csi-driver#2367
#[test]
fn pod_with_one_volume_under_two_names_is_not_started() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "names", false);
    let handle = driver.create("names");
    let mut bound = Bound::new(&test);
    bind(&mut bound, "names-a", &handle);
    bind(&mut bound, "names-b", &handle);
    let of = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    let mut user = claimant("names", "", "echo a > /one/file; test $(cat /two/file) = a")
        .with_spec("volumes", json!([of("names-a"), of("names-b")]));
    user["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "names-a", "mountPath": "/one"}, {"name": "names-b", "mountPath": "/two"}]);
    test.apply(&user);
    let text = "names-a and names-b are one volume of driver";
    wait_for_event(&test, "names", "FailedMount", text);
    let pod = test.pod("names").expect("asked").expect("a pod");
    assert_eq!(phase(&pod), "Pending");
    delete(&test, "names");
    test.pod_gone("names");
    driver.nothing_is_left();
}

// kubernetes#85476, #101791, #121937
#[test]
fn agent_killed_between_unpublish_and_unstage_unstages_after_its_restart() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "between", false);
    let mut bound = Bound::new(&test);
    let (_, handle) = start_user(&test, &driver, &mut bound, "between");
    driver.fail(&[Rule::new("NodeUnstageVolume", Fault::Hang)]);
    delete(&test, "between");
    wait_for_call(&driver, "NodeUnstageVolume", &handle);
    test.cluster().kill(AGENT).expect("killed");
    test.pod_gone("between");
    driver.fail(&[]);
    test.cluster().start(AGENT).expect("started");
    driver.nothing_is_left();
    until(LONG, "the driver has nothing in use", || {
        let used = pintle_csi_driver::volumes_in_use(&driver.state)?;
        ensure!(used.is_empty(), "{used:?}");
        Ok(())
    });
    driver.calls(&handle);
}

// kubernetes#85280, #101911
#[test]
fn missing_or_empty_volume_record_does_not_block_the_pods_deletion() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "record", false);
    let mut bound = Bound::new(&test);
    let (gone, _) = start_user(&test, &driver, &mut bound, "gone");
    let (empty, _) = start_user(&test, &driver, &mut bound, "empty");
    test.cluster().kill(AGENT).expect("killed");
    fs::remove_file(record(&test, &gone, "gone")).expect("removed");
    fs::write(record(&test, &empty, "empty"), "").expect("written");
    test.cluster().start(AGENT).expect("started");
    for name in ["gone", "empty"] {
        delete(&test, name);
        test.pod_gone(name);
    }
    driver.nothing_is_left();
}

// kubernetes#85280, #101911: the same with a pod that is deleted while no agent runs
#[test]
fn empty_volume_record_does_not_block_a_pod_deleted_while_the_agent_is_down() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "meanwhile", false);
    let mut bound = Bound::new(&test);
    let (pod, _) = start_user(&test, &driver, &mut bound, "meanwhile");
    test.cluster().kill(AGENT).expect("killed");
    fs::write(record(&test, &pod, "meanwhile"), "").expect("written");
    delete(&test, "meanwhile");
    test.cluster().start(AGENT).expect("started");
    test.pod_gone("meanwhile");
    driver.nothing_is_left();
}

// kubernetes#105536, #140681
#[test]
fn folder_of_an_unknown_pod_with_a_broken_record_is_removed_and_logged_once() {
    let test = TestCluster::take();
    let uid = "5a5a5a5a-0000-4000-8000-000000000042";
    let pod = test.on_node(&format!("/var/lib/kubelet/pods/{uid}"));
    let volume = pod.join("volumes/kubernetes.io~csi/lost");
    fs::create_dir_all(volume.join("mount")).expect("made");
    fs::write(volume.join("vol_data.json"), "").expect("written");
    test.restart_agent();
    until(LONG, "the folder is gone", || {
        ensure!(!pod.exists(), "{}", pod.display());
        Ok(())
    });
    let log = fs::read_to_string(test.cluster().layout().log(AGENT)).expect("a log");
    let lines = log.lines().filter(|line| line.contains(uid)).count();
    assert!(lines <= LINES_MAX, "{lines} lines");
}

// kubernetes#127229
#[test]
fn inline_volume_of_a_pod_that_is_deleted_while_no_agent_runs_is_taken_away() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "inline-gone", false);
    let volumes = json!([{"name": "data", "csi": {"driver": DRIVER}}]);
    test.apply(&claimant("inline-gone", "", SLEEP).with_spec("volumes", volumes));
    test.pod_until("inline-gone", "is ready", |pod| condition(pod, "Ready"));
    test.cluster().kill(AGENT).expect("killed");
    // By force: the API server does not wait for the agent.
    let force = ["delete", "pod", "inline-gone", "--grace-period=0", "--force", "--wait=false"];
    test.kubectl(&force).expect("deleted");
    test.cluster().start(AGENT).expect("started");
    driver.nothing_is_left();
    until(LONG, "the driver's volume is gone", || {
        let used = pintle_csi_driver::volumes_in_use(&driver.state)?;
        ensure!(used.is_empty(), "{used:?}");
        Ok(())
    });
}

/// The answer to the call that took the volume away is lost; to the next call the driver answers that
/// there is no such volume.
#[test]
fn lost_unpublish_answer_for_an_inline_volume_does_not_block_its_pods_deletion() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "inline-lost", false);
    let volumes = json!([{"name": "data", "csi": {"driver": DRIVER}}]);
    test.apply(&claimant("inline-lost", "", SLEEP).with_spec("volumes", volumes));
    test.pod_until("inline-lost", "is ready", |pod| condition(pod, "Ready"));
    let lost = Fault::Fail { code: UNAVAILABLE, message: "the answer is lost".to_owned() };
    driver.fail(&[Rule::new("NodeUnpublishVolume", lost).times(1).after()]);
    delete(&test, "inline-lost");
    test.pod_gone("inline-lost");
    driver.nothing_is_left();
}

// kubernetes#112601
#[test]
fn force_deleted_pod_ends_before_its_volume_is_unpublished() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "force", false);
    let handle = driver.create("force");
    let mut bound = Bound::new(&test);
    bind(&mut bound, "force", &handle);
    // It writes for as long as it lives, and does not end by itself.
    let text = "trap '' TERM; while :; do echo x >> /data/file || touch /data/../failed; done";
    test.apply(&claimant("force", "force", text));
    test.pod_until("force", "is ready", |pod| condition(pod, "Ready"));
    let force = ["delete", "pod", "force", "--grace-period=0", "--force", "--wait=false"];
    test.kubectl(&force).expect("deleted");
    test.apply(&claimant("next", "force", "test -s /data/file"));
    test.pod_until("next", "succeeds", |pod| phase(pod) == "Succeeded");
    delete(&test, "next");
    driver.nothing_is_left();
    driver.calls(&handle);
}

// kubernetes#92299, #120853
#[test]
fn volume_is_staged_before_it_is_published_after_a_boot() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "boot", false);
    let handle = driver.create("boot");
    let mut bound = Bound::new(&test);
    bind(&mut bound, "boot", &handle);
    let text = format!("echo $(cat /data/file)x > /data/file; {SLEEP}");
    let user = claimant("boot", "boot", &text).with_spec("restartPolicy", json!("Always"));
    test.apply(&user);
    test.pod_until("boot", "is ready", |pod| condition(pod, "Ready"));
    test.cluster().kill(AGENT).expect("killed");
    for id in test.running().expect("containers") {
        run(&test, &format!("ctr -n k8s.io tasks kill -s KILL {id} || true"));
    }
    run(
        &test,
        "for part in pods plugins; do \
           awk '{print $5}' /proc/self/mountinfo | grep \"^/var/lib/kubelet/$part/\" | sort -r | \
           while read -r at; do umount -l \"$at\" || true; done; done",
    );
    pintle_csi_driver::forget_nodes(&driver.state).expect("forgotten");
    let before = driver.calls(&handle).len();
    test.cluster().start(AGENT).expect("started");
    let content = driver.state.join("volumes").join(&handle).join("file");
    until(LONG, "the pod has its volume again", || {
        let text = fs::read_to_string(&content)?;
        ensure!(text.trim() == "xx", "{text:?}");
        Ok(())
    });
    test.pod_until("boot", "is ready", |pod| condition(pod, "Ready"));
    assert_eq!(driver.calls(&handle)[before..][..2], ["NodeStageVolume", "NodePublishVolume"]);
    delete(&test, "boot");
    driver.nothing_is_left();
}

// kubernetes#101378
#[test]
fn pod_deletion_waits_for_a_stopped_driver_without_flooding_the_log() {
    let test = TestCluster::take();
    let mut driver = Driver::start(&test, "away", false);
    let mut bound = Bound::new(&test);
    start_user(&test, &driver, &mut bound, "away");
    driver.stop();
    let log = test.cluster().layout().log(AGENT);
    let before = fs::metadata(&log).expect("a log").len();
    delete(&test, "away");
    wait_for_event(
        &test,
        "away",
        "FailedUnMount",
        "not found in the list of registered CSI drivers",
    );
    let pod = test.pod("away").expect("asked");
    assert!(pod.is_some(), "its volume is still published");
    driver.restart();
    test.pod_gone("away");
    driver.nothing_is_left();
    let text = fs::read(&log).expect("a log");
    let text = String::from_utf8_lossy(&text[usize::try_from(before).expect("a size")..]);
    let lines = text.lines().filter(|line| line.contains(DRIVER)).count();
    assert!(lines <= LINES_MAX, "{lines} lines:\n{text}");
}

// kubernetes#68211
#[test]
fn container_with_a_file_of_a_changed_config_map_starts_again() {
    let test = TestCluster::take();
    let map = |value: &str| -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "changed"},
            "data": {"file": value}})
    };
    test.apply(&map("one"));
    let mounts = json!([{"name": "m", "mountPath": "/file", "subPath": "file"},
        {"name": "m", "mountPath": "/all"}]);
    // It ends once the folder has the new version, and reads the file when it starts.
    let text = "trap 'exit 0' TERM; while [ $(cat /all/file) = $(cat /file) ]; do sleep 0.2; done";
    let user = pod("changed", &[script("c", text).with("volumeMounts", mounts)])
        .with_spec("nodeName", json!(NODE))
        .with_spec("volumes", json!([{"name": "m", "configMap": {"name": "changed"}}]));
    test.apply(&user);
    test.pod_until("changed", "is ready", |pod| condition(pod, "Ready"));
    test.apply(&map("two"));
    test.pod_until("changed", "runs again", |pod| {
        restarts(pod, "c") >= 1 && condition(pod, "Ready")
    });
    delete(&test, "changed");
    test.pod_gone("changed");
}

// kubernetes#89776, #130192
#[test]
fn agent_killed_during_an_fs_group_change_completes_it_after_its_restart() {
    use std::os::unix::fs::MetadataExt as _;
    const FILES: usize = 40_000;
    const GROUP: u32 = 4343;
    let test = TestCluster::take();
    let driver = Driver::start(&test, "walk", false);
    let handle = driver.create("walk");
    let content = driver.state.join("volumes").join(&handle);
    for at in 0..FILES {
        let folder = content.join((at / 1000).to_string());
        fs::create_dir_all(&folder).expect("made");
        fs::write(folder.join(at.to_string()), "").expect("written");
    }
    let file = |at: usize| content.join((at / 1000).to_string()).join(at.to_string());
    let given = || (0..FILES).filter(|at| fs::metadata(file(*at)).is_ok_and(|m| m.gid() == GROUP));
    let mut bound = Bound::new(&test);
    bind(&mut bound, "walk", &handle);
    let security = json!({"fsGroup": GROUP, "fsGroupChangePolicy": "OnRootMismatch"});
    test.apply(&claimant("walk", "walk", SLEEP).with_spec("securityContext", security));
    until(LONG, "some files are given", || {
        ensure!(given().next().is_some(), "none is");
        Ok(())
    });
    test.cluster().kill(AGENT).expect("killed");
    let half = given().count();
    eprintln!("    {half} of {FILES} files were given when the agent died");
    test.cluster().start(AGENT).expect("started");
    test.pod_until("walk", "is ready", |pod| condition(pod, "Ready"));
    assert_eq!(given().count(), FILES);
    delete(&test, "walk");
    driver.nothing_is_left();
}
