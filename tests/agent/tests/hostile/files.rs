//! Attacks of a tenant on the files that the agent reads, writes or removes for it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::ensure;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use pintle_testbed::attacks;
use pintle_testbed::manifest::{
    With, condition, container, container_id, is_running, last_end, pod, restarts, script,
    status_of,
};
use pintle_testbed::node::NODE_NAME;
use pintle_testbed::{LONG, until};
use serde_json::json;
use xtask::node::agent::READ_ONLY_PORT;
use xtask::shell;

use crate::ground::AttackedNode;
use crate::support::{goes, host, kill, log_file, running, with_host};

/// How often the agent is killed on a full disk.
const KILLS: usize = 4;

attacks!(AttackedNode, "files":
    logs_that_are_something_else,
    last_words_that_are_something_else,
    a_huge_fragmented_hosts_file,
    a_volume_of_many_files_and_one_of_great_depth,
    mounts_left_in_a_volume,
    links_where_the_agent_writes,
    host_paths_that_are_something_else,
    a_disk_that_is_full,
    a_disk_without_a_byte_while_the_agent_dies,
    a_disk_that_takes_no_writes,
);

/// Log files replaced by a FIFO, a link to /dev/zero, a folder, a link to itself; then the
/// containers die, and their logs are asked for.
fn logs_that_are_something_else(ground: &mut AttackedNode) {
    let node = &ground.node;
    let names = ["fifo", "zero", "folder", "loop"];
    for name in names {
        let c = script("c", "echo said; exec /box pause")
            .with("terminationMessagePolicy", json!("FallbackToLogsOnError"));
        node.put(&format!("{name}.json"), &pod(name, &[c]));
    }
    for name in names {
        let it = running(node, name, &["c"]);
        let log = log_file(node, name, "c");
        fs::remove_file(&log).expect("removed");
        match name {
            "fifo" => mkfifo(&log, Mode::S_IRWXU).expect("made"),
            "zero" => symlink("/dev/zero", &log).expect("linked"),
            "folder" => fs::create_dir(&log).expect("made"),
            _ => symlink(&log, &log).expect("linked"),
        }
        kill(node, &it, "c");
    }
    for name in names {
        let path = format!("/containerLogs/default/{name}-{NODE_NAME}/c?follow=true&previous=true");
        let mut stream = ground.port.connect(node, crate::port::Who::Known).expect("taken");
        use std::io::Write as _;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").expect("sent");
        stream.flush().expect("sent");
    }
    let _ = node.get(READ_ONLY_PORT, "/stats/summary");
    ground.bystander("beside them");
    for name in names {
        ground.node.pod_until(name, "was restarted", |p| restarts(p, "c") >= 1);
    }
}

/// The termination message is a FIFO, a gigabyte, a device, or a link to a forbidden file.
fn last_words_that_are_something_else(ground: &mut AttackedNode) {
    let node = &ground.node;
    let ends = |name: &str, text: &str| {
        let c = script("c", &format!("{text}; exit 1"))
            .with("terminationMessagePath", json!("/words/m"))
            .with("volumeMounts", json!([{"name": "words", "mountPath": "/words"}]))
            .with("securityContext", json!({"privileged": true}));
        node.put(
            &format!("{name}.json"),
            &pod(name, &[c]).with_spec("volumes", json!([{"name": "words", "emptyDir": {}}])),
        );
    };
    ends("fifo", "rm -f /words/m; mkfifo /words/m");
    ends("shadow", "rm -f /words/m; ln -s /etc/shadow /words/m");
    ends("device", "rm -f /words/m; mknod /words/m c 1 5");
    ends("folder", "rm -f /words/m; mkdir -p /words/m");
    ends("long", "head -c 1000000000 /dev/zero | tr '\\0' x > /words/m");
    let plain =
        script("c", "head -c 300000000 /dev/zero | tr '\\0' x > /dev/termination-log; exit 1");
    node.put("plain.json", &pod("plain", &[plain]));
    ground.bystander("while they end");
    for name in ["fifo", "shadow", "device", "folder", "plain"] {
        let it = node.pod_until(name, "was restarted", |p| restarts(p, "c") >= 1);
        let words = status_of(&it, "c")
            .and_then(|c| c.last_state.as_ref()?.terminated.as_ref()?.message.clone());
        let words = words.unwrap_or_default();
        assert!(!words.contains("root:") && words.len() <= 4096, "{name}: {words}");
        assert_eq!(last_end(&it, "c").map(|e| e.0), Some(1), "{name}");
    }
}

