//! Rejects invalid flags and invalid combinations of flags.
//!
//! Input: the given flags. Output: one sentence for each mistake, with flag, value and
//! remedy. Effects: reads the files that flags name, once.
// k8s: cmd/kube-controller-manager/app/options/options.go Validate, and each controller's options

use std::time::Duration;

use pintle_config::error::ConfigError;
use pintle_config::given::GivenFlags;

use super::settings::FlagReader;

/// Concurrent syncs of which one is needed at least.
const AT_LEAST_ONE: [&str; 9] = [
    "concurrent-cron-job-syncs",
    "concurrent-daemonset-syncs",
    "concurrent-device-taint-eviction-syncs",
    "concurrent-ephemeralvolume-syncs",
    "concurrent-horizontal-pod-autoscaler-syncs",
    "concurrent-job-syncs",
    "concurrent-resourceclaim-syncs",
    "concurrent-statefulset-syncs",
    "concurrent-validating-admission-policy-status-syncs",
];
/// Numbers with a range, which begins at one.
const RANGES: [(&str, i32); 4] = [
    ("concurrent-service-endpoint-syncs", 50),
    ("max-endpoints-per-slice", 1000),
    ("mirroring-concurrent-service-endpoint-syncs", 50),
    ("mirroring-max-endpoints-per-subset", 1000),
];
/// Signers that may have files of their own.
const SIGNERS: [&str; 4] =
    ["-kubelet-serving", "-kubelet-client", "-kube-apiserver-client", "-legacy-unknown"];
/// Files that hold a certificate.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
/// The end of the PEM header line of any private key.
const KEY: &str = "PRIVATE KEY-----";

/// All mistakes.
pub(super) fn all(given: &GivenFlags) -> Vec<ConfigError> {
    let read = FlagReader(given);
    let mut errors = Vec::new();
    errors.extend(AT_LEAST_ONE.iter().filter_map(|flag| range(read, flag, i32::MAX)));
    errors.extend(RANGES.iter().filter_map(|(flag, max)| range(read, flag, *max)));
    errors.extend(clouds(read));
    errors.extend(node_ranges(read));
    errors.extend(signing_files(given));
    errors.extend(attach_period(read));
    errors.extend(pem_file(given, "root-ca-file", CERTIFICATE));
    errors.extend(pem_file(given, "service-account-private-key-file", KEY));
    errors
}

fn wrong(flag: &str, value: impl std::fmt::Display, problem: &str, remedy: &str) -> ConfigError {
    ConfigError::new(format!("--{flag}"), value, problem, remedy)
}

fn range(read: FlagReader<'_>, flag: &str, max: i32) -> Option<ConfigError> {
    let number = read.int(flag);
    match number {
        ..1 => Some(wrong(flag, number, "it must be at least 1", "choose 1 or more")),
        _ if number > max => {
            let remedy = format!("choose 1 to {max}");
            Some(wrong(flag, number, &format!("it must not be more than {max}"), &remedy))
        }
        _ => None,
    }
}

fn clouds(read: FlagReader<'_>) -> Option<ConfigError> {
    let (provider, allocator) = (read.text("cloud-provider"), read.text("cidr-allocator-type"));
    if !["", "external"].contains(&provider.as_str()) {
        let problem = "cloud providers are not part of the manager any more";
        return Some(wrong("cloud-provider", provider, problem, "use external, or remove it"));
    }
    (!["", "RangeAllocator"].contains(&allocator.as_str())).then(|| {
        let problem = "allocators of cloud providers are not part of the manager any more";
        wrong("cidr-allocator-type", allocator, problem, "use RangeAllocator, or remove it")
    })
}

fn node_ranges(read: FlagReader<'_>) -> Option<ConfigError> {
    let ranges = read.text("service-cluster-ip-range");
    (ranges.split(',').count() > 2).then(|| {
        let problem = "it has more than two ranges";
        wrong("service-cluster-ip-range", ranges, problem, "give one, or one for each family")
    })
}

fn attach_period(read: FlagReader<'_>) -> Option<ConfigError> {
    let flag = "attach-detach-reconcile-sync-period";
    let is_off = read.bool("disable-attach-detach-reconcile-sync");
    (!is_off && read.duration(flag) < Duration::from_secs(1)).then(|| {
        let problem = "it must be at least one second";
        wrong(flag, read.text(flag), problem, "the default is 1m0s")
    })
}

/// A certificate and its key belong together, and files for all signers exclude those for one.
fn signing_files(given: &GivenFlags) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    let has = |signer: &str, what: &str| {
        given.text(&format!("cluster-signing{signer}-{what}-file")).is_some()
    };
    for signer in SIGNERS {
        let (missing, there) = match (has(signer, "cert"), has(signer, "key")) {
            (true, false) => ("key", "cert"),
            (false, true) => ("cert", "key"),
            _ => continue,
        };
        let there = format!("cluster-signing{signer}-{there}-file");
        let value = given.text(&there).unwrap_or_default();
        let remedy = format!("give --cluster-signing{signer}-{missing}-file too");
        errors.push(wrong(&there, value, "a certificate and its key belong together", &remedy));
    }
    let any = |signer: &str| has(signer, "cert") || has(signer, "key");
    if let Some(signer) = SIGNERS.iter().find(|signer| any("") && any(signer)) {
        let flag = if has("", "cert") { "cert" } else { "key" };
        let flag = format!("cluster-signing-{flag}-file");
        let value = given.text(&flag).unwrap_or_default();
        let problem = format!("it is for all signers, and --cluster-signing{signer}-* for one");
        errors.push(wrong(&flag, value, &problem, "remove one of them"));
    }
    errors
}

fn pem_file(given: &GivenFlags, flag: &str, mark: &str) -> Option<ConfigError> {
    let path = given.text(flag)?;
    match std::fs::read_to_string(path) {
        Ok(text) if text.contains(mark) => None,
        Ok(_) => {
            let what = if mark == KEY { "private key" } else { "certificate" };
            let problem = format!("the file has no {what} in PEM");
            Some(wrong(flag, path, &problem, "name another file"))
        }
        Err(error) => Some(wrong(flag, path, &error.to_string(), "check path and rights")),
    }
}
