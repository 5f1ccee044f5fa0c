//! The pod's spec as a whole.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{PodSpec, Toleration};

use super::{Errors, FieldError, Path, container, names, placement, resources, security, volume};

/// Most DNS servers, search domains, and characters of the latter.
// k8s: pkg/apis/core/validation/validation.go MaxDNSNameservers and its siblings
const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCH_CHARS_MAX: usize = 2048;

// k8s: pkg/apis/core/validation/validation.go ValidatePodSpec
pub(crate) fn check(errors: &mut Errors, spec: &PodSpec) {
    let path = Path::root("spec");
    let volumes = volume::check_all(errors, &path.child("volumes"), spec);
    container::check_all(errors, &path, spec, &volumes);
    if spec.ephemeral_containers.iter().flatten().next().is_some() {
        let detail = "cannot be set on create";
        errors.push(FieldError::forbidden(path.child("ephemeralContainers"), detail));
    }
    let policies = ["Always", "OnFailure", "Never"];
    errors.one_of(&path.child("restartPolicy"), spec.restart_policy.as_deref(), &policies);
    check_dns(errors, &path, spec);
    check_numbers(errors, &path, spec);
    check_names(errors, &path, spec);
    placement::check(errors, &path, spec);
    if let Some(context) = &spec.security_context {
        security::check_pod(errors, &path.child("securityContext"), spec, context);
    }
    security::check_host_users(errors, &path, spec);
    check_tolerations(errors, &path.child("tolerations"), spec);
    if let Some(own) = &spec.resources {
        resources::check_pod(errors, &path.child("resources"), own);
    }
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = path.child("hostAliases").index(index);
        check_ip(errors, &path.child("ip"), &alias.ip);
        for (number, host) in alias.hostnames.iter().flatten().enumerate() {
            errors.check(&path.child("hostnames").index(number), host, names::subdomain);
        }
    }
    for (index, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let path = path.child("readinessGates").index(index).child("conditionType");
        errors.check(&path, &gate.condition_type, names::qualified);
    }
}

fn check_numbers(errors: &mut Errors, path: &Path, spec: &PodSpec) {
    let grace = path.child("terminationGracePeriodSeconds");
    errors.not_negative(&grace, spec.termination_grace_period_seconds);
    let in_range = |seconds: &i64| (1..=i64::from(i32::MAX)).contains(seconds);
    if let Some(seconds) = spec.active_deadline_seconds.filter(|seconds| !in_range(seconds)) {
        let detail = "must be between 1 and 2147483647, inclusive";
        errors.push(FieldError::invalid(path.child("activeDeadlineSeconds"), seconds, detail));
    }
}

/// Returns the faults of a name.
type Rule = fn(&str) -> Vec<String>;

fn check_names(errors: &mut Errors, path: &Path, spec: &PodSpec) {
    let rules: [(&str, &Option<String>, Rule); 7] = [
        ("nodeName", &spec.node_name, names::subdomain),
        ("serviceAccountName", &spec.service_account_name, names::subdomain),
        ("hostname", &spec.hostname, names::label),
        ("subdomain", &spec.subdomain, names::label),
        ("priorityClassName", &spec.priority_class_name, names::subdomain),
        ("runtimeClassName", &spec.runtime_class_name, names::subdomain),
        ("hostnameOverride", &spec.hostname_override, names::subdomain),
    ];
    for (name, value, rule) in rules {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            errors.check(&path.child(name), value, rule);
        }
    }
    for (key, value) in spec.node_selector.iter().flatten() {
        errors.check(&path.child("nodeSelector"), key, names::qualified);
        errors.check(&path.child("nodeSelector"), value, names::label_value);
    }
}

fn check_ip(errors: &mut Errors, path: &Path, value: &str) {
    if value.parse::<IpAddr>().is_err() {
        let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        errors.push(FieldError::invalid(path, value, detail));
    }
}