/// The container's own /etc/hosts, grown to a gigabyte in pieces of one block; its restart makes
/// the agent rewrite that file.
fn a_huge_fragmented_hosts_file(ground: &mut AttackedNode) {
    let text = "i=0; while [ $i -lt 4000 ]; do \
                dd if=/dev/zero of=/etc/hosts bs=4k count=1 seek=$((i * 64)) conv=notrunc 2>/dev/null; \
                i=$((i + 1)); done; dd if=/dev/zero of=/etc/hosts bs=1M count=500 conv=notrunc seek=1100 2>/dev/null; \
                echo grown; exec /box pause";
    let big = |name: &str| pod(name, &[script("c", text)]);
    for name in ["big1", "big2"] {
        ground.node.put(&format!("{name}.json"), &big(name));
    }
    for name in ["big1", "big2"] {
        until(LONG, "the file has grown", || {
            let log = fs::read_to_string(log_file(&ground.node, name, "c"))?;
            ensure!(log.contains("grown"), "{log}");
            Ok(())
        });
        let it = running(&ground.node, name, &["c"]);
        kill(&ground.node, &it, "c");
    }
    ground.bystander("while it is written again");
    for name in ["big1", "big2"] {
        ground.node.pod_until(name, "was restarted", |p| restarts(p, "c") >= 1);
    }
}

/// 200,000 files in one emptyDir, 2,000 nested folders in another; both are removed.
fn a_volume_of_many_files_and_one_of_great_depth(ground: &mut AttackedNode) {
    let many =
        "mkdir /v/d; cd /v/d; seq 1 200000 | xargs -n 2000 touch; echo made; exec /box pause";
    let deep = "cd /v; i=0; while [ $i -lt 2000 ]; do mkdir d; cd d; i=$((i + 1)); done; \
                echo made; exec /box pause";
    for (name, text) in [("many", many), ("deep", deep)] {
        let c = script("c", text).with("volumeMounts", json!([{"name": "v", "mountPath": "/v"}]));
        ground.node.put(
            &format!("{name}.json"),
            &pod(name, &[c]).with_spec("volumes", json!([{"name": "v", "emptyDir": {}}])),
        );
    }
    for name in ["many", "deep"] {
        until(LONG, "the volume is full", || {
            let log = fs::read_to_string(log_file(&ground.node, name, "c"))?;
            ensure!(log.contains("made"), "{log}");
            Ok(())
        });
    }
    let _ = ground.node.get(READ_ONLY_PORT, "/stats/summary");
    ground.node.remove("many.json");
    ground.node.remove("deep.json");
    ground.bystander("while they are removed");
    ground.node.gone("many");
    ground.node.gone("deep");
}

/// A privileged container mounts into its volume, the mounts propagate to the node, and the
/// container ends without unmounting them. The files behind them belong to the node.
fn mounts_left_in_a_volume(ground: &mut AttackedNode) {
    let precious = ground.node.dir().join("precious");
    fs::create_dir_all(&precious).expect("made");
    fs::write(precious.join("file"), "precious").expect("written");
    let text = "i=0; while [ $i -lt 20 ]; do mkdir -p /v/m$i; mount -t tmpfs none /v/m$i; \
                i=$((i + 1)); done; mkdir -p /v/p; mount --bind /host /v/p; echo made; exec /box pause";
    let c = script("c", text).with("securityContext", json!({"privileged": true})).with(
        "volumeMounts",
        json!([
            {"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"},
            {"name": "host", "mountPath": "/host"}]),
    );
    let manifest = pod("mounter", &[c]).with_spec(
        "volumes",
        json!([
        {"name": "v", "emptyDir": {}}, {"name": "host", "hostPath": {"path": precious}}]),
    );
    ground.node.put("mounter.json", &manifest);
    until(LONG, "the mounts are there", || {
        let log = fs::read_to_string(log_file(&ground.node, "mounter", "c"))?;
        ensure!(log.contains("made"), "{log}");
        Ok(())
    });
    ground.node.remove("mounter.json");
    ground.bystander("while they are taken away");
    ground.node.gone("mounter");
    let text = fs::read_to_string(precious.join("file")).expect("it is still there");
    assert_eq!(text, "precious");
}

/// A tenant with the agent's folder puts links where the agent writes next.
fn links_where_the_agent_writes(ground: &mut AttackedNode) {
    let target = ground.node.dir().join("not-yours");
    fs::write(&target, "untouched").expect("written");
    ground.node.put("linked.json", &pod("linked", &[container("c", &["/box", "pause"])]));
    let it = ground.node.pod_until("linked", "is ready", |p| condition(p, "Ready"));
    let pods = fs::read_dir(ground.node.root().join("pods")).expect("read").flatten();
    for entry in pods {
        let hosts = entry.path().join("etc-hosts");
        let _ = fs::remove_file(&hosts);
        symlink(&target, &hosts).expect("linked");
        let containers = entry.path().join("containers/c");
        for words in fs::read_dir(&containers).into_iter().flatten().flatten() {
            let _ = fs::remove_file(words.path());
            let _ = symlink(&target, words.path());
        }
    }
    kill(&ground.node, &it, "c");
    ground.bystander("beside it");
    ground.node.remove("linked.json");
    ground.node.gone("linked");
    assert_eq!(fs::read_to_string(&target).expect("it is there"), "untouched");
}

