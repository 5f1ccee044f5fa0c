//! Small pages about the agent itself: configz, statusz and flagz.
//!
//! Input: the configuration. Output: an `HttpAnswer`. Pure but for the clock.

use std::collections::BTreeMap;

use hyper::header::{ACCEPT, HeaderMap};
use pintle_agent_config::{Config, KUBERNETES_VERSION, Kubelet, listing};
use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::zpages::{self, Encodings, Flagz, Statusz};

use super::ServerParts;
use super::route::TABLE;

/// The component that the agent replaces.
const COMPONENT: &str = "kubelet";
/// Instead of Go's profiles: the kubelet's answer when they are switched off.
pub(super) const NO_PPROF: &str = "profiling endpoint is disabled.\n";
/// Instead of klog's verbosity, in the same way.
pub(super) const NO_DEBUG_FLAGS: &str = "flags endpoint is disabled.\n";

/// Paths that the kubelet names on `/statusz`.
const LISTED: [&str; 5] = ["/configz", "/debug", "/flagz", "/healthz", "/metrics"];

/// `/configz`.
// k8s: staging/src/k8s.io/component-base/configz/configz.go write
pub(super) fn configz(parts: &ServerParts) -> HttpAnswer {
    /// A struct and not a map: the fields stay in the kubelet's order.
    #[derive(serde::Serialize)]
    struct Configz<'a> {
        kubeletconfig: &'a pintle_agent_config::KubeletConfiguration,
    }
    HttpAnswer::json(&Configz { kubeletconfig: &parts.config.kubelet })
}

/// `/statusz`.
pub(super) fn statusz(parts: &ServerParts, headers: &HeaderMap) -> HttpAnswer {
    let started = parts.health.born();
    let uptime = jiff::Timestamp::now().as_second().saturating_sub(started.as_second());
    let debugging = parts.config.kubelet.enable_debugging_handlers;
    let paths = TABLE.iter().filter(|row| debugging || !row.debug).map(|row| row.root);
    let paths = paths.filter(|path| LISTED.iter().any(|listed| path.starts_with(listed)));
    let version = KUBERNETES_VERSION.trim_start_matches('v');
    let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    let page = Statusz {
        component: COMPONENT,
        start_time: started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        uptime_seconds: uptime.max(0),
        go_version: "rustc".to_owned(),
        binary_version: version.to_owned(),
        emulation_version: minor.to_owned(),
        paths: zpages::folders(paths),
        started: started.strftime("%a %b %e %H:%M:%S UTC %Y").to_string(),
    };
    page.answer(accept(headers), Encodings::Usual)
}

/// `/flagz`: every flag with the value that is in force.
pub(super) fn flagz(parts: &ServerParts, headers: &HeaderMap) -> HttpAnswer {
    Flagz { component: COMPONENT, flags: flags(&parts.config) }
        .answer(accept(headers), Encodings::Usual)
}

fn accept(headers: &HeaderMap) -> Option<&str> {
    headers.get(ACCEPT).and_then(|value| value.to_str().ok())
}

fn flags(config: &Config) -> BTreeMap<&'static str, String> {
    let mut flags = listing::of_fields::<Kubelet>(&config.kubelet);
    flags.extend(config.own_flags.clone());
    flags
}
