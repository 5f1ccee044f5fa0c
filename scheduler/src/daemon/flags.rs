//! Flags of kube-scheduler 1.36: their form, the field they set, and their help line.
//!
//! Output: [`TABLE`], by which the command line is parsed. A test compares the names with the list
//! of a real kube-scheduler. Flags of pintle begin with `pintle-`.

use pintle_config::component_flags::{self, FEATURES, GO_ONLY, JSON, METRICS_AND_LOGS};
use pintle_config::flag::{Flag, FlagKind, FlagTable, Group};
use pintle_config::status::Status::{self, Done as DONE};

/// All flags.
pub const TABLE: FlagTable = FlagTable { parts: &[GROUPS], removed: &REMOVED };

/// Removed flags of older schedulers, with their replacements.
const REMOVED: [(&str, &str); 10] = [
    ("address", "use --bind-address"),
    ("port", "use --secure-port; there is no insecure port any more"),
    ("algorithm-provider", "use profiles in the file of --config"),
    ("policy-config-file", "use profiles in the file of --config"),
    ("policy-configmap", "use profiles in the file of --config"),
    ("policy-configmap-namespace", "use profiles in the file of --config"),
    ("use-legacy-policy-config", "use profiles in the file of --config"),
    ("scheduler-name", "use profiles[].schedulerName in the file of --config"),
    ("hard-pod-affinity-symmetric-weight", "use pluginConfig of InterPodAffinity"),
    ("lock-object-name", "use --leader-elect-resource-name"),
];

const fn own(name: &'static str, kind: FlagKind, status: Status, help: &'static str) -> Flag {
    Flag::own(name, kind, status, help)
}

const FILE: &str = "set the field in the file of --config";
const SERVING: [Flag; 13] = component_flags::serving("10259");
const DELEGATED: [Flag; 15] = component_flags::delegated("true");
const ELECTION: [Flag; 7] = component_flags::leader_election("kube-scheduler");

#[rustfmt::skip] // one flag a line, or two: a table to look things up in
const GROUPS: &[Group] = &[
    Group {
        title: "Start",
        flags: &[
            own("config", FlagKind::Text, DONE,
                "KubeSchedulerConfiguration file, YAML or JSON; flags win over it"),
            own("kubeconfig", FlagKind::Text, DONE,
                "How to reach the API server; clientConnection.kubeconfig of the file wins over it"),
            own("master", FlagKind::Text, DONE, "Address of the API server, over the kubeconfig's"),
            own("write-config-to", FlagKind::Text, DONE,
                "Write the configuration to this file and end"),
            own("help", FlagKind::Help, DONE, "Show this text"),
            own("version", FlagKind::Version, DONE, "Show the version"),
        ],
    },
    Group { title: "Serving", flags: &SERVING },
    Group { title: "Who may ask", flags: &DELEGATED },
    Group { title: "Leader election", flags: &ELECTION },
    Group {
        title: "Requests and queue",
        flags: &[
            own("kube-api-qps", FlagKind::Float, DONE,
                "Requests to the API server a second").default("50").deprecated(FILE),
            own("kube-api-burst", FlagKind::Int32, DONE,
                "Requests to the API server at once").default("100").deprecated(FILE),
            own("kube-api-content-type", FlagKind::Text, JSON,
                "Form of requests and answers").default("application/vnd.kubernetes.protobuf").deprecated(FILE),
            own("pod-max-in-unschedulable-pods-duration", FlagKind::Duration, DONE,
                "A pod without a node is tried again after so long, whatever happened")
                .default("5m0s").deprecated("Kubernetes is going to remove it"),
            own("profiling", FlagKind::Bool, GO_ONLY,
                "Serve profiles of the process").default("true")
                .deprecated(FILE),
            own("contention-profiling", FlagKind::Bool, GO_ONLY,
                "Serve profiles of locks").default("true").deprecated(FILE),
        ],
    },
    Group { title: "Features", flags: &FEATURES },
    Group { title: "Metrics and logs", flags: &METRICS_AND_LOGS },
];
