//! Containers: main, init and sidecar.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Container, EnvVar, ObjectFieldSelector, PodSpec, ResourceFieldSelector,
};

use super::{Errors, FieldError, Path, handler, names, placement, resources, security, volume};
use crate::pod::containers::is_sidecar;
use crate::quantity::Amount;

/// Fields of the pod that `fieldRef` may name.
const FIELD_PATHS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Resources that `resourceFieldRef` may name.
const RESOURCE_PATHS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Valid divisors of amounts of bytes.
const BYTE_DIVISORS: [&str; 13] =
    ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// All containers of a pod.
// k8s: pkg/apis/core/validation/validation.go validateContainers, validateInitContainers
pub(super) fn check_all(
    errors: &mut Errors,
    path: &Path,
    spec: &PodSpec,
    volumes: &BTreeSet<&str>,
) {
    let mut seen = BTreeSet::new();
    let grace_seconds = spec.termination_grace_period_seconds.unwrap_or(30);
    let mains = path.child("containers");
    if spec.containers.is_empty() {
        errors.push(FieldError::required(&mains, ""));
    }
    for (index, container) in spec.containers.iter().enumerate() {
        let path = mains.index(index);
        check(errors, &path, container, volumes, &mut seen);
        handler::check(errors, &path, container, grace_seconds);
        check_restart_rules(errors, &path, container);
    }
    let inits = path.child("initContainers");
    for (index, container) in spec.init_containers.iter().flatten().enumerate() {
        let path = inits.index(index);
        check(errors, &path, container, volumes, &mut seen);
        check_restart_rules(errors, &path, container);
        if is_sidecar(container) {
            handler::check(errors, &path, container, grace_seconds);
        } else {
            check_init(errors, &path, container);
        }
    }
    let has_os = spec.os.as_ref().is_some_and(|os| !os.name.is_empty());
    let lists = [
        ("containers", spec.containers.as_slice()),
        ("initContainers", spec.init_containers.as_deref().unwrap_or_default()),
    ];
    for (list, containers) in lists {
        for (index, container) in containers.iter().enumerate() {
            placement::check_container(errors, &path.child(list).index(index), container, has_os);
        }
    }
    check_host_ports(errors, path, spec);
}

fn check<'a>(
    errors: &mut Errors,
    path: &Path,
    container: &'a Container,
    volumes: &BTreeSet<&str>,
    seen: &mut BTreeSet<&'a str>,
) {
    let name = container.name.as_str();
    if name.is_empty() {
        errors.push(FieldError::required(path.child("name"), ""));
    } else {
        errors.check(&path.child("name"), name, names::label);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(path.child("name"), name));
        }
    }
    match container.image.as_deref() {
        None | Some("") => errors.push(FieldError::required(path.child("image"), "")),
        Some(image) if image.trim() != image => {
            let detail = "must not have leading or trailing whitespace";
            errors.push(FieldError::invalid(path.child("image"), image, detail));
        }
        Some(_) => {}
    }
    let policy = container.termination_message_policy.as_deref();
    let policies = ["FallbackToLogsOnError", "File"];
    errors.one_of(&path.child("terminationMessagePolicy"), policy, &policies);
    let policies = ["Always", "IfNotPresent", "Never"];
    let policy = container.image_pull_policy.as_deref();
    errors.one_of(&path.child("imagePullPolicy"), policy, &policies);
    check_ports(errors, &path.child("ports"), container);
    check_env(errors, path, container);
    volume::check_mounts(errors, &path.child("volumeMounts"), container, volumes);
    if let Some(own) = &container.resources {
        resources::check_container(errors, &path.child("resources"), own);
    }
    if let Some(context) = &container.security_context {
        security::check_container(errors, &path.child("securityContext"), context);
    }
}

