//! Builds the AllocationResults of the devices that a search chose.
//!
//! Input: a successful search. Output: AllocationResults as the API defines them. Owner: pure
//! functions. Bounds: the claims.
// k8s: structured/internal/incubating/allocator_incubating.go Allocate, createNodeSelector

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult,
    DeviceClaimConfiguration, DeviceRequestAllocationResult, ResourceClaim,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::offer::Reach;
use super::request::{device_claim, requests};
use super::search::{ChosenDevice, Search, SearchRequest};

/// A slice whose node selector has several terms.
#[derive(Debug, thiserror::Error)]
#[error(
    "create NodeSelector for claim {claim}: unsupported ResourceSlice.NodeSelector with {terms} \
     terms"
)]
pub(super) struct UnsupportedReach {
    claim: String,
    terms: usize,
}

/// Returns the allocations of all claims.
///
/// # Errors
/// The node selector of a slice cannot be expressed in an allocation.
pub(super) fn results(
    search: &Search,
    node: &str,
    share_id: &mut dyn FnMut() -> String,
) -> Result<Vec<AllocationResult>, UnsupportedReach> {
    let one = |(at, claim): (usize, &std::rc::Rc<ResourceClaim>)| {
        let chosen = &search.results[at];
        let results: Vec<_> = chosen.iter().map(|one| result(search, one, share_id)).collect();
        let config = config(search, at, claim);
        let selector = node_selector(search, chosen, node).map_err(|terms| {
            let claim = claim.metadata.name.clone().unwrap_or_default();
            UnsupportedReach { claim, terms }
        })?;
        Ok(AllocationResult {
            allocation_timestamp: None,
            devices: Some(DeviceAllocationResult {
                config: (!config.is_empty()).then_some(config),
                results: Some(results).filter(|all| !all.is_empty()),
            }),
            node_selector: selector,
        })
    };
    search.claims.iter().enumerate().map(one).collect()
}

fn alternative_of<'a, 's>(search: &'s Search<'a>, chosen: &ChosenDevice) -> &'s SearchRequest<'a> {
    &search.requests[chosen.key.claim][chosen.key.request][chosen.key.sub]
}

fn result(
    search: &Search,
    chosen: &ChosenDevice,
    share_id: &mut dyn FnMut() -> String,
) -> DeviceRequestAllocationResult {
    let (alternative, device) = (alternative_of(search, chosen), search.device(chosen.spot));
    let part = chosen.part.iter().flatten();
    let part = part.map(|(name, amount)| (name.clone(), Quantity(amount.canonical())));
    let part: std::collections::BTreeMap<_, _> = part.collect();
    let id = &device.id;
    DeviceRequestAllocationResult {
        admin_access: alternative.request.is_admin.then_some(true),
        binding_conditions: device.conditions.clone(),
        binding_failure_conditions: device.failures.clone(),
        consumed_capacity: (!part.is_empty()).then_some(part),
        device: id.device.to_string(),
        driver: id.driver.to_string(),
        pool: id.pool.to_string(),
        request: alternative.request.full_name(),
        share_id: device.is_shareable.then(share_id),
        tolerations: alternative.request.tolerations.clone(),
    }
}

/// Returns the configuration of the classes, each once, then that of the claim.
fn config(search: &Search, at: usize, claim: &ResourceClaim) -> Vec<DeviceAllocationConfiguration> {
    let mut all: Vec<DeviceAllocationConfiguration> = Vec::new();
    let mut of_class: HashMap<&str, std::ops::Range<usize>> = HashMap::new();
    let chosen = |request: usize| {
        let sub = search.selected.get(&(at, request)).copied().unwrap_or(0);
        search.requests[at][request].get(sub)
    };
    for number in 0..requests(claim).len() {
        let Some(alternative) = chosen(number) else { continue };
        let class = alternative.class.metadata.name.as_deref().unwrap_or_default();
        if let Some(known) = of_class.get(class) {
            for one in &mut all[known.clone()] {
                one.requests.get_or_insert_default().push(alternative.request.full_name());
            }
            continue;
        }
        let from = all.len();
        let own = alternative.class.spec.config.iter().flatten();
        all.extend(own.map(|config| DeviceAllocationConfiguration {
            opaque: config.opaque.clone(),
            requests: Some(vec![alternative.request.full_name()]),
            source: "FromClass".to_owned(),
        }));
        of_class.insert(class, from..all.len());
    }
    let own = device_claim(claim).and_then(|devices| devices.config.as_deref()).unwrap_or_default();
    for config in own {
        let wanted = config.requests.as_deref().unwrap_or_default();
        if wanted.is_empty() {
            all.push(from_claim(config));
            continue;
        }
        for (number, request) in requests(claim).iter().enumerate() {
            let full = chosen(number).map(|alternative| alternative.request.full_name());
            if wanted.contains(&request.name) || full.is_some_and(|full| wanted.contains(&full)) {
                all.push(from_claim(config));
            }
        }
    }
    all
}

fn from_claim(config: &DeviceClaimConfiguration) -> DeviceAllocationConfiguration {
    DeviceAllocationConfiguration {
        opaque: config.opaque.clone(),
        requests: config.requests.clone(),
        source: "FromClaim".to_owned(),
    }
}

/// Returns the nodes on which the devices can be used; `None` for all.
fn node_selector(
    search: &Search,
    chosen: &[ChosenDevice],
    node: &str,
) -> Result<Option<NodeSelector>, usize> {
    let (mut fields, mut labels) = (Vec::new(), Vec::new());
    for one in chosen {
        let device = search.device(one.spot);
        let reach = match &search.slice(one.spot).reach {
            Reach::PerDevice => &device.reach,
            reach => reach,
        };
        if matches!(reach, Reach::Node(_)) || device.binds_to_node {
            return Ok(Some(only(node)));
        }
        let Reach::Nodes(selector) = reach else { continue };
        match &selector.node_selector_terms[..] {
            [] => {}
            [term] => {
                add(&mut fields, term.match_fields.as_deref());
                add(&mut labels, term.match_expressions.as_deref());
            }
            terms => return Err(terms.len()),
        }
    }
    let some = |all: Vec<_>| Some(all).filter(|all| !all.is_empty());
    let term = NodeSelectorTerm { match_expressions: some(labels), match_fields: some(fields) };
    let is_empty = term.match_expressions.is_none() && term.match_fields.is_none();
    Ok((!is_empty).then(|| NodeSelector { node_selector_terms: vec![term] }))
}

/// Returns a selector of one node by its name.
fn only(node: &str) -> NodeSelector {
    let name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_expressions: None, match_fields: Some(vec![name]) };
    NodeSelector { node_selector_terms: vec![term] }
}

fn add(to: &mut Vec<NodeSelectorRequirement>, from: Option<&[NodeSelectorRequirement]>) {
    let values = |one: &NodeSelectorRequirement| {
        one.values.iter().flatten().cloned().collect::<std::collections::BTreeSet<String>>()
    };
    for new in from.unwrap_or_default() {
        let is_same = |old: &NodeSelectorRequirement| {
            (&old.key, &old.operator, values(old)) == (&new.key, &new.operator, values(new))
        };
        if !to.iter().any(is_same) {
            to.push(new.clone());
        }
    }
}
