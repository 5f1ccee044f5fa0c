//! Flags that every leader-elected component of the control plane has, for their tables.
//!
//! Output: arrays of [`Flag`]s, one for each heading of `--help`. Where components differ (the port,
//! the lease's name) the difference is a parameter. A component puts them into groups of its own.

use crate::flag::{Flag, FlagKind};
use crate::status::Status::{self, Done as DONE};

const fn own(name: &'static str, kind: FlagKind, status: Status, help: &'static str) -> Flag {
    Flag::own(name, kind, status, help)
}

/// Profiles of the Go runtime.
pub const GO_ONLY: Status = Status::Never("profiles of the Go runtime do not exist here");
/// The form of requests.
pub const JSON: Status = Status::Never("requests and answers are JSON");
const GO_TLS: Status = Status::Never("names key exchanges of Go's library; ours are chosen by it");
const HTTP2: Status = Status::Never("requests are served by HTTP/1.1");
const SHARING: Status = Status::NotYet("sockets are not shared");
const SNI: Status = Status::NotYet("one certificate is served to everybody");
const METRICS: Status = Status::NotYet("every metric is shown with every label");
const ONE_VERSION: Status = Status::NotYet("only 1.36 is spoken");
const UNBUFFERED: Status = Status::Never("log lines are written at once");
const LOGS: Status = Status::NotYet("all log lines go to standard error at one level");

/// The HTTPS port, which is this one by default.
#[rustfmt::skip] // one flag a line, or two: a table to look things up in
pub const fn serving(port: &'static str) -> [Flag; 13] {
    [
        own("bind-address", FlagKind::Ip, DONE, "Address to serve HTTPS on").default("0.0.0.0"),
        own("secure-port", FlagKind::Int32, DONE, "Port to serve HTTPS on; 0 serves nothing")
            .default(port),
        own("tls-cert-file", FlagKind::Text, DONE,
            "Certificate to serve with; without it one is made"),
        own("tls-private-key-file", FlagKind::Text, DONE, "Its key"),
        own("cert-dir", FlagKind::Text, DONE,
            "Folder for the certificate that is made; without it, it is made in memory"),
        own("tls-cipher-suites", FlagKind::TextList, DONE, "Cipher suites to offer"),
        own("tls-min-version", FlagKind::Text, DONE, "VersionTLS12 or VersionTLS13"),
        own("tls-curve-preferences", FlagKind::TextList, GO_TLS, "Key exchanges to offer"),
        own("tls-sni-cert-key", FlagKind::TextList, SNI, "Certificates by name of the server"),
        own("disable-http2-serving", FlagKind::Bool, HTTP2, "Serve by HTTP/1.1 only"),
        own("http2-max-streams-per-connection", FlagKind::Int32, HTTP2,
            "Streams of one connection"),
        own("permit-address-sharing", FlagKind::Bool, SHARING, "Bind with SO_REUSEADDR"),
        own("permit-port-sharing", FlagKind::Bool, SHARING, "Bind with SO_REUSEPORT"),
    ]
}

