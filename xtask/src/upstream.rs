//! Kubernetes itself, built from `tests/upstream` into the cache: the programs of the test
//! clusters, and upstream's own test suite.
//!
//! Input: that Go module and a Go compiler. Output: static programs under `upstream/` in the cache,
//! each rebuilt when the module or the recipe changes. The first build takes some minutes on two
//! cores; Go's own build cache makes the later ones short. Modules come from the Go proxy, so the
//! network is needed once. Where upstream's tests need another line here and there, a patch in the
//! repository adds it; the patch is one of their sources.

pub(crate) mod containerd;
mod overlay;
mod patch;
mod patched;
mod sidecars;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use self::patched::ModulePatch;
pub(crate) use self::patched::Patched;
pub use self::sidecars::Sidecar;
pub(crate) use self::sidecars::snapshot_definitions;
use crate::image::sha256;
use crate::shell::{self, timed};
use crate::{cache, repository};

/// The release that `tests/upstream/go.mod` requires; the programs call themselves so.
pub const VERSION: &str = "v1.36.3";
/// The release of the next minor version.
const VERSION_NEXT: &str = "v1.37.2";
/// Changes whenever the way of building does, so that an older cache is rebuilt.
const RECIPE: &str = "1";
/// The oldest Go that fetches by itself the compiler which go.mod asks for.
const GO_MIN: u32 = 21;
/// Sources of every program of the module; upstream's own programs have no others.
const MODULE_FILES: [&str; 2] = ["go.mod", "go.sum"];
/// Sources of the components and of programs that call a part of them.
const COMPONENT_FILES: [&str; 13] = [
    "go.mod",
    "go.sum",
    "main.go",
    "vectors/vectors.go",
    "vectors/preemption.go",
    "vectors/devices.go",
    "vectors/selectors.go",
    "vectors/allocatable.go",
    "vectors/volumes.go",
    "vectors/reading.go",
    "vectors/reading_client.go",
    "vectors/reading_shape.go",
    "vectors/linkname.s",
];
/// Sources of the program that knows the types of Go.
const GOLANG_FILES: [&str; 8] = [
    "go.mod",
    "go.sum",
    "vectors/golang/answers.go",
    "vectors/golang/generate.go",
    "vectors/golang/linkname.s",
    "vectors/golang/main.go",
    "vectors/golang/patches.go",
    "vectors/golang/types.go",
];
/// Sources of the program that syncs StatefulSets and DaemonSets.
const SET_FILES: [&str; 8] = [
    "go.mod",
    "go.sum",
    "vectors/sets/daemonset.go",
    "vectors/sets/kinds.go",
    "vectors/sets/linkname.s",
    "vectors/sets/main.go",
    "vectors/sets/statefulset.go",
    "vectors/sets/world.go",
];
/// Sources of the program that syncs Deployments and ReplicaSets.
const REPLICA_FILES: [&str; 6] = [
    "go.mod",
    "go.sum",
    "vectors/replicas/deployments.go",
    "vectors/replicas/linkname.s",
    "vectors/replicas/main.go",
    "vectors/replicas/sets.go",
];
/// Sources of the program that syncs quotas and namespaces.
const METADATA_FILES: [&str; 8] = [
    "go.mod",
    "go.sum",
    "vectors/metadata/linkname.s",
    "vectors/metadata/main.go",
    "vectors/metadata/namespace.go",
    "vectors/metadata/objects.go",
    "vectors/metadata/pods.go",
    "vectors/metadata/quota.go",
];
/// Sources of the program that translates volumes to CSI.
const TRANSLATION_FILES: [&str; 4] =
    ["go.mod", "go.sum", "vectors/translation/main.go", "vectors/translation/volumes.go"];
/// Sources of the program that syncs Jobs and CronJobs and collects garbage.
const JOB_FILES: [&str; 6] = [
    "go.mod",
    "go.sum",
    "_controllers/cronjob/vectors.go",
    "_controllers/garbagecollector/vectors.go",
    "_controllers/job/vectors.go",
    "_controllers/main/main.go",
];
/// The components that the multi-call program is linked under.
const COMPONENTS: [&str; 13] = [
    "allocatable-vectors",
    "device-vectors",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "reading-vectors",
    "scheduler-vectors",
    "selector-vectors",
    "volume-vectors",
];

