//! Upstream's suite for one node, `test/e2e_node`, with our agent or with the kubelet.
//!
//! Input: which tests, which agent. Output: a table of each test's result compared with its result
//! with the kubelet, and whether that is good. The suite brings etcd, an API server and the
//! namespace controller, and starts the agent itself, as it starts the kubelet: with a
//! configuration and flags of its own, through systemd. It finds ours under the kubelet's name, and
//! stand-ins for systemd's commands; both agents are started the same way. The machine is a
//! cluster's node that takes its own cgroup for the root, with the images and the registry that
//! clusters have.

mod guest;
mod judge;
mod set;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use self::judge::RunResults;
pub use self::set::Set;
use crate::cache;
use crate::cluster::node::RUNTIME_CGROUP;
use crate::cluster::{Agent, Cluster};
use crate::conformance::{follow, report};
use crate::image::pulled;
use crate::image::registry::Storage;
use crate::repository;
use crate::shell::{capture, say, tail};
use crate::upstream::Program;

/// Tests at once: they wait for most of their time.
const PROCS: usize = 4;
/// The longest that a whole run may take.
const RUN_MAX: &str = "3h";
/// Size of the node's disk where tests fill it: one writes 4 GiB, and images take a gigabyte.
const DISK_BYTES: u64 = 8 << 30;
/// Name of the only node.
const NODE: &str = "n1";
/// The cgroup of the suite itself.
const SUITE_CGROUP: &str = "user.slice/suite";
const SOCKET: &str = "unix:///run/containerd/containerd.sock";
/// Stand-ins for systemd's own commands.
const STAND_INS: [(&str, &str); 3] = [
    ("systemd-run", include_str!("stand_ins/systemd-run")),
    ("systemctl", include_str!("stand_ins/systemctl")),
    ("sudo", include_str!("stand_ins/sudo")),
];

/// The tests to run, the agent, and the output.
#[derive(Clone, Debug)]
pub struct NodeTestPlan {
    /// The agent.
    pub agent: Agent,
    /// From which tests are chosen.
    pub set: Set,
    /// Names that match are chosen; empty for all.
    pub focus: String,
    /// Pattern of names to leave out; empty for none.
    pub skip: String,
    /// Tests with these labels instead of those of the set; empty for none.
    pub label: String,
    /// How many run at once.
    pub procs: usize,
    /// True if the results are recorded as the kubelet's.
    pub record: bool,
    /// Folder of reports and logs instead of the usual one.
    pub reports: Option<PathBuf>,
}

impl Default for NodeTestPlan {
    fn default() -> Self {
        Self {
            agent: Agent::Pintle(None),
            set: Set::Usual,
            focus: String::new(),
            skip: String::new(),
            label: String::new(),
            procs: PROCS,
            record: false,
            reports: None,
        }
    }
}

impl NodeTestPlan {
    /// Returns whether these are all tests of the kubelet's list.
    fn is_whole(&self) -> bool {
        self.focus.is_empty() && self.skip.is_empty() && self.label.is_empty()
    }

    fn is_kubelet(&self) -> bool {
        !matches!(self.agent, Agent::Pintle(_))
    }

    /// Folder of reports and logs: a run of a few tests does not overwrite those of a whole run.
    fn reports(&self) -> PathBuf {
        if let Some(dir) = &self.reports {
            return dir.clone();
        }
        let agent = if self.is_kubelet() { "kubelet" } else { "pintle" };
        let set = self.set.suffix();
        let tests = if self.is_whole() { "" } else { "-some" };
        repository().join(format!("target/e2e-node/{agent}{set}{tests}"))
    }

    /// The filters of the request besides labels.
    fn asked(&self) -> Vec<String> {
        let all = [("focus", &self.focus), ("skip", &self.skip)];
        let given = all.into_iter().filter(|(_, value)| !value.is_empty());
        given.map(|(name, value)| format!("--{name}={value}")).collect()
    }

    /// Ginkgo arguments for the set, before names are chosen.
    fn base(&self) -> Vec<String> {
        if self.label.is_empty() {
            self.set.filters()
        } else {
            vec![format!("--label-filter={}", self.label)]
        }
    }

    /// Ginkgo arguments that run the chosen tests. All names of the usual set are longer than an
    /// argument may be; of the other set, some tests that labels and words choose are left out.
    fn filters(&self, chosen: &BTreeSet<String>) -> Vec<String> {
        match self.set {
            Set::Usual | Set::CgroupV2 => self.base().into_iter().chain(self.asked()).collect(),
            Set::Serial | Set::Guest => vec![format!("--focus={}", set::pattern(chosen))],
        }
    }
}

