//! The machines of a cluster as namespaces: the processes that hold them, and the wires between
//! them.
//!
//! Each machine is a sleeping process with namespaces of its own; other processes enter them
//! through its pid, and the kernel removes them when the last process ends, without a name left on
//! the host. The control plane's machine holds the bridge to which the nodes are wired, so that two
//! clusters share nothing and each may use the same addresses.
//!
//! A node has its own mounts and host name besides. `/etc` and `/var` are overlays: writes stay in
//! the cluster's folder, and the paths are those that the agent, the runtime and the suites expect.
//! `/tmp` is the host's. A node with cgroups of its own takes its cgroup for the root of every
//! hierarchy, as on a machine of its own: a suite that puts pods at the root leaves nothing on the
//! host.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::layout::{CONTROL, Layout, address, number, pod_range};
use super::processes::Processes;
pub(super) use crate::node::network::within;
use crate::shell;

/// How long making the namespaces may take.
const READY_WAIT: Duration = Duration::from_secs(20);
/// The holder of the control plane's namespaces.
pub(super) const CONTROL_HOLDER: &str = "control-machine";

/// Name of a node's holder.
pub(super) fn holder(node: &str) -> String {
    format!("{node}-machine")
}

/// A node's folders, and their paths in the node. They are bind mounts, because a runtime cannot
/// have its own overlays on an overlay, and because the host reads them.
const FOLDERS: [(&str, &str); 6] = [
    ("kubelet", "/var/lib/kubelet"),
    ("containerd", "/var/lib/containerd"),
    ("cni", "/var/lib/cni"),
    ("pod-logs", "/var/log/pods"),
    ("container-logs", "/var/log/containers"),
    ("manifests", "/etc/kubernetes/manifests"),
];

/// Parts of a node's folder that hold the writes to its overlays.
const OVERLAYS: [&str; 3] = ["etc", "var", "libexec"];