/// A program that is built from the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// All components in one, linked under each one's name.
    Components,
    /// The kubelet alone: the memory of the combined program is not the kubelet's.
    Kubelet,
    /// The scheduler alone, for the same reason.
    Scheduler,
    /// The controller manager alone, for the same reason.
    ControllerManager,
    /// The cluster's DNS.
    CoreDns,
    /// Answers, a line at a time, questions about the Go types of the API's objects.
    GolangVectors,
    /// Syncs of random StatefulSets and DaemonSets by upstream's controllers.
    SetVectors,
    /// The same for Deployments and ReplicaSets.
    ReplicaVectors,
    /// The same for quotas and namespaces.
    MetadataVectors,
    /// The same for Jobs, CronJobs, schedules and the garbage collector, which have private
    /// functions.
    JobVectors,
    /// Random volumes of plugins that were once part of Kubernetes, as upstream has them for CSI.
    TranslationVectors,
    /// The server and client of many behaviours that the suites run in pods.
    Agnhost,
    /// A program that tries to gain privileges.
    NoNewPrivs,
    /// An API server of a group of its own, for the aggregation test.
    SampleApiServer,
    /// metrics-server, which reads the use of pods from the nodes' agents; a module of its own.
    MetricsServer,
    /// kubeadm, of a module of its own: it needs two libraries that no other program does.
    Kubeadm,
    /// kubeadm of the next minor release, which makes clusters of ours as well.
    KubeadmNext,
    /// The suite for CSI drivers, of a module of its own.
    CsiSanity,
    /// A sidecar of CSI drivers, or the controller of snapshots, of a module of their own.
    Sidecar(Sidecar),
    /// The suite's runner.
    Ginkgo,
    /// The end-to-end suite.
    E2e,
    /// The suite for one node.
    E2eNode,
}

impl Program {
    /// Programs of clusters, in the order in which they are needed.
    pub const FOR_CLUSTERS: [Self; 6] = [
        Self::Components,
        Self::Agnhost,
        Self::CoreDns,
        Self::SampleApiServer,
        Self::NoNewPrivs,
        Self::MetricsServer,
    ];
    /// Programs of the suite of such clusters.
    pub const FOR_SUITES: [Self; 2] = [Self::E2e, Self::Ginkgo];