/// Checks fields that init containers may not have unless they keep running.
fn check_init(errors: &mut Errors, path: &Path, container: &Container) {
    let detail = "may not be set for init containers without restartPolicy=Always";
    for (name, set) in [
        ("lifecycle", container.lifecycle.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
    ] {
        if set {
            errors.push(FieldError::forbidden(path.child(name), detail));
        }
    }
}

// k8s: pkg/apis/core/validation/validation.go validateContainerRestartPolicy
fn check_restart_rules(errors: &mut Errors, path: &Path, container: &Container) {
    let policy = container.restart_policy.as_deref();
    if policy.is_some() {
        let policies = ["Always", "Never", "OnFailure"];
        errors.one_of(&path.child("restartPolicy"), policy, &policies);
    }
    let path = path.child("restartPolicyRules");
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    if !rules.is_empty() && policy.is_none() {
        let detail = "must specify restartPolicy when restart rules are used";
        errors.push(FieldError::required(path.0.replace("Rules", ""), detail));
    }
    for (index, rule) in rules.iter().enumerate() {
        let path = path.index(index);
        let actions = ["Restart", "RestartAllContainers"];
        errors.one_of(&path.child("action"), Some(&rule.action), &actions);
        let Some(codes) = &rule.exit_codes else {
            let detail = "must be specified";
            errors.push(FieldError::required(path.child("exitCodes"), detail));
            continue;
        };
        let operator = path.child("exitCodes").child("operator");
        errors.one_of(&operator, Some(&codes.operator), &["In", "NotIn"]);
        if codes.values.iter().flatten().next().is_none() {
            errors.push(FieldError::required(path.child("exitCodes").child("values"), ""));
        }
    }
}

// k8s: pkg/apis/core/validation/validation.go validateContainerPorts
fn check_ports(errors: &mut Errors, path: &Path, container: &Container) {
    let mut seen = BTreeSet::new();
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let path = path.index(index);
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let wrong = names::port_name(name);
            if wrong.is_empty() && !seen.insert(name) {
                errors.push(FieldError::duplicate(path.child("name"), name));
            }
            for detail in wrong {
                errors.push(FieldError::invalid(path.child("name"), name, &detail));
            }
        }
        if port.container_port == 0 {
            errors.push(FieldError::required(path.child("containerPort"), ""));
        } else {
            handler::check_port_number(errors, &path.child("containerPort"), port.container_port);
        }
        if let Some(host_port) = port.host_port.filter(|port| *port != 0) {
            handler::check_port_number(errors, &path.child("hostPort"), host_port);
        }
        let protocols = ["SCTP", "TCP", "UDP"];
        errors.one_of(&path.child("protocol"), port.protocol.as_deref(), &protocols);
    }
}

/// No port of the node twice; on the node's network a container's port is the node's.
// k8s: pkg/apis/core/validation/validation.go checkHostPortConflicts, validateHostNetwork
fn check_host_ports(errors: &mut Errors, path: &Path, spec: &PodSpec) {
    let lists = [
        ("containers", spec.containers.as_slice()),
        ("initContainers", spec.init_containers.as_deref().unwrap_or_default()),
    ];
    for (list, all) in lists {
        let mut seen = BTreeSet::new();
        for (index, container) in all.iter().enumerate() {
            for (number, port) in container.ports.iter().flatten().enumerate() {
                let path = path.child(list).index(index).child("ports").index(number);
                let host_port = port.host_port.unwrap_or(0);
                if spec.host_network == Some(true)
                    && list == "containers"
                    && host_port != port.container_port
                {
                    let detail = "must match `hostPort` when `hostNetwork` is true";
                    let path = path.child("containerPort");
                    errors.push(FieldError::invalid(path, port.container_port, detail));
                }
                if host_port == 0 {
                    continue;
                }
                let protocol = port.protocol.as_deref().unwrap_or("TCP");
                let address = port.host_ip.as_deref().unwrap_or_default();
                let key = format!("{protocol}/{address}/{host_port}");
                if seen.contains(&key) {
                    errors.push(FieldError::duplicate(path.child("hostPort"), key.as_str()));
                }
                seen.insert(key);
            }
        }
    }
}

// k8s: pkg/apis/core/validation/validation.go ValidateEnv, validateEnvFrom
fn check_env(errors: &mut Errors, path: &Path, container: &Container) {
    for (index, variable) in container.env.iter().flatten().enumerate() {
        let path = path.child("env").index(index);
        if variable.name.is_empty() {
            errors.push(FieldError::required(path.child("name"), ""));
        } else {
            errors.check(&path.child("name"), &variable.name, names::variable);
        }
        check_value_from(errors, &path.child("valueFrom"), variable);
    }
    for (index, from) in container.env_from.iter().flatten().enumerate() {
        let path = path.child("envFrom").index(index);
        if let Some(prefix) = from.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
            errors.check(&path.child("prefix"), prefix, names::variable);
        }
        for (field, name) in [
            ("configMapRef", from.config_map_ref.as_ref().map(|it| &it.name)),
            ("secretRef", from.secret_ref.as_ref().map(|it| &it.name)),
        ] {
            if name.is_some_and(String::is_empty) {
                errors.push(FieldError::required(path.child(field).child("name"), ""));
            }
        }
        match (&from.config_map_ref, &from.secret_ref) {
            (None, None) => {
                let detail = "must specify one of: `configMapRef` or `secretRef`";
                errors.push(FieldError::invalid(&path, "", detail));
            }
            (Some(_), Some(_)) => {
                let detail = "may not have more than one field specified at a time";
                errors.push(FieldError::invalid(&path, "", detail));
            }
            _ => {}
        }
    }
}