/// Delegated authentication and authorization of requests to the HTTPS port. `tolerates` is the
/// default for whether a start continues without the cluster's authorities.
#[rustfmt::skip] // one flag a line, or two: a table to look things up in
pub const fn delegated(tolerates: &'static str) -> [Flag; 15] {
    [
        own("authentication-kubeconfig", FlagKind::Text, DONE,
            "Credentials for token reviews, or the pod's; without any tokens are not known"),
        own("authentication-skip-lookup", FlagKind::Bool, DONE,
            "Do not look up the cluster's authorities"),
        own("authentication-token-webhook-cache-ttl", FlagKind::Duration, DONE,
            "How long the answer about a token is good").default("10s"),
        own("authentication-tolerate-lookup-failure", FlagKind::Bool, DONE,
            "Go on without the cluster's authorities").default(tolerates),
        own("client-ca-file", FlagKind::Text, DONE,
            "Authorities whose certificates authenticate clients"),
        own("requestheader-allowed-names", FlagKind::TextList, DONE,
            "Names of proxies that are believed"),
        own("requestheader-client-ca-file", FlagKind::Text, DONE,
            "Authorities of proxies that are believed"),
        own("requestheader-extra-headers-prefix", FlagKind::TextList, DONE,
            "Headers in which a proxy sends extra attributes").default("[x-remote-extra-]"),
        own("requestheader-group-headers", FlagKind::TextList, DONE,
            "Headers in which a proxy sends groups").default("[x-remote-group]"),
        own("requestheader-uid-headers", FlagKind::TextList, DONE,
            "Headers in which a proxy sends the uid"),
        own("requestheader-username-headers", FlagKind::TextList, DONE,
            "Headers in which a proxy sends the user").default("[x-remote-user]"),
        own("authorization-always-allow-paths", FlagKind::TextList, DONE,
            "Paths that anybody may ask for").default("[/healthz,/readyz,/livez]"),
        own("authorization-kubeconfig", FlagKind::Text, DONE,
            "Credentials for access reviews, or the pod's; without any only system:masters may ask for more"),
        own("authorization-webhook-cache-authorized-ttl", FlagKind::Duration, DONE,
            "How long a permission is good").default("10s"),
        own("authorization-webhook-cache-unauthorized-ttl", FlagKind::Duration, DONE,
            "How long a refusal is good").default("10s"),
    ]
}

/// Leader election on a lease of this name.
#[rustfmt::skip] // one flag a line, or two: a table to look things up in
pub const fn leader_election(lease: &'static str) -> [Flag; 7] {
    [
        own("leader-elect", FlagKind::Bool, DONE,
            "Agree with other processes on which one works").default("true"),
        own("leader-elect-lease-duration", FlagKind::Duration, DONE,
            "Others take over after so long without a sign").default("15s"),
        own("leader-elect-renew-deadline", FlagKind::Duration, DONE,
            "Give up after so long without a renewal").default("10s"),
        own("leader-elect-retry-period", FlagKind::Duration, DONE,
            "Wait between two attempts").default("2s"),
        own("leader-elect-resource-lock", FlagKind::Text, DONE,
            "Kind of the lock: leases").default("leases"),
        own("leader-elect-resource-name", FlagKind::Text, DONE,
            "Name of the lease").default(lease),
        own("leader-elect-resource-namespace", FlagKind::Text, DONE,
            "Namespace of the lease").default("kube-system"),
    ]
}

/// Feature gates and versions.
#[rustfmt::skip] // one flag a line, or two: a table to look things up in
pub const FEATURES: [Flag; 3] = [
    own("feature-gates", FlagKind::Gates, DONE, "Switch features on or off"),
    own("emulated-version", FlagKind::TextList, ONE_VERSION, "Version to behave as"),
    own("min-compatibility-version", FlagKind::TextList, ONE_VERSION,
        "Oldest version to get along with"),
];

/// Metrics and logs.
#[rustfmt::skip] // one flag a line, or two: a table to look things up in
pub const METRICS_AND_LOGS: [Flag; 12] = [
    own("allow-metric-labels", FlagKind::Pair, METRICS, "Values of labels to show"),
    own("allow-metric-labels-manifest", FlagKind::Text, METRICS, "File of such values"),
    own("disabled-metrics", FlagKind::TextList, METRICS, "Metrics to leave out"),
    own("show-hidden-metrics-for-version", FlagKind::Text, METRICS,
        "Show metrics that were hidden since this version"),
    own("v", FlagKind::Level, DONE, "How much to log"),
    own("vmodule", FlagKind::Vmodule, LOGS, "How much to log, by file"),
    own("logging-format", FlagKind::Text, DONE, "text or json").default("text"),
    own("log-flush-frequency", FlagKind::Duration, UNBUFFERED, "How often to write the log")
        .default("5s"),
    own("log-json-info-buffer-size", FlagKind::Quantity, UNBUFFERED, "Size of a buffer"),
    own("log-json-split-stream", FlagKind::Bool, LOGS, "Errors to standard error only"),
    own("log-text-info-buffer-size", FlagKind::Quantity, UNBUFFERED, "Size of a buffer"),
    own("log-text-split-stream", FlagKind::Bool, LOGS, "Errors to standard error only"),
];
