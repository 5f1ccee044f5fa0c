//! Pods that need a licence go to a node that has one, best to a node with many, and record that
//! node.
//!
//! A pod names the licence by the label `example.pintle.dev/needs-licence`; a node declares its
//! number by the annotation `licence.example.pintle.dev/NAME`. Each serves one pod. A victim of
//! preemption frees its licence: the plugin follows pods that a dry run adds and removes.

use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use pintle_scheduler::framework::{
    CycleState, EnqueueExtensions, Filter, Handle, HandleClient as _, Happened, NodeInfo, Nodes,
    PluginError, Points, PreBind, PreFilter, PreFilterExtensions, Rejection, Score,
};
use serde_json::{Value, json};

const NEEDS: &str = "example.pintle.dev/needs-licence";
const FROM: &str = "example.pintle.dev/licence-from";

/// Creates the plugin of one profile.
pub(crate) fn make(args: &Value, handle: &Handle) -> Result<Points, PluginError> {
    if !args.is_null() {
        return Err(PluginError::new("Licence has no arguments: remove them"));
    }
    let plugin = Rc::new(Licence(handle.clone()));
    Ok(Points::default()
        .pre_filter(plugin.clone())
        .filter(plugin.clone())
        .score(plugin.clone())
        .pre_bind(plugin.clone())
        .events(plugin))
}

struct Licence(Handle);

/// Licence that an attempt needs, and the number in use by node.
#[derive(Clone)]
struct Needed {
    licence: String,
    taken: BTreeMap<String, i64>,
}

impl Needed {
    /// Returns the number of free licences on a node.
    fn left(&self, node: &NodeInfo<'_>) -> i64 {
        count(node, &self.licence) - self.taken.get(node.name()).copied().unwrap_or(0)
    }

    /// Updates the state after another pod was added to a node, or removed.
    fn change(state: &CycleState, other: &Pod, node: &NodeInfo<'_>, by: i64) {
        let Some(mut needed) = state.read::<Self>().map(|needed| (*needed).clone()) else { return };
        if self::needed(other) == Some(&needed.licence) {
            *needed.taken.entry(node.name().to_owned()).or_default() += by;
            state.write(needed);
        }
    }
}

fn needed(pod: &Pod) -> Option<&String> {
    pod.metadata.labels.as_ref()?.get(NEEDS)
}

fn count(node: &NodeInfo<'_>, licence: &str) -> i64 {
    let all = node.node.metadata.annotations.as_ref();
    let count = all.and_then(|all| all.get(&format!("licence.example.pintle.dev/{licence}")));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

impl PreFilter for Licence {
    fn pre_filter(&self, state: &CycleState, pod: &Pod) -> Result<Nodes, Rejection> {
        let Some(licence) = needed(pod) else { return Ok(Nodes::Skip) };
        let mut taken = BTreeMap::new();
        for (node, other) in self.0.pods_on_nodes() {
            if needed(&other) == Some(licence) {
                *taken.entry(node.to_string()).or_default() += 1;
            }
        }
        state.write(Needed { licence: licence.clone(), taken });
        Ok(Nodes::All)
    }

    fn extensions(&self) -> Option<&dyn PreFilterExtensions> {
        Some(self)
    }
}

impl PreFilterExtensions for Licence {
    fn add_pod(
        &self,
        state: &CycleState,
        _: &Pod,
        other: &Pod,
        node: &NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        Needed::change(state, other, node, 1);
        Ok(())
    }

    fn remove_pod(
        &self,
        state: &CycleState,
        _: &Pod,
        other: &Pod,
        node: &NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        Needed::change(state, other, node, -1);
        Ok(())
    }
}

impl Filter for Licence {
    fn filter(&self, state: &CycleState, _: &Pod, node: &NodeInfo<'_>) -> Result<(), Rejection> {
        let Some(needed) = state.read::<Needed>() else { return Ok(()) };
        if count(node, &needed.licence) <= 0 {
            let why = format!("node(s) had no licence for {}", needed.licence);
            return Err(Rejection::Unresolvable(why));
        }
        match needed.left(node) {
            1.. => Ok(()),
            _ => {
                let why = format!("node(s) had no licence for {} left", needed.licence);
                Err(Rejection::Unschedulable(why))
            }
        }
    }
}

impl Score for Licence {
    fn score(&self, state: &CycleState, _: &Pod, node: &NodeInfo<'_>) -> Result<i64, PluginError> {
        Ok(state.read::<Needed>().map_or(0, |needed| needed.left(node)))
    }

    fn normalize(&self, _: &CycleState, _: &Pod, scores: &mut [i64]) {
        let most = scores.iter().copied().max().unwrap_or(0).max(1);
        scores.iter_mut().for_each(|score| *score = *score * 100 / most);
    }
}

impl PreBind for Licence {
    fn pre_bind<'a>(
        &'a self,
        _: &'a CycleState,
        pod: &'a Pod,
        node: &'a str,
    ) -> LocalBoxFuture<'a, Result<(), PluginError>> {
        async move {
            let Some((client, _)) = self.0.client().zip(needed(pod)) else { return Ok(()) };
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let pods = Api::<Pod>::namespaced(client, namespace);
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let patch = Patch::Merge(json!({"metadata": {"uid": pod.metadata.uid,
                "annotations": {FROM: node}}}));
            let written = pods.patch(name, &PatchParams::default(), &patch).await;
            written.map(|_| ()).map_err(|error| PluginError::new(error.to_string()))
        }
        .boxed_local()
    }
}

impl EnqueueExtensions for Licence {
    fn may_help(&self, _: &Pod, happened: Happened) -> bool {
        use Happened::{Itself, NodeAdded, NodeChanged, PodGone};
        matches!(happened, NodeAdded | NodeChanged | PodGone | Itself)
    }
}