/// hostPath volumes on a FIFO, a socket, a link to itself and a device.
fn host_paths_that_are_something_else(ground: &mut AttackedNode) {
    let dir = ground.node.dir().join("odd");
    fs::create_dir_all(&dir).expect("made");
    mkfifo(&dir.join("fifo"), Mode::S_IRWXU).expect("made");
    symlink(dir.join("loop"), dir.join("loop")).expect("linked");
    let _socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).expect("bound");
    let mut n = 0;
    for path in ["fifo", "loop", "socket", "missing/deep/path"] {
        for kind in
            ["", "File", "FileOrCreate", "Directory", "DirectoryOrCreate", "Socket", "BlockDevice"]
        {
            let name = format!("odd{n}");
            let mut volume = host(&dir.join(path));
            volume[0]["hostPath"]["type"] = json!(kind);
            // Most are refused, and those that are not must not be opened.
            let manifest = pod(&name, &[with_host(container("c", &["/box", "pause"]))]);
            if path != "missing/deep/path" || kind == "Directory" {
                ground.node.put(&format!("{name}.json"), &manifest.with_spec("volumes", volume));
                n += 1;
            }
        }
    }
    ground.bystander("while they are looked at");
    fs::remove_dir_all(&dir).expect("removed");
}

/// A command inside the node; it must succeed.
fn inside(ground: &AttackedNode, program: &str, args: &[&Path]) {
    let mut cmd = ground.node.runtime_node().command(Path::new(program));
    shell::run(cmd.args(args)).expect("it runs");
}

/// The disk of the agent's folder and of the logs fills up, while pods start and end; then space is
/// freed.
fn a_disk_that_is_full(_: &mut AttackedNode) {
    // The folders must be on a disk of their own before the agent starts.
    let ground = AttackedNode::prepare_with(json!({}), |node| {
        for dir in [node.root(), node.pod_logs()] {
            let mut mount = node.runtime_node().command(Path::new("mount"));
            mount.args(["-t", "tmpfs", "-o", "size=24m", "none"]).arg(dir);
            shell::run(&mut mount).expect("mounted in the node");
        }
    });
    let node = &ground.node;
    let survivor = pod("survivor", &[container("c", &["/box", "pause"])]);
    node.put("survivor.json", &survivor);
    let it = node.pod_until("survivor", "is ready", |p| condition(p, "Ready"));
    for dir in [node.root(), node.pod_logs()] {
        let text = "head -c 30000000 /dev/zero > \"$0\"/ballast; true";
        inside(&ground, "sh", &["-c".as_ref(), text.as_ref(), &dir]);
    }
    node.put("late.json", &pod("late", &[container("c", &["/box", "pause"])]));
    until(ground.limit("finds the node healthy"), "the node is healthy", || {
        crate::bystander::healthy(node)
    });
    until(ground.limit("starts"), "pods are listed", || node.pod("late").map(drop));
    kill(node, &it, "c");
    for dir in [node.root(), node.pod_logs()] {
        inside(&ground, "rm", &[&dir.join("ballast")]);
    }
    node.pod_until("survivor", "was restarted", |p| restarts(p, "c") >= 1 && is_running(p, "c"));
    node.pod_until("late", "is ready after all", |p| condition(p, "Ready"));
    ground.bystander("on a disk with room");
    ground.recover();
}

/// A disk of blocks, for the agent's folder `$1` and the logs `$2`.
const BLOCKS: &str = r#"
truncate -s 64M "$0/blocks.img"
mkfs.ext4 -q -F -m 0 "$0/blocks.img"
mkdir "$0/blocks"
mount -o loop "$0/blocks.img" "$0/blocks"
mkdir "$0/blocks/root" "$0/blocks/logs"
mount --bind "$0/blocks/root" "$1"
mount --bind "$0/blocks/logs" "$2"
"#;
/// Fills the disk to the last byte.
const FILL: &str = "cat /dev/zero >> \"$0\"/ballast; true";

