//! Configures the runtime with the node's pod CIDR.
//!
//! Input: the `podCIDR` setting and, in a cluster, the CIDRs in the Node object. Output:
//! `UpdateRuntimeConfig`, whenever the CIDRs change; a failed call is retried after `every`.
//! A runtime that renders its CNI configuration from a template waits for this call.
// k8s: pkg/kubelet/kubelet_network.go updatePodCIDR, kubelet_node_status.go updateNode

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use pintle_cri::{Client, v1};
use tokio::sync::watch;

use super::own::OwnNode;

/// Applies the setting and each change of the Node object until the watch ends. Without a watch it
/// applies only the setting, and returns after the first successful call.
pub async fn follow(
    client: Client,
    set: String,
    own: Option<watch::Receiver<OwnNode>>,
    every: Duration,
) {
    let mut update = CidrUpdate { wanted: set, sent: String::new() };
    let Some(mut own) = own else {
        while !send_cidrs(&client, &mut update).await {
            tokio::time::sleep(every).await;
        }
        return;
    };
    loop {
        if let Some(cidrs) = own.borrow_and_update().object().and_then(|node| cidrs(node)) {
            update.wanted = cidrs;
        }
        let is_sent = send_cidrs(&client, &mut update).await;
        tokio::select! {
            changed = own.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(every), if !is_sent => {}
        }
    }
}

/// The CIDRs that the runtime should have, and those of the last successful call.
#[derive(Debug, Default)]
struct CidrUpdate {
    wanted: String,
    sent: String,
}

impl CidrUpdate {
    fn call(&self) -> Option<v1::UpdateRuntimeConfigRequest> {
        let network = v1::NetworkConfig { pod_cidr: self.wanted.clone() };
        let config = v1::RuntimeConfig { network_config: Some(network) };
        (self.wanted != self.sent)
            .then_some(v1::UpdateRuntimeConfigRequest { runtime_config: Some(config) })
    }
}

/// Calls the runtime if the CIDRs changed; true when the runtime has the wanted CIDRs.
async fn send_cidrs(client: &Client, update: &mut CidrUpdate) -> bool {
    let Some(call) = update.call() else { return true };
    match client.update_runtime_config(call).await {
        Ok(_) => {
            tracing::info!(before = update.sent, now = update.wanted, "sent the pod CIDR");
            update.sent.clone_from(&update.wanted);
            true
        }
        Err(error) => {
            tracing::warn!(cidr = update.wanted, %error, "could not send the pod CIDR");
            false
        }
    }
}

/// The CIDRs of all families, comma-separated; `None` while the node has none.
fn cidrs(node: &Node) -> Option<String> {
    let cidrs = node.spec.as_ref()?.pod_cidrs.as_ref()?;
    (!cidrs.is_empty()).then(|| cidrs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_pod_cidrs_are_sent_to_the_runtime_once() {
        let node = |cidrs: serde_json::Value| {
            let node = serde_json::json!({"metadata": {}, "spec": {"podCIDRs": cidrs}});
            serde_json::from_value::<Node>(node).expect("a node")
        };
        assert_eq!(cidrs(&node(serde_json::json!([]))), None);
        let both = cidrs(&node(serde_json::json!(["10.1.0.0/24", "fd00::/64"])));
        assert_eq!(both.as_deref(), Some("10.1.0.0/24,fd00::/64"));
        let mut update = CidrUpdate { wanted: both.expect("CIDRs"), sent: String::new() };
        let call = update.call().expect("a call").runtime_config.expect("a configuration");
        assert_eq!(call.network_config.expect("a network").pod_cidr, "10.1.0.0/24,fd00::/64");
        update.sent = update.wanted.clone();
        assert_eq!(update.call(), None);
        assert_eq!(CidrUpdate::default().call(), None, "no CIDR is wanted");
    }
}
