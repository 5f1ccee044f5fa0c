//! A machine with a real systemd is switched off: logind waits for the agent, and the agent for its
//! pods. Skipped but in a guest that may be switched off, see docs/TESTING.md.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::ensure;
use pintle_testbed::manifest::{With as _, condition, phase};
use pintle_testbed::node::Options;
use pintle_testbed::{LONG, TestNode, skip, until};
use serde_json::json;

use crate::shutdown::{CRITICAL, says, terminated};
use crate::support::{lines, sharing};

/// Says that the machine is the test's own, and may be switched off.
const MAY_BE_SWITCHED_OFF: &str = "PINTLE_POWER_OFF";
/// Seconds of each of three groups: an emulated guest is slow.
const SECONDS: u64 = 240;
const GROUPS: u64 = 3;
const DROP_IN: &str = "/etc/systemd/logind.conf.d/99-kubelet.conf";
const BUS: &str = "unix:path=/run/dbus/system_bus_socket";

/// Only in the guest of `cargo xtask vm --systemd`, which names its run folder to its kernel.
fn is_guest_with_systemd() -> bool {
    let said = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    said.contains(" vm.run=")
        && Path::new("/run/systemd/system").is_dir()
        && std::env::var_os(MAY_BE_SWITCHED_OFF).is_some()
}

fn said_by(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output();
    let out = out.unwrap_or_else(|error| panic!("{program}: {error}"));
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

/// A property of logind's manager, with its type before it.
fn logind(property: &str) -> String {
    let name = "org.freedesktop.login1";
    let (path, manager) = ("/org/freedesktop/login1", "org.freedesktop.login1.Manager");
    said_by("busctl", &["get-property", name, path, manager, property])
}

fn locks() -> String {
    said_by("systemd-inhibit", &["--list", "--no-pager", "--no-legend"])
}

fn is_held() -> bool {
    locks().lines().any(|line| line.contains("kubelet") && line.contains("delay"))
}

#[test]
fn logind_waits_until_the_agent_has_ended_its_pods_in_order() {
    if !is_guest_with_systemd() {
        return skip("this machine must not be switched off");
    }
    let group =
        |priority: i32| json!({"priority": priority, "shutdownGracePeriodSeconds": SECONDS});
    let node = TestNode::start(Options {
        systemd: true,
        config: json!({
            "shutdownGracePeriodByPodPriority": [group(0), group(1_000), group(2_000_000_000)],
        }),
        env: vec![("DBUS_SYSTEM_BUS_ADDRESS".to_owned(), BUS.to_owned())],
        ..Options::default()
    });
    until(LONG, "the agent holds a delay lock of logind", || {
        ensure!(is_held(), "locks: {}\n{}", locks(), node.agent_log());
        Ok(())
    });
    let wanted = format!("t {}", SECONDS * GROUPS * 1_000_000);
    assert_eq!(logind("InhibitDelayMaxUSec"), wanted, "logind waits as long as all groups may");
    let conf = fs::read_to_string(DROP_IN).expect("the agent configured it");
    assert!(conf.contains("InhibitDelayMaxSec=720"), "{conf}");

    let pods = [("least", -10), ("middle", 1_500), ("critical", CRITICAL)];
    for (name, priority) in pods {
        let manifest = says(name, 0).with_spec("priority", json!(priority));
        node.put(&format!("{name}.json"), &sharing(manifest, &node));
    }
    for (name, _) in pods {
        node.pod_until(name, "is ready", |p| condition(p, "Ready"));
    }
    eprintln!("switched off at {}", said_by("date", &["+%T"]));
    let told = Command::new("systemctl").args(["poweroff", "--no-wall"]).status();
    assert!(told.expect("systemctl runs").success());
    assert_eq!(logind("PreparingForShutdown"), "b true");
    assert!(is_held(), "it waits: {}", locks());

    for (name, _) in pods {
        let pod = node.pod_until(name, "has ended", |p| phase(p) == "Failed");
        terminated(&pod);
    }
    let order = pods.map(|(name, _)| [format!("{name} stops"), format!("{name} ends")]);
    assert_eq!(lines(&node, "order"), order.concat());
    // With the lock the machine goes on: this test is one of the services that systemd ends.
    until(LONG, "systemd shuts the machine down", || {
        let jobs = said_by("systemctl", &["list-jobs", "--no-pager"]);
        ensure!(jobs.contains("poweroff.target") || jobs.is_empty(), "{jobs}; {}", locks());
        ensure!(!is_held(), "the lock is held: {}", locks());
        Ok(())
    });
    eprintln!("goes down at {}", said_by("date", &["+%T"]));
}