/// Puts a file below a node's `/etc`.
pub(super) fn write_etc(layout: &Layout, node: &str, path: &str, text: &str) -> Result<()> {
    let path = layout.node(node).join("etc/upper").join(path);
    fs::create_dir_all(path.parent().expect("it has a folder"))?;
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

/// Starts the control plane's machine and its bridge.
pub(super) fn start_control(layout: &Layout, processes: &Processes) -> Result<()> {
    let ready = layout.dir().join("run/control-ready");
    let mut cmd = Command::new("unshare");
    cmd.args(["-n", "sh", "-ec", r#"ip link set lo up; touch "$1"; exec sleep infinity"#, "sh"]);
    hold(processes, CONTROL_HOLDER, cmd.arg(&ready), &ready)?;
    let links =
        format!("link add br0 type bridge\nlink set br0 up\naddr add {CONTROL}/24 dev br0\n");
    ip(processes, CONTROL_HOLDER, &links)?;
    forward(processes, CONTROL_HOLDER)
}

/// Starts a node's machine, wired to the bridge, with routes to the pods of every node.
pub(super) fn start_node(
    layout: &Layout,
    processes: &Processes,
    node: &str,
    all: &[String],
) -> Result<()> {
    let hosts = format!("127.0.0.1 localhost {node}\n{} {node}\n", address(node));
    write_etc(layout, node, "hosts", &hosts)?;
    write_etc(layout, node, "resolv.conf", &format!("nameserver {CONTROL}\n"))?;
    let dir = layout.node(node);
    for (folder, _) in FOLDERS {
        fs::create_dir_all(dir.join(folder))?;
    }
    for overlay in OVERLAYS {
        for part in ["upper", "work"] {
            fs::create_dir_all(dir.join(overlay).join(part))?;
        }
    }
    let ready = dir.join("ready");
    let own = layout.own_cgroups(node);
    let mut cmd = match &own {
        Some(name) => joined(name, "", "unshare"),
        None => Command::new("unshare"),
    };
    cmd.args(own.iter().map(|_| "-C"));
    cmd.args(["-mnu", "--propagation", "private", "sh", "-ec", MACHINE, "sh"]);
    cmd.arg(node).arg(&dir).arg(&ready);
    cmd.arg(FOLDERS.map(|(folder, at)| format!("{folder}:{at}")).join(" "));
    cmd.arg(own.unwrap_or_default());
    hold(processes, &holder(node), &mut cmd, &ready)?;
    wire(processes, node)?;
    for other in all.iter().filter(|n| *n != node) {
        let route = format!("route add {} via {}\n", pod_range(other), address(other));
        ip(processes, &holder(node), &route)?;
    }
    Ok(())
}

/// Script of a node's holder: `$1` node, `$2` its folder, `$3` the file that says it is ready, `$4`
/// the folders to bind, `$5` the cgroup that the node takes for the root, or nothing.
const MACHINE: &str = r#"
hostname "$1"
mount --make-rshared /
overlay() { mount -t overlay -o "lowerdir=$1,upperdir=$3/$2/upper,workdir=$3/$2/work" "$2" "$1"; }
overlay /etc etc "$2"
overlay /var var "$2"
overlay /usr/libexec libexec "$2"
mount -t tmpfs -o mode=755 tmpfs /run
for pair in $4; do
    mkdir -p "${pair#*:}"
    mount --bind "$2/${pair%%:*}" "${pair#*:}"
done
if [ -n "$5" ]; then
    for own in /sys/fs/cgroup/*/"$5"; do
        [ -L "${own%/*}" ] || mount --bind "$own" "${own%/*}"
    done
fi
ip link set lo up
touch "$3"
exec sleep infinity
"#;

/// Moves itself to the cgroup `$1` of every hierarchy, made if missing, and executes the rest of
/// its arguments. A v1 cpuset takes no process until it has CPUs and memory.
const JOIN: &str = r#"
path=$1
shift
for hierarchy in /sys/fs/cgroup/*/; do
    at=${hierarchy%/}
    IFS=/
    for part in $path; do
        mkdir -p "$at/$part"
        for file in cpuset.cpus cpuset.mems; do
            [ -f "$at/$part/$file" ] || continue
            [ -n "$(cat "$at/$part/$file")" ] || cat "$at/$file" > "$at/$part/$file"
        done
        at=$at/$part
    done
    unset IFS
    echo $$ > "$at/cgroup.procs"
done
exec "$@"
"#;

/// A program in the cgroup of a node, or in one directly below, which is made if missing.
fn joined(cgroup: &str, below: &str, program: &str) -> Command {
    let mut cmd = Command::new("sh");
    let cgroup = if below.is_empty() { cgroup.to_owned() } else { format!("{cgroup}/{below}") };
    cmd.args(["-ec", JOIN, "sh", &cgroup, program]);
    cmd
}

/// Starts a holder and waits until its namespaces are made.
fn hold(processes: &Processes, name: &str, cmd: &mut Command, ready: &Path) -> Result<()> {
    let _ = fs::remove_file(ready);
    processes.start(name, cmd)?;
    processes.wait(name, READY_WAIT, || {
        ensure!(ready.exists(), "the namespaces are not ready");
        Ok(())
    })
}

/// A cable from the node to the bridge, addresses, and routes in both directions.
fn wire(processes: &Processes, node: &str) -> Result<()> {
    let holder = holder(node);
    let pid = processes.pid(&holder).context("the node's machine runs")?;
    let (own, pods, port) = (address(node), pod_range(node), format!("port{}", number(node)));
    let bridge = format!(
        "link add {port} type veth peer name eth0 netns {pid}\nlink set {port} master br0 up\n\
         route add {pods} via {own}\n"
    );
    ip(processes, CONTROL_HOLDER, &bridge)?;
    if number(node) == 1 {
        // Services have their addresses on nodes only; the suites call them from here.
        ip(processes, CONTROL_HOLDER, &format!("route add default via {own}\n"))?;
    }
    let inside =
        format!("addr add {own}/24 dev eth0\nlink set eth0 up\nroute add default via {CONTROL}\n");
    ip(processes, &holder, &inside)?;
    forward(processes, &holder)
}

/// A command that runs in a machine's network, and in all its namespaces if it is a node.
pub(super) fn enter(processes: &Processes, holder: &str, program: &Path) -> Result<Command> {
    let pid = processes.pid(holder);
    let pid = pid.with_context(|| format!("{holder} does not run; `cargo xtask cluster up`"))?;
    let mut cmd = Command::new("nsenter");
    cmd.args(["-t", &pid.to_string(), "-n"]);
    if holder != CONTROL_HOLDER {
        cmd.args(["-m", "-u"]);
    }
    cmd.arg("--").arg(program);
    Ok(cmd)
}

/// The same for a node with cgroups of its own, with the program in the cgroup `below` its root.
pub(super) fn enter_below(
    processes: &Processes,
    node: &str,
    cgroup: &str,
    below: &str,
    program: &Path,
) -> Result<Command> {
    let pid = processes.pid(&holder(node)).with_context(|| format!("{node} does not run"))?;
    let mut cmd = joined(cgroup, below, "nsenter");
    cmd.args(["-t", &pid.to_string(), "-n", "-m", "-u", "-C", "--"]).arg(program);
    Ok(cmd)
}

/// Runs a batch of `ip` commands in a machine.
pub(super) fn ip(processes: &Processes, holder: &str, batch: &str) -> Result<()> {
    let mut cmd = enter(processes, holder, Path::new("ip"))?;
    cmd.args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = cmd.spawn().context("start ip")?;
    child.stdin.take().expect("piped").write_all(batch.as_bytes())?;
    let out = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "ip in {holder}: {}\n{batch}", said.trim());
    Ok(())
}

/// Lets packets pass; the setting is the namespace's own.
fn forward(processes: &Processes, holder: &str) -> Result<()> {
    let mut cmd = enter(processes, holder, Path::new("sh"))?;
    shell::capture(cmd.args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])).map(drop)
}
