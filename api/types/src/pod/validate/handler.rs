//! Probes and lifecycle hooks: exactly one way each, and numbers within their ranges.

use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, Probe, SleepAction,
    TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Errors, FieldError, Path, names};

const PORT_RANGE: &str = "must be between 1 and 65535, inclusive";

/// The ways to act that a probe or hook may name.
#[derive(Default)]
struct HandlerActions<'a> {
    exec: Option<&'a ExecAction>,
    http_get: Option<&'a HTTPGetAction>,
    tcp_socket: Option<&'a TCPSocketAction>,
    grpc: Option<&'a GRPCAction>,
    sleep: Option<&'a SleepAction>,
}

/// Probes and hooks of a container that may have them.
// k8s: pkg/apis/core/validation/validation.go validateLivenessProbe and its siblings
pub(crate) fn check(errors: &mut Errors, path: &Path, container: &Container, grace_seconds: i64) {
    if let Some(lifecycle) = &container.lifecycle {
        let path = path.child("lifecycle");
        for (name, hook) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)]
        {
            if let Some(hook) = hook {
                check_hook(errors, &path.child(name), hook, grace_seconds);
            }
        }
    }
    for (name, probe) in [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ] {
        let Some(probe) = probe else {
            continue;
        };
        let path = path.child(name);
        check_probe(errors, &path, probe);
        if name == "readinessProbe" {
            if let Some(seconds) = probe.termination_grace_period_seconds {
                let detail = "must not be set for readinessProbes";
                let path = path.child("terminationGracePeriodSeconds");
                errors.push(FieldError::invalid(path, seconds, detail));
            }
        } else if let Some(count) = probe.success_threshold.filter(|count| *count != 1) {
            let path = path.child("successThreshold");
            errors.push(FieldError::invalid(path, count, "must be 1"));
        }
    }
}

// k8s: pkg/apis/core/validation/validation.go validateProbe
fn check_probe(errors: &mut Errors, path: &Path, probe: &Probe) {
    let handler = HandlerActions {
        exec: probe.exec.as_ref(),
        http_get: probe.http_get.as_ref(),
        tcp_socket: probe.tcp_socket.as_ref(),
        grpc: probe.grpc.as_ref(),
        sleep: None,
    };
    check_handler(errors, path, &handler, 0);
    for (name, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        errors.not_negative(&path.child(name), value.map(i64::from));
    }
    if let Some(seconds) = probe.termination_grace_period_seconds.filter(|seconds| *seconds <= 0) {
        let path = path.child("terminationGracePeriodSeconds");
        errors.push(FieldError::invalid(path, seconds, "must be greater than 0"));
    }
}

fn check_hook(errors: &mut Errors, path: &Path, hook: &LifecycleHandler, grace_seconds: i64) {
    let handler = HandlerActions {
        exec: hook.exec.as_ref(),
        http_get: hook.http_get.as_ref(),
        tcp_socket: hook.tcp_socket.as_ref(),
        grpc: None,
        sleep: hook.sleep.as_ref(),
    };
    check_handler(errors, path, &handler, grace_seconds);
}

// k8s: pkg/apis/core/validation/validation.go validateHandler
fn check_handler(errors: &mut Errors, path: &Path, handler: &HandlerActions, grace_seconds: i64) {
    let named = [
        ("exec", handler.exec.is_some()),
        ("httpGet", handler.http_get.is_some()),
        ("tcpSocket", handler.tcp_socket.is_some()),
        ("grpc", handler.grpc.is_some()),
        ("sleep", handler.sleep.is_some()),
    ];
    let mut named = named.into_iter().filter(|(_, set)| *set).map(|(name, _)| name);
    let Some(first) = named.next() else {
        errors.push(FieldError::required(path, "must specify a handler type"));
        return;
    };
    for second in named {
        let detail = "may not specify more than 1 handler type";
        errors.push(FieldError::forbidden(path.child(second), detail));
    }
    let path = path.child(first);
    if let Some(exec) = handler.exec
        && exec.command.iter().flatten().next().is_none()
    {
        errors.push(FieldError::required(path.child("command"), ""));
    } else if let Some(get) = handler.http_get.filter(|_| first == "httpGet") {
        check_http_get(errors, &path, get);
    } else if let Some(tcp) = handler.tcp_socket.filter(|_| first == "tcpSocket") {
        check_port(errors, &path.child("port"), &tcp.port);
    } else if let Some(grpc) = handler.grpc.filter(|_| first == "grpc") {
        check_port_number(errors, &path.child("port"), grpc.port);
    } else if let Some(sleep) = handler.sleep.filter(|_| first == "sleep") {
        check_sleep(errors, &path, sleep.seconds, grace_seconds);
    }
}

fn check_http_get(errors: &mut Errors, path: &Path, get: &HTTPGetAction) {
    if get.path.as_deref().unwrap_or_default().is_empty() {
        errors.push(FieldError::required(path.child("path"), ""));
    }
    check_port(errors, &path.child("port"), &get.port);
    errors.one_of(&path.child("scheme"), get.scheme.as_deref(), &["HTTP", "HTTPS"]);
    for (index, header) in get.http_headers.iter().flatten().enumerate() {
        let token = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if header.name.is_empty() || !header.name.chars().all(token) {
            let detail = "a valid HTTP header must consist of alphanumeric characters or '-' \
                          (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
            let path = path.child("httpHeaders").index(index).child("name");
            errors.push(FieldError::invalid(path, header.name.as_str(), detail));
        }
    }
}

fn check_port(errors: &mut Errors, path: &Path, port: &IntOrString) {
    match port {
        IntOrString::Int(port) => check_port_number(errors, path, *port),
        IntOrString::String(name) => errors.check(path, name, names::port_name),
    }
}

/// A port that must be there.
pub(super) fn check_port_number(errors: &mut Errors, path: &Path, port: i32) {
    if !(1..=65535).contains(&port) {
        errors.push(FieldError::invalid(path, port, PORT_RANGE));
    }
}

fn check_sleep(errors: &mut Errors, path: &Path, seconds: i64, grace_seconds: i64) {
    if seconds < 0 || (seconds > 0 && seconds >= grace_seconds) {
        let detail = format!(
            "must be non-negative and less than terminationGracePeriodSeconds ({grace_seconds})"
        );
        errors.push(FieldError::invalid(path.child("seconds"), seconds, &detail));
    }
}
