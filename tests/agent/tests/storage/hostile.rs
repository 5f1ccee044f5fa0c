//! Drivers that do harm: they hang, give garbage, flood the folder of registrations, swap their
//! sockets. Another pod starts as on the quiet node, and the agent keeps no thread and no descriptor
//! for them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::ensure;
use pintle_csi_driver::faults::{Fault, Rule};
use pintle_csi_driver::log::{Line, LogFile};
use pintle_testbed::cluster::TestCluster;
use pintle_testbed::manifest::{With, condition, phase};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};

use crate::drivers::{DRIVER, Driver, REGISTRY, SLEEP};
use crate::ground::{Bound, claim, claimant, volume};

/// How much longer than on the quiet node a bystander may take: times, and a part for noise.
const SLOWER: (u32, Duration) = (3, Duration::from_secs(2));
/// Threads of tests that come and go with the work of any pod.
const SPARE_THREADS: usize = 12;
/// Descriptors that connections and watches of any pod take.
const SPARE_FILES: usize = 24;
/// Claims of the pod that has many.
const CLAIMS: usize = 500;
/// Registration sockets of a flood.
const SOCKETS: usize = 400;

/// A node while it is quiet, and then while it is attacked.
pub struct Quiet<'a> {
    test: &'a TestCluster,
    took: Duration,
    threads: usize,
    files: usize,
}

impl<'a> Quiet<'a> {
    /// Starts pods on the quiet node.
    pub fn measure(test: &'a TestCluster) -> Self {
        // The first pod pays for what is cached afterwards.
        start_bystander(test, "warm-up");
        let took = start_bystander(test, "quiet");
        let (threads, files) = held(test);
        Self { test, took, threads, files }
    }

    /// A bystander starts as it did, while the attack goes on.
    pub fn bystander_starts(&self) {
        let took = start_bystander(self.test, "bystander");
        let most = self.took * SLOWER.0 + SLOWER.1;
        eprintln!("    a bystander took {took:.1?}, on the quiet node {:.1?}", self.took);
        assert!(took <= most, "a bystander took {took:?}, on the quiet node {:?}", self.took);
    }

    /// What the agent held for the attack is gone once it has ended.
    pub fn nothing_is_held(&self) {
        until(LONG, "the agent holds no more than before", || {
            let (threads, files) = held(self.test);
            ensure!(threads <= self.threads + SPARE_THREADS, "{threads}, were {}", self.threads);
            ensure!(files <= self.files + SPARE_FILES, "{files} files, were {}", self.files);
            Ok(())
        });
    }
}

/// Starts a pod with a volume of its own; returns how long it took, and removes it.
fn start_bystander(test: &TestCluster, name: &str) -> Duration {
    let volumes = json!([{"name": "data", "emptyDir": {}}]);
    let begun = Instant::now();
    test.apply(&claimant(name, "", SLEEP).with_spec("volumes", volumes));
    test.pod_until(name, "is ready", |pod| condition(pod, "Ready"));
    let took = begun.elapsed();
    test.kubectl(&["delete", "pod", name, "--grace-period=1"]).expect("deleted");
    test.pod_gone(name);
    took
}

/// Threads and open files of the agent.
fn held(test: &TestCluster) -> (usize, usize) {
    let process = Path::new("/proc").join(test.agent_pid().to_string());
    let count = |what: &str| fs::read_dir(process.join(what)).map_or(0, Iterator::count);
    (count("task"), count("fd"))
}

/// A pod that wants a volume of the driver.
pub fn victim(test: &TestCluster, bound: &mut Bound<'_>, name: &str, handle: &str) {
    let source = json!({"driver": DRIVER, "volumeHandle": handle});
    bound.bind(&volume(name, json!({"csi": source})));
    test.apply(&claimant(name, name, SLEEP));
}

