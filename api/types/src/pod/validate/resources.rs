//! Requests and limits: names, amounts, and that no request is beyond its limit.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Errors, FieldError, Path, names};
use crate::pod::resources::supports_pod_level;
use crate::quantity::Amount;

type List = BTreeMap<String, Quantity>;

/// Requirements of a container.
// k8s: pkg/apis/core/validation/validation.go validateContainerResourceRequirements
pub(super) fn check_container(errors: &mut Errors, path: &Path, own: &ResourceRequirements) {
    check(errors, path, own, |errors, path, name| {
        errors.check(path, name, names::qualified);
        let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage");
        if !standard && !name.contains('/') && !name.starts_with("hugepages-") {
            let detail = "must be a standard resource for containers";
            errors.push(FieldError::invalid(path, name, detail));
        }
    });
    let asked = |name: &str| {
        let mut lists = [&own.requests, &own.limits].into_iter().flatten();
        lists.any(|list: &List| list.contains_key(name))
    };
    let pages = [&own.requests, &own.limits].into_iter().flatten().flatten();
    let pages = pages.into_iter().any(|(name, _)| name.starts_with("hugepages-"));
    if pages && !asked("cpu") && !asked("memory") {
        errors.push(FieldError::forbidden(path, "HugePages require cpu or memory"));
    }
}

/// Requirements at pod level.
// k8s: pkg/apis/core/validation/validation.go validatePodResourceRequirements
pub(crate) fn check_pod(errors: &mut Errors, path: &Path, own: &ResourceRequirements) {
    check(errors, path, own, |errors, path, name| {
        if !supports_pod_level(name) {
            errors.push(FieldError::unsupported(path, name, &["cpu", "hugepages-", "memory"]));
        }
    });
}

fn check(
    errors: &mut Errors,
    path: &Path,
    own: &ResourceRequirements,
    check_name: fn(&mut Errors, &Path, &str),
) {
    let empty = List::new();
    let limits = own.limits.as_ref().unwrap_or(&empty);
    for (side, list) in [("limits", &own.limits), ("requests", &own.requests)] {
        for (name, quantity) in list.iter().flatten() {
            let path = path.child(side).key(name);
            check_name(errors, &path, name);
            let request = check_amount(errors, &path, name, quantity);
            if let Some(request) = request.filter(|_| side == "requests") {
                check_against_limit(errors, &path, name, request, limits.get(name));
            }
        }
    }
}

fn check_amount(
    errors: &mut Errors,
    path: &Path,
    name: &str,
    quantity: &Quantity,
) -> Option<Amount> {
    let text = quantity.0.as_str();
    let Some(amount) = Amount::parse(text) else {
        let detail = "quantities must match the regular expression \
                      '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
        errors.push(FieldError::invalid(path, text, detail));
        return None;
    };
    if amount.is_negative() {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(path, text, detail));
    }
    let integer = name.contains('/') || name.starts_with("hugepages-");
    if integer && !amount.is_whole() {
        errors.push(FieldError::invalid(path, text, "must be an integer"));
    }
    if let Some(size) = name.strip_prefix("hugepages-")
        && !is_divisible(amount, size)
    {
        let detail = format!("{text} is not positive integer multiple of {name}");
        errors.push(FieldError::invalid(path, text, &detail));
    }
    Some(amount)
}

/// Whole pages of that size?
// k8s: pkg/apis/core/helper/helpers.go IsHugePageResourceValueDivisible
fn is_divisible(amount: Amount, size: &str) -> bool {
    let size = Amount::parse(size).map_or(0, Amount::units);
    size > 0 && amount.units() % size == 0
}

fn check_against_limit(
    errors: &mut Errors,
    path: &Path,
    name: &str,
    request: Amount,
    limit: Option<&Quantity>,
) {
    let overcommits = matches!(name, "cpu" | "memory" | "ephemeral-storage");
    let Some(limit) = limit else {
        if !overcommits {
            let detail = "Limit must be set for non overcommitable resources";
            errors.push(FieldError::required(path, detail));
        }
        return;
    };
    // The limit itself is checked where it stands.
    let Some(amount) = Amount::parse(&limit.0) else {
        return;
    };
    let request_text = request.canonical();
    let parent = Path(path.0.rsplit_once('[').map_or(path.0.as_str(), |(list, _)| list).to_owned());
    if !overcommits && request != amount {
        let detail = format!("must be equal to {name} limit of {}", amount.canonical());
        errors.push(FieldError::invalid(&parent, request_text.as_str(), &detail));
    } else if request > amount {
        let detail =
            format!("must be less than or equal to {name} limit of {}", amount.canonical());
        errors.push(FieldError::invalid(&parent, request_text.as_str(), &detail));
    }
}