/// Runs the tests on a machine that is made for them and removed afterwards; prints what came out
/// and returns whether it is good.
pub fn run(plan: &NodeTestPlan) -> Result<bool> {
    ensure!(!plan.record || plan.is_kubelet(), "only runs with the kubelet are written down");
    let is_shared = plan.set == Set::CgroupV2;
    ensure!(!plan.record || !is_shared, "{} has what the test host came to", plan.set.list());
    let files = Files::read(plan)?;
    let cluster = Cluster::of_this_run("enode")?.with_nodes(1)?;
    let agent = cluster.agent_program(&plan.agent)?;
    // A machine of its own sees no temporary files of the host.
    let dir =
        if plan.set.is_of_guest() { plan.reports() } else { cluster.layout().dir().to_owned() };
    cache::remove(&dir.join("suite"))?;
    let suite = NodeSuite::in_folder(&dir.join("suite"), &agent, plan.set)?;
    let chosen = suite.chosen(plan, &files)?;
    ensure!(!chosen.is_empty(), "no test is chosen");
    let result = if plan.set.is_of_guest() {
        suite.run_in_guest(plan, &chosen)
    } else {
        up(&cluster, plan.set).and_then(|()| suite.run_on_node(&cluster, plan, &chosen))
    };
    let kept = suite.keep_logs(&plan.reports());
    cluster.down()?;
    cache::remove(&dir.join("suite"))?;
    let is_complete = result?;
    kept?;
    let json = fs::read_to_string(plan.reports().join("report.json")).context("read the report")?;
    Ok(conclude(plan, &files, &chosen, &json)? && is_complete)
}

/// Starts the node. The serial set also fills disks, and pulls every image that the suite names.
fn up(cluster: &Cluster, set: Set) -> Result<()> {
    let disk = (set == Set::Serial).then_some(DISK_BYTES);
    cluster.up_for_node_suite(NODE, disk)?;
    if set == Set::Serial {
        pulled::add_to(&Storage::at(&cluster.layout().registry()))?;
    }
    Ok(())
}

/// The repository's files about the tests of a run.
struct Files {
    /// Results of the tests with the kubelet.
    kubelet: String,
    exceptions: String,
    /// Tests that the test host cannot run, for a set that another machine runs.
    left_out_of_host: Option<String>,
}

impl Files {
    /// Reads them, and refuses what does not fit together before anything runs.
    fn read(plan: &NodeTestPlan) -> Result<Self> {
        let read = |path: &str| fs::read_to_string(repository().join(path));
        let list = |set: Set| {
            let path = set.list();
            read(path).with_context(|| {
                format!(
                    "{path} has to say what the tests come to with the kubelet; \
                     `cargo xtask e2e-node --agent kubelet --record` writes it"
                )
            })
        };
        let kubelet =
            if plan.record { read(plan.set.list()).unwrap_or_default() } else { list(plan.set)? };
        let set = plan.set;
        let of = |set: Set| read(set.exceptions()).with_context(|| set.exceptions().to_owned());
        let exceptions = of(set)?;
        if !plan.record {
            let all = set.siblings().iter().copied().map(list).collect::<Result<Vec<_>>>()?;
            judge::check_exceptions(&exceptions, &all)?;
        }
        let left_out_of_host = (set == Set::Guest).then(|| of(Set::Serial)).transpose()?;
        Ok(Self { kubelet, exceptions, left_out_of_host })
    }
}

fn conclude(
    plan: &NodeTestPlan,
    files: &Files,
    chosen: &BTreeSet<String>,
    json: &str,
) -> Result<bool> {
    // Another run may have written some of it meanwhile.
    let newest = if plan.record {
        fs::read_to_string(repository().join(plan.set.list()))
    } else {
        Ok(files.kubelet.clone())
    };
    let listed = newest.unwrap_or_default();
    let mut known = judge::parse_kubelet(&listed)?;
    let exceptions = judge::parse_exceptions(&files.exceptions, plan.is_kubelet())?;
    let came = RunResults::read(json)?;
    let recorded = came.recorded(chosen, &known, plan.is_whole());
    if plan.record {
        fs::write(repository().join(plan.set.list()), &recorded).context("write the list")?;
        known = judge::parse_kubelet(&recorded)?;
    }
    let table = came.table(chosen, &known);
    fs::write(plan.reports().join("results.txt"), &table)?;
    fs::write(plan.reports().join("failures.txt"), report::failures(&came.ran))?;
    println!("{table}");
    if came.ran.iter().any(|o| !o.passed) {
        println!("why:\n{}", report::failures(&came.ran));
    }
    let faults = came.faults(chosen, &known, &exceptions, plan.is_whole());
    println!("{}", came.totals(chosen, &known));
    for fault in &faults {
        println!("{fault}");
    }
    Ok(faults.is_empty())
}