/// The disk is completely full while pods start, die and are deleted, and while the agent is
/// killed; then space is freed, and everything recovers.
fn a_disk_without_a_byte_while_the_agent_dies(_: &mut AttackedNode) {
    let mut ground = AttackedNode::prepare_with(json!({}), |node| {
        let mut mount = node.runtime_node().command(Path::new("sh"));
        mount.args(["-ec", BLOCKS]).args([node.dir(), &node.root(), &node.pod_logs()]);
        shell::run(&mut mount).expect("mounted in the node");
    });
    let pause = || container("c", &["/box", "pause"]);
    let volume = json!([{"name": "v", "emptyDir": {}}]);
    let holds = script("c", "[ -f /v/kept ] || echo once >> /v/kept; exec /box pause")
        .with("volumeMounts", json!([{"name": "v", "mountPath": "/v"}]));
    ground.node.put("quiet.json", &pod("quiet", &[pause()]));
    ground.node.put("dies.json", &pod("dies", &[holds]).with_spec("volumes", volume));
    let quiet = running(&ground.node, "quiet", &["c"]);
    let dies = running(&ground.node, "dies", &["c"]);
    for round in 0..KILLS {
        inside(&ground, "sh", &["-c".as_ref(), FILL.as_ref(), &ground.node.root()]);
        ground.node.put(&format!("late{round}.json"), &pod(&format!("late{round}"), &[pause()]));
        if let Some(before) = usize::checked_sub(round, 2) {
            ground.node.remove(&format!("late{before}.json"));
        }
        if round == 1 {
            kill(&ground.node, &dies, "c");
        }
        until(ground.limit("is listed"), "pods are listed", || ground.node.pods().map(drop));
        ground.node.kill_agent();
        ground.node.start_agent();
    }
    inside(&ground, "rm", &[&ground.node.root().join("ballast")]);
    let check = |ground: &AttackedNode| {
        let node = &ground.node;
        for late in [KILLS - 2, KILLS - 1] {
            node.pod_until(&format!("late{late}"), "is ready", |p| condition(p, "Ready"));
        }
        for gone in 0..KILLS - 2 {
            node.gone(&format!("late{gone}"));
        }
        let dies = node.pod_until("dies", "is ready again", |p| condition(p, "Ready"));
        assert_eq!(restarts(&dies, "c"), 1, "it died once");
        let same = node.pod_until("quiet", "is ready", |p| condition(p, "Ready"));
        assert_eq!(container_id(&same, "c"), container_id(&quiet, "c"), "it was not restarted");
        let uid =
            dies.metadata.annotations.as_ref().and_then(|a| a.get("kubernetes.io/config.hash"));
        let uid = uid.expect("a static pod has a hash");
        let kept =
            node.root().join("pods").join(uid).join("volumes/kubernetes.io~empty-dir/v/kept");
        inside(ground, "grep", &["-qx".as_ref(), "once".as_ref(), &kept]);
    };
    check(&ground);
    // The next agent reads the checkpoints.
    ground.node.kill_agent();
    ground.node.start_agent();
    check(&ground);
    for entry in fs::read_dir(ground.node.manifests()).expect("read").flatten() {
        fs::remove_file(entry.path()).expect("removed");
    }
    ground.node.clean();
}

/// The disk of the agent's folder takes no writes for a while, as after an error of it.
fn a_disk_that_takes_no_writes(ground: &mut AttackedNode) {
    let node = &ground.node;
    node.put("survivor.json", &pod("survivor", &[container("c", &["/box", "pause"])]));
    node.pod_until("survivor", "is ready", |p| condition(p, "Ready"));
    let root = node.root();
    inside(ground, "mount", &["--bind".as_ref(), &root, &root]);
    let writable = Writable { ground };
    inside(ground, "mount", &["-o".as_ref(), "remount,ro,bind".as_ref(), &root]);
    node.put("late.json", &pod("late", &[container("c", &["/box", "pause"])]));
    node.remove("survivor.json");
    until(ground.limit("starts"), "pods are listed", || node.pod("late").map(drop));
    let path = format!("/containerLogs/default/late-{NODE_NAME}/c");
    until(ground.limit("is listed"), "the port answers", || ground.port.get(node, &path).map(drop));
    crate::bystander::healthy(node).expect("the node is healthy");
    drop(writable);
    node.pod_until("late", "is ready after all", |p| condition(p, "Ready"));
    goes_after_all(ground);
    ground.bystander("on a disk that takes writes again");
}

fn goes_after_all(ground: &AttackedNode) {
    ground.node.gone("survivor");
    ground.node.remove("late.json");
    goes(ground, "late");
}

/// Makes the folder writable again when dropped.
struct Writable<'a> {
    ground: &'a AttackedNode,
}

impl Drop for Writable<'_> {
    fn drop(&mut self) {
        let mut umount = self.ground.node.runtime_node().command(Path::new("umount"));
        let _ = shell::run(umount.arg("-l").arg(self.ground.node.root()));
    }
}