    fn name(self) -> &'static str {
        match self {
            Self::Components => "components",
            Self::Kubelet => "kubelet",
            Self::Scheduler => "kube-scheduler",
            Self::ControllerManager => "kube-controller-manager",
            Self::CoreDns => "coredns",
            Self::GolangVectors => "golang-vectors",
            Self::SetVectors => "set-vectors",
            Self::ReplicaVectors => "replica-vectors",
            Self::MetadataVectors => "metadata-vectors",
            Self::JobVectors => "job-vectors",
            Self::TranslationVectors => "translation-vectors",
            Self::Agnhost => "agnhost",
            Self::NoNewPrivs => "nonewprivs",
            Self::SampleApiServer => "sample-apiserver",
            Self::MetricsServer => "metrics-server",
            Self::Kubeadm => "kubeadm",
            Self::KubeadmNext => "kubeadm-next",
            Self::CsiSanity => "csi-sanity",
            Self::Sidecar(sidecar) => sidecar.name(),
            Self::Ginkgo => "ginkgo",
            Self::E2e => "e2e.test",
            Self::E2eNode => "e2e_node.test",
        }
    }

    /// The package, and whether it is a suite instead of a program.
    fn package(self) -> (&'static str, bool) {
        match self {
            Self::Components => (".", false),
            Self::Kubelet => ("k8s.io/kubernetes/cmd/kubelet", false),
            Self::Scheduler => ("k8s.io/kubernetes/cmd/kube-scheduler", false),
            Self::ControllerManager => ("k8s.io/kubernetes/cmd/kube-controller-manager", false),
            Self::CoreDns => ("./coredns", false),
            Self::GolangVectors => ("./vectors/golang", false),
            Self::SetVectors => ("./vectors/sets", false),
            Self::ReplicaVectors => ("./vectors/replicas", false),
            Self::MetadataVectors => ("./vectors/metadata", false),
            Self::JobVectors => ("./controllers/main", false),
            Self::TranslationVectors => ("./vectors/translation", false),
            Self::Agnhost => ("k8s.io/kubernetes/test/images/agnhost", false),
            Self::NoNewPrivs => ("k8s.io/kubernetes/test/images/nonewprivs", false),
            Self::SampleApiServer => ("k8s.io/sample-apiserver", false),
            Self::MetricsServer => (".", false),
            Self::Kubeadm | Self::KubeadmNext => ("k8s.io/kubernetes/cmd/kubeadm", false),
            Self::CsiSanity => ("github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity", false),
            Self::Sidecar(sidecar) => (sidecar.package(), false),
            Self::Ginkgo => ("github.com/onsi/ginkgo/v2/ginkgo", false),
            Self::E2e => ("k8s.io/kubernetes/test/e2e", true),
            Self::E2eNode => ("k8s.io/kubernetes/test/e2e_node", true),
        }
    }

    /// The folder of the module, and its sources and build files.
    fn module(self) -> (PathBuf, &'static [&'static str]) {
        match self {
            Self::MetricsServer => {
                (module_dir().join("metrics-server"), &["go.mod", "go.sum", "main.go"])
            }
            Self::Kubeadm => (module_dir().join("kubeadm"), &MODULE_FILES),
            Self::KubeadmNext => (module_dir().join("kubeadm-next"), &MODULE_FILES),
            Self::CsiSanity => (module_dir().join("csi-sanity"), &MODULE_FILES),
            Self::Sidecar(_) => (module_dir().join("csi-sidecars"), &MODULE_FILES),
            Self::Components => (module_dir(), &COMPONENT_FILES),
            Self::GolangVectors => (module_dir(), &GOLANG_FILES),
            Self::SetVectors => (module_dir(), &SET_FILES),
            Self::ReplicaVectors => (module_dir(), &REPLICA_FILES),
            Self::MetadataVectors => (module_dir(), &METADATA_FILES),
            Self::JobVectors => (module_dir(), &JOB_FILES),
            Self::TranslationVectors => (module_dir(), &TRANSLATION_FILES),
            Self::CoreDns => (module_dir(), &["go.mod", "go.sum", "coredns/main.go"]),
            _ => (module_dir(), &MODULE_FILES),
        }
    }

    /// The patch of upstream's module that it is built with.
    fn patch(self) -> Result<Option<ModulePatch>> {
        (self == Self::E2eNode).then(|| ModulePatch::read("node")).transpose()
    }

    /// Finds the program in the cache or builds it, and returns its path; the folder of the
    /// components' names for `Components`.
    pub fn ensure(self) -> Result<PathBuf> {
        let name = self.name();
        let dir = cache::entry(&format!("upstream/{name}"), &self.stamp()?, |staging, _| {
            let text = format!("{name} of Kubernetes {VERSION}");
            timed("build", &text, || self.build(&staging.join(name)))?;
            if self == Self::Components {
                for component in COMPONENTS {
                    symlink(name, staging.join(component))?;
                }
            }
            Ok(())
        })?;
        Ok(if self == Self::Components { dir } else { dir.join(name) })
    }

    fn build(self, out: &Path) -> Result<()> {
        let (package, is_suite) = self.package();
        let mut go = match self.patch()? {
            Some(patch) => patch.ensure()?.go()?,
            None => go()?,
        };
        go.current_dir(self.module().0);
        // Upstream vets its suites; with it every package would be read once more.
        go.args(if is_suite { &["test", "-c", "-vet=off"][..] } else { &["build"] });
        let mut flags = match self {
            Self::KubeadmNext => linker_flags_of(VERSION_NEXT),
            _ => linker_flags(),
        };
        if self == Self::ReplicaVectors {
            // Its sync functions are linked by name.
            flags += " -checklinkname=0";
        }
        go.args(["-mod=readonly", "-trimpath", "-ldflags", &flags]);
        let overlay = out.with_extension("overlay.json");
        if self == Self::JobVectors {
            overlay::write(&overlay)?;
            go.arg("-overlay").arg(overlay);
        }
        go.arg("-o").arg(out).arg(package);
        shell::capture_retried(&mut go).map(drop)
    }

    /// Digest of the program's sources.
    fn stamp(self) -> Result<String> {
        let mut all = format!("{RECIPE} {VERSION}\n").into_bytes();
        let (dir, files) = self.module();
        for file in files {
            let path = dir.join(file);
            all.extend(fs::read(&path).with_context(|| format!("read {}", path.display()))?);
        }
        if let Some(patch) = self.patch()? {
            all.extend(patch.stamp().bytes());
        }
        Ok(sha256(&all))
    }
}