#[test]
#[ignore = "minutes: drivers that hang are waited for"]
fn hostile_driver_that_hangs_in_each_call_delays_its_own_pods_alone() {
    let test = TestCluster::take();
    let quiet = Quiet::measure(&test);
    let driver = Driver::named(&test, DRIVER, "hangs", &["--without=attach"]);
    driver.describe(false);
    let mut bound = Bound::new(&test);
    let hang = |method: &str, handle: &str| {
        until(LONG, &format!("{method} hangs"), || {
            ensure!(is_called(&driver, method, handle), "it is not called");
            Ok(())
        });
        quiet.bystander_starts();
        driver.fail(&[]);
    };
    let mut handles = Vec::new();
    for (name, method) in [("stage", "NodeStageVolume"), ("publish", "NodePublishVolume")] {
        let handle = driver.create(name);
        driver.fail(&[Rule::new(method, Fault::Hang)]);
        victim(&test, &mut bound, name, &handle);
        hang(method, &handle);
        test.pod_until(name, "is ready", |pod| condition(pod, "Ready"));
        handles.push((name, handle));
    }
    for ((name, handle), method) in handles.iter().zip(["NodeUnpublishVolume", "NodeUnstageVolume"])
    {
        driver.fail(&[Rule::new(method, Fault::Hang)]);
        let delete = ["delete", "pod", name, "--grace-period=1", "--wait=false"];
        test.kubectl(&delete).expect("deleted");
        hang(method, handle);
        test.pod_gone(name);
    }
    driver.nothing_is_left();
    quiet.nothing_is_held();
}

fn is_called(driver: &Driver<'_>, method: &str, handle: &str) -> bool {
    let is_it = |line: &Line| line.method == method && line.volume == handle;
    let lines = LogFile::new(&driver.state).read();
    lines.is_ok_and(|lines| lines.iter().any(is_it))
}

/// A socket whose owner answers every connection with garbage, or never.
struct BadSocket {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    path: std::path::PathBuf,
}