/// The folder from which the suite runs: it writes beside its program.
struct NodeSuite {
    dir: PathBuf,
}

impl NodeSuite {
    fn in_folder(dir: &Path, agent: &Path, set: Set) -> Result<Self> {
        let suite = Self { dir: dir.to_owned() };
        fs::create_dir_all(dir.join("bin"))?;
        fs::create_dir_all(dir.join("stand-ins"))?;
        fs::create_dir_all(dir.join("tmp"))?;
        // Both as files of their own: the emulated machine does not see every folder of the host.
        let program = Program::E2eNode.ensure()?;
        for (from, to) in [(&*program, suite.program()), (agent, dir.join("bin/kubelet"))] {
            // Resolves a link, because the original is one.
            let from = from.canonicalize().with_context(|| format!("find {}", from.display()))?;
            fs::hard_link(&from, &to)
                .or_else(|_| fs::copy(&from, &to).map(drop))
                .with_context(|| format!("put {} in place", from.display()))?;
        }
        for (name, text) in STAND_INS {
            let path = dir.join("stand-ins").join(name);
            fs::write(&path, text)?;
            fs::set_permissions(&path, Permissions::from_mode(0o755))?;
        }
        fs::write(dir.join("kubelet.json"), configuration(set))?;
        // The suite takes the kernel checks from this file, which lists none.
        fs::write(dir.join("system.yaml"), "os: Linux\n")?;
        Ok(suite)
    }

    fn program(&self) -> PathBuf {
        self.dir.join("e2e_node.test")
    }

    /// Names of the tests that the plan chooses: the tests of its set that this host can run,
    /// filtered by the plan.
    fn chosen(&self, plan: &NodeTestPlan, files: &Files) -> Result<BTreeSet<String>> {
        let mut chosen = self.listed(&plan.base())?;
        if let Some(text) = &files.left_out_of_host {
            let left_out = judge::parse_left_out(text)?;
            chosen.retain(|name| left_out.contains_key(name.as_str()));
        }
        if plan.label.is_empty() && matches!(plan.set, Set::Serial | Set::Guest) {
            let from = plan.set.exceptions();
            for name in judge::parse_left_out(&files.exceptions)?.keys() {
                ensure!(chosen.remove(*name), "{from} leaves out what there is not: {name}");
            }
        }
        let asked = plan.asked();
        if !asked.is_empty() {
            let asked = self.listed(&asked)?;
            chosen.retain(|name| asked.contains(name));
        }
        Ok(chosen)
    }

    /// Names of the tests that ginkgo chooses with these filters.
    fn listed(&self, filters: &[String]) -> Result<BTreeSet<String>> {
        let report = self.dir.join("chosen.json");
        let mut cmd = Command::new(Program::Ginkgo.ensure()?);
        cmd.args(["--dry-run", "--no-color", "--json-report=chosen.json"]);
        cmd.arg(format!("--output-dir={}", self.dir.display()));
        capture(cmd.args(filters).arg(self.program()))?;
        let json = fs::read_to_string(&report).context("read the list of tests")?;
        let tests = report::parse(&json)?.into_iter().filter(|o| o.is_test);
        Ok(tests.map(|o| o.name).collect())
    }

    /// Runs the suite on the node; returns whether it got through.
    fn run_on_node(
        &self,
        cluster: &Cluster,
        plan: &NodeTestPlan,
        chosen: &BTreeSet<String>,
    ) -> Result<bool> {
        let mut cmd = cluster.node_service(NODE, SUITE_CGROUP, &Program::Ginkgo.ensure()?)?;
        let path = cmd.get_envs().find(|(k, _)| *k == "PATH").and_then(|(_, v)| v);
        let path = path.map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
        cmd.env("PATH", format!("{}:{path}", self.dir.join("stand-ins").display()));
        // etcd's data and the like, which the suite leaves behind, go with the cluster's folder.
        cmd.env("TMPDIR", self.dir.join("tmp"));
        self.follow(plan, cmd.args(self.arguments(plan, chosen)))
    }