// k8s: pkg/apis/core/validation/validation.go validateDNSPolicy, validatePodDNSConfig
fn check_dns(errors: &mut Errors, path: &Path, spec: &PodSpec) {
    let policies = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
    let policy = spec.dns_policy.as_deref();
    errors.one_of(&path.child("dnsPolicy"), policy, &policies);
    let path = path.child("dnsConfig");
    let none = policy == Some("None");
    let Some(config) = &spec.dns_config else {
        if none {
            let detail = "must provide `dnsConfig` when `dnsPolicy` is None";
            errors.push(FieldError::required(path, detail));
        }
        return;
    };
    let servers = config.nameservers.as_deref().unwrap_or_default();
    let path_of_servers = path.child("nameservers");
    if none && servers.is_empty() {
        let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        errors.push(FieldError::required(&path_of_servers, detail));
    }
    if servers.len() > NAMESERVERS_MAX {
        let detail = format!("must not have more than {NAMESERVERS_MAX} nameservers");
        let shown = format!("Invalid value: {servers:?}");
        errors.push(FieldError::new(&path_of_servers, &shown, &detail));
    }
    for (index, server) in servers.iter().enumerate() {
        check_ip(errors, &path_of_servers.index(index), server);
    }
    check_searches(errors, &path.child("searches"), config.searches.as_deref());
    for (index, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            let path = path.child("options").index(index);
            errors.push(FieldError::required(path, "must not be empty"));
        }
    }
}

fn check_searches(errors: &mut Errors, path: &Path, searches: Option<&[String]>) {
    let searches = searches.unwrap_or_default();
    if searches.len() > SEARCHES_MAX {
        let detail = format!("must not have more than {SEARCHES_MAX} search paths");
        errors.push(FieldError::new(path, "Invalid value", &detail));
    }
    if searches.join(" ").len() > SEARCH_CHARS_MAX {
        let detail = format!(
            "must not have more than {SEARCH_CHARS_MAX} characters (including spaces) in the \
             search list"
        );
        errors.push(FieldError::new(path, "Invalid value", &detail));
    }
    for (index, search) in searches.iter().enumerate() {
        // "." alone is allowed, a final dot and underscores too.
        let plain = search.strip_suffix('.').unwrap_or(search);
        if search != "." && !(plain.len() <= 253 && plain.split('.').all(is_search_label)) {
            let detail = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
                          characters, '_', '-' or '.', and must start and end with an alphanumeric \
                          character (e.g. 'example.com')";
            errors.push(FieldError::invalid(path.index(index), search.as_str(), detail));
        }
    }
}

/// A label of a name that is searched for, which may begin with an underscore.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go IsDNS1123SubdomainWithUnderscore
fn is_search_label(label: &str) -> bool {
    let is_plain = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit();
    let label = label.strip_prefix('_').unwrap_or(label);
    label.starts_with(is_plain)
        && label.ends_with(is_plain)
        && label.chars().all(|it| is_plain(it) || matches!(it, '-' | '_'))
}

// k8s: pkg/apis/core/validation/validation.go ValidateTolerations
fn check_tolerations(errors: &mut Errors, path: &Path, spec: &PodSpec) {
    for (index, toleration) in spec.tolerations.iter().flatten().enumerate() {
        check_toleration(errors, &path.index(index), toleration);
    }
}

fn check_toleration(errors: &mut Errors, path: &Path, toleration: &Toleration) {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (key, value) = (text(&toleration.key), text(&toleration.value));
    let (operator, effect) = (text(&toleration.operator), text(&toleration.effect));
    if !key.is_empty() {
        for detail in names::qualified(&key) {
            errors.push(FieldError::invalid(path.child("key"), key.as_str(), &detail));
        }
    } else if operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values \
                      and all keys\"";
        errors.push(FieldError::invalid(path.child("operator"), operator.as_str(), detail));
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.push(FieldError::invalid(path.child("effect"), effect.as_str(), detail));
    }
    match &*operator {
        "" | "Equal" => {
            for detail in names::label_value(&value) {
                errors.push(FieldError::invalid(path.child("operator"), value.as_str(), &detail));
            }
        }
        "Exists" if !value.is_empty() => {
            let detail = "value must be empty when `operator` is 'Exists'";
            errors.push(FieldError::invalid(path.child("operator"), value.as_str(), detail));
        }
        "Exists" => {}
        other => {
            let supported = ["Equal", "Exists"];
            errors.push(FieldError::unsupported(path.child("operator"), other, &supported));
        }
    }
    let effects = ["NoExecute", "NoSchedule", "PreferNoSchedule"];
    if !effect.is_empty() && !effects.contains(&&*effect) {
        errors.push(FieldError::unsupported(path.child("effect"), &effect, &effects));
    }
}