impl BadSocket {
    fn new(path: &Path, answer: Option<&'static [u8]>) -> Self {
        let _ = fs::remove_file(path); // that of an earlier test
        let listener = UnixListener::bind(path).expect("bound");
        listener.set_nonblocking(true).expect("set");
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut open = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                if let Ok((mut stream, _)) = listener.accept() {
                    if let Some(bytes) = answer {
                        let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
                        let _ = stream.read(&mut [0; 512]);
                        let _ = stream.write_all(bytes); // the agent may have closed it
                    }
                    open.push(stream);
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        Self { stop, thread: Some(thread), path: path.to_owned() }
    }
}

impl Drop for BadSocket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

#[test]
#[ignore = "minutes: drivers that hang are waited for"]
fn hostile_registrations_that_flood_hang_or_answer_garbage_do_not_delay_a_driver() {
    let test = TestCluster::take();
    let quiet = Quiet::measure(&test);
    let registry = test.on_node(REGISTRY);
    let socket = |at: usize| registry.join(format!("flood-{at}.sock"));
    let bad: Vec<BadSocket> = (0..SOCKETS)
        .map(|at| {
            BadSocket::new(&socket(at), (at % 2 == 0).then_some(&b"\0\0\0\xff\xffgarbage"[..]))
        })
        .collect();
    quiet.bystander_starts();
    drop(bad);
    let driver = Driver::named(&test, DRIVER, "flooded", &["--without=attach"]);
    driver.describe(false);
    let (mut bound, handle) = (Bound::new(&test), driver.create("flooded"));
    victim(&test, &mut bound, "flooded", &handle);
    test.pod_until("flooded", "is ready", |pod| condition(pod, "Ready"));
    test.kubectl(&["delete", "pod", "flooded", "--grace-period=1"]).expect("deleted");
    driver.nothing_is_left();
    quiet.nothing_is_held();
}

#[test]
#[ignore = "minutes: drivers that hang are waited for"]
fn hostile_driver_with_link_fifo_or_garbage_as_its_socket_delays_only_its_own_pods() {
    let test = TestCluster::take();
    let quiet = Quiet::measure(&test);
    let driver = Driver::named(&test, DRIVER, "swaps", &["--without=attach"]);
    driver.describe(false);
    let handle = driver.create("swaps");
    let mut bound = Bound::new(&test);
    victim(&test, &mut bound, "before", &handle);
    test.pod_until("before", "is ready", |pod| condition(pod, "Ready"));
    let endpoint = driver.state.join("csi.sock");
    let kept = driver.state.join("kept.sock");
    fs::rename(&endpoint, &kept).expect("moved");
    // The link leads to another socket of the node: that of the container runtime.
    let swaps: [&dyn Fn(); 3] = [
        &|| symlink("/run/containerd/containerd.sock", &endpoint).expect("a link"),
        &|| nix::unistd::mkfifo(&endpoint, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO"),
        &|| fs::create_dir(&endpoint).expect("a folder"),
    ];
    for (at, swap) in swaps.iter().enumerate() {
        swap();
        let name = format!("after-{at}");
        let source = json!({"driver": DRIVER, "volumeHandle": driver.create(&name)});
        bound.bind(&volume(&name, json!({"csi": source})));
        test.apply(&claimant(&name, &name, SLEEP));
        quiet.bystander_starts();
        let pod = test.pod(&name).expect("asked").expect("a pod");
        assert_eq!(phase(&pod), "Pending", "it has no driver");
        let _ = fs::remove_file(&endpoint).or_else(|_| fs::remove_dir(&endpoint));
    }
    {
        let _garbage = BadSocket::new(&endpoint, Some(b"HTTP/1.1 200 OK\r\n\r\n"));
        quiet.bystander_starts();
    }
    fs::rename(&kept, &endpoint).expect("moved back");
    for at in 0..swaps.len() {
        test.pod_until(&format!("after-{at}"), "is ready", |pod| condition(pod, "Ready"));
    }
    test.kubectl(&["delete", "pods", "--all", "--grace-period=1"]).expect("deleted");
    driver.nothing_is_left();
    quiet.nothing_is_held();
}

#[test]
#[ignore = "minutes: drivers that hang are waited for"]
fn hostile_pod_with_five_hundred_claims_does_not_delay_another_pod() {
    let test = TestCluster::take();
    let quiet = Quiet::measure(&test);
    let driver = Driver::named(&test, DRIVER, "many", &["--without=attach"]);
    driver.describe(false);
    let name = |at: usize| format!("many-{at}");
    let volumes: Vec<Value> = (0..CLAIMS)
        .map(|at| {
            let source = json!({"driver": DRIVER, "volumeHandle": driver.create(&name(at))});
            volume(&name(at), json!({"csi": source}))
        })
        .collect();
    let claims: Vec<Value> = volumes.iter().map(claim).collect();
    let all: Vec<Value> = volumes.iter().cloned().chain(claims).collect();
    let mut bound = Bound::new(&test);
    bound.bind_list(&all, CLAIMS);
    let refer =
        |at: usize| json!({"name": name(at), "persistentVolumeClaim": {"claimName": name(at)}});
    let mount = |at: usize| json!({"name": name(at), "mountPath": format!("/data/{at}")});
    let volumes: Value = (0..CLAIMS).map(refer).collect();
    let mounts: Value = (0..CLAIMS).map(mount).collect();
    let mut pod = claimant("many", "", SLEEP).with_spec("volumes", volumes);
    pod["spec"]["containers"][0]["volumeMounts"] = mounts;
    test.apply(&pod);
    quiet.bystander_starts();
    until(4 * LONG, "the pod with all claims is ready", || {
        let pod = test.pod("many")?;
        ensure!(pod.is_some_and(|pod| condition(&pod, "Ready")), "it is not");
        Ok(())
    });
    test.kubectl(&["delete", "pod", "many", "--grace-period=1", "--wait=false"]).expect("deleted");
    quiet.bystander_starts();
    until(4 * LONG, "the pod with all claims is gone", || {
        ensure!(test.pod("many")?.is_none(), "it is there");
        Ok(())
    });
    driver.nothing_is_left();
    quiet.nothing_is_held();
}