/// Fields of pods are those of v1.
// k8s: pkg/apis/core/pods/helpers.go ConvertDownwardAPIFieldLabel
pub(super) fn check_version(errors: &mut Errors, path: &Path, field: &ObjectFieldSelector) {
    let version = field.api_version.as_deref().unwrap_or("v1");
    if version != "v1" {
        let detail = format!("error converting fieldPath: unsupported pod version: {version}");
        let path = path.child("fieldPath");
        errors.push(FieldError::invalid(path, field.field_path.as_str(), &detail));
    }
}

/// A field of the pod: one of the plain ones, or one key of the labels or annotations.
// k8s: pkg/apis/core/validation/validation.go validateObjectFieldSelector
fn check_field_path(errors: &mut Errors, path: &Path, field: &str) {
    let keyed = ["metadata.labels['", "metadata.annotations['"];
    let is_keyed = field.ends_with("']") && keyed.iter().any(|start| field.starts_with(start));
    if field.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !is_keyed && !FIELD_PATHS.contains(&field) {
        errors.push(FieldError::unsupported(path, field, &FIELD_PATHS));
    }
}

/// Checks the resource field that a variable or a file of a volume shows.
// k8s: pkg/apis/core/validation/validation.go validateContainerResourceFieldSelector
pub(super) fn check_resource_field(
    errors: &mut Errors,
    path: &Path,
    own: &ResourceFieldSelector,
    is_file: bool,
) {
    let name = own.resource.as_str();
    let is_pages = name.starts_with("limits.hugepages-") || name.starts_with("requests.hugepages-");
    if is_file && own.container_name.as_deref().unwrap_or_default().is_empty() {
        errors.push(FieldError::required(path.child("containerName"), ""));
    } else if name.is_empty() {
        errors.push(FieldError::required(path.child("resource"), ""));
    } else if !is_pages && !RESOURCE_PATHS.contains(&name) {
        errors.push(FieldError::unsupported(path.child("resource"), name, &RESOURCE_PATHS));
    }
    let divisor = own.divisor.as_ref().map_or("0", |divisor| divisor.0.as_str());
    let is_set = Amount::parse(divisor).is_some_and(|divisor| !divisor.is_zero());
    let (divisors, of): (&[&str], _) = match name.split_once('.') {
        Some((_, "cpu")) => (&["1m", "1"], "cpu"),
        Some((_, "ephemeral-storage")) => (&BYTE_DIVISORS, "local ephemeral storage"),
        Some((_, "memory")) => (&BYTE_DIVISORS, "memory"),
        _ => (&BYTE_DIVISORS, "hugepages"),
    };
    let is_known = is_pages || RESOURCE_PATHS.contains(&name);
    if is_set && is_known && !divisors.contains(&divisor) {
        let all = if of == "cpu" { "1m and 1".to_owned() } else { BYTE_DIVISORS.join(", ") };
        let detail = format!("only divisor's values {all} are supported with the {of} resource");
        errors.push(FieldError::invalid(path.child("divisor"), name, &detail));
    }
}

// k8s: pkg/apis/core/validation/validation.go validateEnvVarValueFrom
fn check_value_from(errors: &mut Errors, path: &Path, variable: &EnvVar) {
    let Some(from) = &variable.value_from else {
        return;
    };
    let sources = [
        from.field_ref.is_some(),
        from.resource_field_ref.is_some(),
        from.config_map_key_ref.is_some(),
        from.secret_key_ref.is_some(),
        from.file_key_ref.is_some(),
    ];
    let detail = match sources.iter().filter(|set| **set).count() {
        0 => {
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, \
             `secretKeyRef` or `fileKeyRef`"
        }
        _ if variable.value.as_ref().is_some_and(|value| !value.is_empty()) => {
            "may not be specified when `value` is not empty"
        }
        1 => "",
        _ => "may not have more than one field specified at a time",
    };
    if !detail.is_empty() {
        errors.push(FieldError::invalid(path, "", detail));
    }
    if let Some(field) = &from.field_ref {
        check_version(errors, &path.child("fieldRef"), field);
        check_field_path(errors, &path.child("fieldRef").child("fieldPath"), &field.field_path);
    }
    if let Some(resource) = &from.resource_field_ref {
        check_resource_field(errors, &path.child("resourceFieldRef"), resource, false);
    }
    for (name, key) in [
        ("configMapKeyRef", from.config_map_key_ref.as_ref().map(|reference| &reference.key)),
        ("secretKeyRef", from.secret_key_ref.as_ref().map(|reference| &reference.key)),
    ] {
        match key {
            Some(key) if key.is_empty() => {
                errors.push(FieldError::required(path.child(name).child("key"), ""));
            }
            Some(key) => errors.check(&path.child(name).child("key"), key, names::map_key),
            None => {}
        }
    }
}