/// A file of one of the modules that ours requires, such as the suites' certificates.
pub fn module_file(module: &str, path: &str) -> Result<PathBuf> {
    module_file_of(&module_dir(), module, path)
}

/// The same for the module in `dir`.
fn module_file_of(dir: &Path, module: &str, path: &str) -> Result<PathBuf> {
    let mut go = go()?;
    // Downloading it again is a no-op.
    shell::capture_retried(go.current_dir(dir).args(["mod", "download", module]))?;
    let mut list = self::go()?;
    list.current_dir(dir).args(["list", "-m", "-f", "{{.Dir}}", module]);
    Ok(Path::new(shell::capture(&mut list)?.trim()).join(path))
}

/// `go` in the module's folder; the environment's flags are ignored.
pub(crate) fn go() -> Result<Command> {
    let program = shell::which(&["go"]).or_else(|| {
        let usual = PathBuf::from("/usr/local/go/bin/go");
        usual.is_file().then_some(usual)
    });
    let Some(program) = program else {
        bail!(
            "Go is missing, which builds Kubernetes for the tests: install 1.{GO_MIN} or newer from \
             https://go.dev/dl (tar -C /usr/local -xzf go1.26.linux-amd64.tar.gz), or \
             `apt-get install -t bookworm-backports golang-go`"
        );
    };
    let mut go = Command::new("nice");
    go.arg(program).current_dir(module_dir()).env("CGO_ENABLED", "0");
    // The programs have no symbols, so their parts need none; and memory is cheaper here than a
    // compiler that collects garbage all the time.
    go.env("GOFLAGS", "-gcflags=all=-dwarf=false").env("GOGC", "400");
    Ok(go)
}

fn module_dir() -> PathBuf {
    repository().join("tests/upstream")
}

/// Smaller files, and the version: without it the components call themselves v0.0.0.
pub(crate) fn linker_flags() -> String {
    linker_flags_of(VERSION)
}

fn linker_flags_of(version: &str) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or("1"), numbers.next().unwrap_or("0"));
    let mut flags = "-s -w".to_owned();
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        for (name, value) in [("gitVersion", version), ("gitMajor", major), ("gitMinor", minor)] {
            flags += &format!(" -X {package}.{name}={value}");
        }
    }
    flags
}

/// Digest of the sources of the components and the suites.
pub fn stamp() -> Result<String> {
    Program::Components.stamp()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn version_reported_by_programs_is_the_version_required_in_go_mod() {
        for (dir, version) in [("", VERSION), ("kubeadm-next", VERSION_NEXT)] {
            let text = fs::read_to_string(module_dir().join(dir).join("go.mod")).expect("go.mod");
            assert!(text.contains(&format!("\tk8s.io/kubernetes {version}\n")));
        }
        assert!(linker_flags().contains("gitMinor=36"), "{}", linker_flags());
    }

    #[test]
    fn patch_is_part_of_a_programs_stamp() {
        let stamp = |program: Program| program.stamp().expect("a stamp");
        // Both are made from the same files but for the patch.
        assert_ne!(stamp(Program::E2eNode), stamp(Program::E2e));
        assert_eq!(stamp(Program::Ginkgo), stamp(Program::E2e));
    }

    #[test]
    fn the_metrics_server_shares_the_libraries_of_the_components() {
        let read = |dir: PathBuf| fs::read_to_string(dir.join("go.mod")).expect("go.mod");
        let (ours, components) = (read(Program::MetricsServer.module().0), read(module_dir()));
        let (ours, components) = (required(&ours), required(&components));
        // Go's build cache has a package of the components only if all below it are equal.
        let shared: Vec<_> = ours.iter().filter(|(m, _)| components.contains_key(*m)).collect();
        assert!(shared.len() > 90, "{}", shared.len());
        for (module, version) in shared {
            assert_eq!(components[module], *version, "{module}");
        }
    }

    /// The modules that a go.mod requires, with their versions.
    fn required(text: &str) -> BTreeMap<&str, &str> {
        let lines = text.lines().filter(|line| line.starts_with('\t') && !line.contains("=>"));
        lines
            .filter_map(|line| line.trim().trim_end_matches(" // indirect").split_once(' '))
            .collect()
    }
}
