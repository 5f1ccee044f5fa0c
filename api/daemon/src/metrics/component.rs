//! Families about a component of the control plane: its version, its features, its leadership.
//!
//! Input: feature gates. Output: registered families. Owner: the start of the process.
// k8s: staging/src/k8s.io/component-base/metrics/{version,prometheus/compatversion,prometheus/feature}

use pintle_config::gates::GateState;
use pintle_config::help::KUBERNETES_VERSION;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::MetricNames;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Build {
    build_date: String,
    compiler: &'static str,
    git_commit: &'static str,
    git_tree_state: String,
    git_version: &'static str,
    go_version: String,
    major: String,
    minor: String,
    platform: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Compatible {
    binary: String,
    component: &'static str,
    emulation: String,
    min_compat: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Feature {
    name: &'static str,
    stage: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Lease {
    name: String,
}

/// The gauge of leadership, by lease.
#[derive(Clone, Debug)]
pub struct Leading(Family<Lease, Gauge>);

impl Leading {
    /// Registers the family.
    // k8s: staging/src/k8s.io/component-base/metrics/prometheus/clientgo/leaderelection/metrics.go
    pub fn register(at: &mut MetricNames<'_>) -> Self {
        Self(at.add(
            "leader_election_master_status",
            "[ALPHA] Gauge of if the reporting system is master of the relevant lease, 0 indicates \
             backup, 1 indicates master. 'name' is the string used to identify the lease. Please make \
             sure to group by name.",
        ))
    }

    /// The process leads on this lease, or waits for it.
    pub fn set(&self, lease: &str, leads: bool) {
        self.0.get_or_create(&Lease { name: lease.to_owned() }).set(leads.into());
    }
}

/// Registers build, versions and feature gates.
pub fn register_component(at: &mut MetricNames<'_>, gates: &[GateState]) {
    let mut parts = KUBERNETES_VERSION.trim_start_matches('v').split('.').map(str::to_owned);
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let before = minor.parse::<u32>().unwrap_or(1).saturating_sub(1);
    let build: Family<Build, Gauge> = at.add(
        "kubernetes_build_info",
        "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, \
         git tree state, build date, Go version, and compiler from which Kubernetes was built, and \
         platform on which it is running.",
    );
    let build_labels = Build {
        build_date: String::new(),
        compiler: "rustc",
        git_commit: concat!("pintle-", env!("CARGO_PKG_VERSION")),
        git_tree_state: String::new(),
        git_version: KUBERNETES_VERSION,
        go_version: String::new(),
        major: major.clone(),
        minor: minor.clone(),
        platform: format!("linux/{}", std::env::consts::ARCH),
    };
    build.get_or_create(&build_labels).set(1);
    let compatible: Family<Compatible, Gauge> = at.add(
        "version_info",
        "[ALPHA] Provides the compatibility version info of the component. The component label is the \
         name of the component, usually kube, but is relevant for aggregated-apiservers.",
    );
    let compatible_labels = Compatible {
        binary: format!("{major}.{minor}"),
        component: "kube",
        emulation: format!("{major}.{minor}"),
        min_compat: format!("{major}.{before}"),
    };
    compatible.get_or_create(&compatible_labels).set(1);
    let features: Family<Feature, Gauge> = at.add(
        "kubernetes_feature_enabled",
        "[BETA] This metric records the data about the stage and enablement of a k8s feature.",
    );
    for GateState { name, stage, is_on } in gates {
        features.get_or_create(&Feature { name, stage }).set((*is_on).into());
    }
}