    /// Runs the suite in a machine of its own; returns whether it got through.
    fn run_in_guest(&self, plan: &NodeTestPlan, chosen: &BTreeSet<String>) -> Result<bool> {
        let machine = guest::GuestMachine::make(&plan.reports(), &self.dir, plan.set)?;
        if plan.set == Set::CgroupV2 && plan.is_kubelet() {
            machine.give_clock_speed()?;
        }
        let mut suite = Command::new(Program::Ginkgo.ensure()?);
        suite.args(self.arguments(plan, chosen));
        suite.arg(format!("--server-start-timeout={}", guest::START_MAX));
        self.follow(plan, &mut machine.command(&suite)?)
    }

    fn arguments(&self, plan: &NodeTestPlan, chosen: &BTreeSet<String>) -> Vec<String> {
        let mut args = vec![format!("--procs={}", plan.procs), format!("--timeout={RUN_MAX}")];
        args.extend(["--no-color", "--keep-going", "--json-report=report.json"].map(String::from));
        args.push(format!("--output-dir={}", plan.reports().display()));
        args.extend(plan.filters(chosen));
        args.extend([self.program().display().to_string(), "--".to_owned()]);
        args.extend(self.flags());
        args
    }

    /// Runs the suite's command to its end; returns whether it got through.
    fn follow(&self, plan: &NodeTestPlan, cmd: &mut Command) -> Result<bool> {
        let reports = plan.reports();
        fs::create_dir_all(&reports)?;
        let (log, report) = (reports.join("log.txt"), reports.join("report.json"));
        let _ = fs::remove_file(&report);
        say("run", &format!("the suite, {} at once; {}", plan.procs, log.display()));
        let status = follow(cmd, &log)?;
        let end = || tail(&fs::read_to_string(&log).unwrap_or_default(), 20);
        if !report.exists() {
            bail!("the suite did not run:\n{}", end());
        }
        let all = report::parse(&fs::read_to_string(&report)?)?;
        let is_explained = all.iter().any(|o| o.is_test && !o.passed);
        let is_broken = all.iter().any(|o| !o.is_test) || !(status.success() || is_explained);
        if is_broken {
            println!("the suite did not get through: {status}\n{}", end());
        }
        Ok(!is_broken)
    }

    fn flags(&self) -> Vec<String> {
        let at = |name: &str| self.dir.join(name).display().to_string();
        vec![
            format!("--k8s-bin-dir={}", at("bin")),
            format!("--report-dir={}", self.dir.display()),
            format!("--kubelet-config-file={}", at("kubelet.json")),
            format!("--system-spec-file={}", at("system.yaml")),
            format!("--container-runtime-endpoint={SOCKET}"),
            format!("--node-name={NODE}"),
            format!("--kubelet-flags=--runtime-cgroups=/{RUNTIME_CGROUP}"),
            // The node has them; missing ones belong to tests that do not run.
            "--prepull-images=false".to_owned(),
        ]
    }

    /// Keeps the logs of the services and the agent.
    fn keep_logs(&self, to: &Path) -> Result<()> {
        for name in ["kubelet.log", "services.log", "kubelet-config"] {
            let from = self.dir.join(name);
            if from.exists() {
                fs::copy(&from, to.join(name)).with_context(|| format!("keep {name}"))?;
            }
        }
        Ok(())
    }
}

/// The suite's base configuration, to which it adds fields: upstream's
/// jenkins/default-kubelet-config.yaml, adapted to this host (swap and cgroup v1 allowed) and to a
/// disk that other programs fill.
fn configuration(set: Set) -> String {
    let mut eviction = json!({"memory.available": "250Mi", "nodefs.available": "1%"});
    if set == Set::Guest {
        // The guest's disk belongs to it alone.
        eviction["nodefs.available"] = json!("10%");
        eviction["nodefs.inodesFree"] = json!("5%");
    }
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": if set == Set::CgroupV2 { "systemd" } else { "cgroupfs" },
        "cgroupRoot": "/",
        "podCIDR": "10.244.1.0/24",
        "volumeStatsAggPeriod": "10s",
        "fileCheckFrequency": "10s",
        "serializeImagePulls": false,
        "evictionPressureTransitionPeriod": "30s",
        "evictionHard": eviction,
        "failSwapOn": false,
        "failCgroupV1": false,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    })
    .to_string()
}
