//! Small pages about the agent itself: configz, statusz, flagz, the health check as a metric.
//!
//! Input: configuration, health. Output: an `Answer`. Pure but for the clock and one look at
//! `/proc`. statusz and flagz are text for people, or JSON when the `Accept` header asks for it.

use std::collections::BTreeMap;

use hyper::header::{ACCEPT, HeaderMap};
use serde_json::{Value, json};

use super::answer::Answer;
use super::route::TABLE;
use super::{Health, Parts};
use crate::config::flag_table::{self, Target};
use crate::config::{Config, KUBERNETES_VERSION};

/// Instead of Go's profiles.
pub(super) const NO_PPROF: &str = "pintle-agent is not written in Go and has no pprof profiles; \
    use perf or eBPF tools on its process, or `pintle-agent dump`\n";
/// Instead of klog's verbosity.
pub(super) const NO_DEBUG_FLAGS: &str =
    "the verbosity of pintle-agent's log cannot be changed while it runs\n";
const COMPONENT: &str = "kubelet";
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no \
    formatting compatibility guarantees and is for debugging purposes only.";

/// `/configz`.
// k8s: staging/src/k8s.io/component-base/configz/configz.go write
pub(super) fn configz(parts: &Parts) -> Answer {
    /// A struct and not a map: the fields stay in the kubelet's order.
    #[derive(serde::Serialize)]
    struct Configz<'a> {
        kubeletconfig: &'a crate::config::KubeletConfiguration,
    }
    Answer::json(&Configz { kubeletconfig: &parts.config.kubelet })
}

/// `/statusz`.
// k8s: staging/src/k8s.io/apiserver/pkg/server/statusz/statusz.go
pub(super) fn statusz(parts: &Parts, headers: &HeaderMap) -> Answer {
    let started = parts.health.born();
    let uptime = jiff::Timestamp::now().as_second().saturating_sub(started.as_second()).max(0);
    let debugging = parts.config.kubelet.enable_debugging_handlers;
    let mut paths: Vec<&str> =
        TABLE.iter().filter(|row| debugging || !row.debug).map(|row| row.root).collect();
    paths.sort_unstable();
    let (rust, version) = ("rustc", KUBERNETES_VERSION.trim_start_matches('v'));
    if wants_json(headers) {
        return Answer::json(&json!({
            "kind": "Statusz",
            "apiVersion": "config.k8s.io/v1beta1",
            "metadata": {"name": COMPONENT},
            "startTime": started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "uptimeSeconds": uptime,
            "goVersion": rust,
            "binaryVersion": version,
            "emulationVersion": version,
            "paths": paths,
        }));
    }
    let date = started.strftime("%a %b %e %H:%M:%S UTC %Y");
    let up = format!("{} hr {:02} min {:02} sec", uptime / 3600, uptime / 60 % 60, uptime % 60);
    Answer::text(
        200,
        format!(
            "\n{COMPONENT} statusz\n{WARNING}\n\nStarted: {date}\nUp: {up}\nGo version: {rust}\n\
             Binary version: {version}\nEmulation version: {version}\nPaths: {}\n",
            paths.join(" ")
        ),
    )
}

/// `/flagz`: every flag with the value that is in force.
// k8s: staging/src/k8s.io/apiserver/pkg/server/flagz/flagz.go
pub(super) fn flagz(parts: &Parts, headers: &HeaderMap) -> Answer {
    let flags = flags(&parts.config);
    if wants_json(headers) {
        return Answer::json(&json!({
            "kind": "Flagz",
            "apiVersion": "config.k8s.io/v1beta1",
            "metadata": {"name": COMPONENT},
            "flags": flags,
        }));
    }
    let lines: String = flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    Answer::text(200, format!("\n{COMPONENT} flagz\n{WARNING}\n{lines}"))
}

fn wants_json(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|kind| kind.trim().starts_with("application/json"))
}

fn flags(config: &Config) -> BTreeMap<&'static str, String> {
    let tree = serde_json::to_value(&config.kubelet).unwrap_or_default();
    let mut flags = BTreeMap::new();
    for flag in flag_table::flags() {
        if let Target::Field(path) = flag.target {
            let value = path.split('.').try_fold(&tree, |node, key| node.get(key));
            flags.insert(flag.name, value.map(text).unwrap_or_default());
        }
    }
    let own = &config.flags;
    let path = |path: &Option<std::path::PathBuf>| {
        path.as_deref().map(|path| path.display().to_string()).unwrap_or_default()
    };
    flags.insert("root-dir", own.root_dir.display().to_string());
    flags.insert("cert-dir", own.cert_dir.display().to_string());
    flags.insert("config", path(&own.config_file));
    flags.insert("config-dir", path(&own.config_dir));
    flags.insert("kubeconfig", path(&own.kubeconfig));
    flags.insert("bootstrap-kubeconfig", path(&own.bootstrap_kubeconfig));
    flags.insert("hostname-override", own.hostname_override.clone().unwrap_or_default());
    flags
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// `/metrics/slis`: the health check's parts as metrics.
// k8s: staging/src/k8s.io/component-base/metrics/prometheus/slis/metrics.go
pub(super) fn slis(health: &Health) -> String {
    let sync_loop = u8::from(health.check().is_ok());
    let checks = [("log", 1), ("ping", 1), ("syncloop", sync_loop)];
    let mut out = "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a \
        single healthcheck.\n# TYPE kubernetes_healthcheck gauge\n"
        .to_owned();
    for (name, fine) in checks {
        out.push_str(&format!(
            "kubernetes_healthcheck{{name=\"{name}\",type=\"healthz\"}} {fine}\n"
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn json_is_sent_to_those_who_ask_for_it() {
        let accepting = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            wants_json(&headers)
        };
        assert!(accepting("application/json;v=v1beta1;g=config.k8s.io;as=Statusz"));
        assert!(!accepting("text/plain"));
        assert!(!wants_json(&HeaderMap::new()));
    }

    #[test]
    fn a_hung_main_loop_is_a_failed_check() {
        let health = Health::new(std::time::Duration::from_secs(60));
        let text = slis(&health);
        assert!(text.contains("kubernetes_healthcheck{name=\"syncloop\",type=\"healthz\"} 1\n"));
    }
}
