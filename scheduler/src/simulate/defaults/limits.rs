//! LimitRanges: defaults for the containers of a new pod, and rejections.
//!
//! Input: a pod that no API server has stored, the ranges of its namespace. Output: the pod with
//! requests and limits, or the message of its rejection. Pure.
// k8s: plugin/pkg/admission/limitranger/admission.go

use k8s_openapi::api::core::v1::{LimitRange, LimitRangeItem, Pod};
use pintle_api_types::quantity::{Amount, Amounts, read_list};
use pintle_sched_core::requests::declared::Declared;

use super::fill;

/// Requests and limits of a container or a pod.
struct Used {
    requests: Amounts,
    limits: Amounts,
}

/// Applies the range's defaults to the pod; true if the pod changed.
// k8s: admission.go PodMutateLimitFunc
pub(super) fn give(range: &LimitRange, pod: &mut Pod) -> bool {
    let Some(spec) = &mut pod.spec else { return false };
    let init = spec.init_containers.iter_mut().flatten();
    let mut any = false;
    for container in spec.containers.iter_mut().chain(init) {
        let resources = container.resources.get_or_insert_default();
        for limit in items(range, "Container") {
            any |= fill(resources.limits.get_or_insert_default(), limit.default.as_ref());
            let requests = resources.requests.get_or_insert_default();
            any |= fill(requests, limit.default_request.as_ref());
        }
    }
    any
}

/// # Errors
/// The field, and the problem.
// k8s: admission.go PodValidateLimitFunc
pub(super) fn check(range: &LimitRange, pod: &Pod) -> Result<(), (String, String)> {
    let name = range.metadata.name.as_deref().unwrap_or_default();
    let refused =
        |field: String, why: LimitViolation| (field, format!("{why} (LimitRange {name})"));
    let Some(spec) = &pod.spec else { return Ok(()) };
    let init = spec.init_containers.as_deref().unwrap_or_default();
    for (list, field) in [(&spec.containers[..], "containers"), (init, "initContainers")] {
        for (at, container) in list.iter().enumerate() {
            let resources = container.resources.as_ref();
            let amounts = |list| read_list(list).unwrap_or_default();
            let used = Used {
                requests: amounts(resources.and_then(|r| r.requests.as_ref())),
                limits: amounts(resources.and_then(|r| r.limits.as_ref())),
            };
            for limit in items(range, "Container") {
                let checked = one(limit, &used);
                checked.map_err(|why| refused(format!("spec.{field}[{at}].resources"), why))?;
            }
        }
    }
    let mut own = pod.clone();
    if let Some(spec) = &mut own.spec {
        spec.overhead = None;
    }
    let Ok(Declared { requests, limits }) = Declared::of(&own) else { return Ok(()) };
    let used = Used { requests, limits };
    for limit in items(range, "Pod") {
        one(limit, &used).map_err(|why| refused("spec.containers".to_owned(), why))?;
    }
    Ok(())
}

fn items<'a>(range: &'a LimitRange, kind: &'a str) -> impl Iterator<Item = &'a LimitRangeItem> {
    let all = range.spec.iter().flat_map(|spec| &spec.limits);
    all.filter(move |limit| limit.type_ == kind)
}

/// A limit that a pod does not keep.
#[derive(Debug, thiserror::Error)]
#[error("{limit}, but {found}")]
struct LimitViolation {
    limit: String,
    found: String,
}

fn one(limit: &LimitRangeItem, used: &Used) -> Result<(), LimitViolation> {
    let broken =
        |limit: String, found: &str| Err(LimitViolation { limit, found: found.to_owned() });
    let kind = &limit.type_;
    let (requests, limits) = (&used.requests, &used.limits);
    for (name, least) in amounts(limit.min.as_ref()) {
        let head = format!("minimum {name} usage per {kind} is {}", least.canonical());
        match (requests.get(&name), limits.get(&name)) {
            (None, _) => return broken(head, "no request is specified"),
            (Some(request), _) if *request < least => {
                return broken(head, &format!("request is {}", request.canonical()));
            }
            (_, Some(most)) if *most < least => {
                return broken(head, &format!("limit is {}", most.canonical()));
            }
            _ => {}
        }
    }
    for (name, most) in amounts(limit.max.as_ref()) {
        let head = format!("maximum {name} usage per {kind} is {}", most.canonical());
        match (limits.get(&name), requests.get(&name)) {
            (None, _) => return broken(head, "no limit is specified"),
            (Some(limit), _) if *limit > most => {
                return broken(head, &format!("limit is {}", limit.canonical()));
            }
            (_, Some(request)) if *request > most => {
                return broken(head, &format!("request is {}", request.canonical()));
            }
            _ => {}
        }
    }
    for (name, ratio) in amounts(limit.max_limit_request_ratio.as_ref()) {
        let head = format!("{name} max limit to request ratio per {kind} is {}", ratio.canonical());
        let given = |list: &Amounts| list.get(&name).copied().filter(|amount| !amount.is_zero());
        let Some(request) = given(requests) else {
            return broken(head, "no request is specified or request is 0");
        };
        let Some(most) = given(limits) else {
            return broken(head, "no limit is specified or limit is 0");
        };
        if most > request.times(ratio) {
            let is = most.approximate() / request.approximate();
            return broken(head, &format!("provided ratio is {is:.3}"));
        }
    }
    Ok(())
}

fn amounts(list: Option<&super::Resources>) -> Vec<(String, Amount)> {
    read_list(list).unwrap_or_default().into_iter().collect()
}
