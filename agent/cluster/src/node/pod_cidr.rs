//! Tells the runtime from which network its pods get addresses.
//!
//! Input: the `podCIDR` setting and, in a cluster, what the Node object says. Output:
//! `UpdateRuntimeConfig`, whenever that is something new; a failed call is repeated after `every`.
//! A runtime that makes its CNI configuration from a template waits for just this.
// k8s: pkg/kubelet/kubelet_network.go updatePodCIDR, kubelet_node_status.go updateNode

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use pintle_cri::{Client, v1};
use tokio::sync::watch;

use super::own::OwnNode;

/// Follows the setting and the Node object for ever.
pub async fn follow(
    client: Client,
    set: String,
    own: Option<watch::Receiver<OwnNode>>,
    every: Duration,
) {
    let mut news = News { wanted: set, told: String::new() };
    let Some(mut own) = own else {
        while !tell(&client, &mut news).await {
            tokio::time::sleep(every).await;
        }
        return;
    };
    loop {
        if let Some(cidrs) = own.borrow_and_update().object().and_then(|node| cidrs(node)) {
            news.wanted = cidrs;
        }
        let told = tell(&client, &mut news).await;
        tokio::select! {
            changed = own.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(every), if !told => {}
        }
    }
}

/// What the runtime is to know and what it was told.
#[derive(Debug, Default)]
struct News {
    wanted: String,
    told: String,
}

impl News {
    fn call(&self) -> Option<v1::UpdateRuntimeConfigRequest> {
        let network = v1::NetworkConfig { pod_cidr: self.wanted.clone() };
        let config = v1::RuntimeConfig { network_config: Some(network) };
        (self.wanted != self.told)
            .then_some(v1::UpdateRuntimeConfigRequest { runtime_config: Some(config) })
    }
}

/// True when the runtime knows.
async fn tell(client: &Client, news: &mut News) -> bool {
    let Some(call) = news.call() else { return true };
    match client.update_runtime_config(call).await {
        Ok(_) => {
            tracing::info!(before = news.told, now = news.wanted, "the runtime knows the pod CIDR");
            news.told.clone_from(&news.wanted);
            true
        }
        Err(error) => {
            tracing::warn!(cidr = news.wanted, %error, "the runtime was not told the pod CIDR");
            false
        }
    }
}

/// Every family's, as one text; `None` while nobody has given the node any.
fn cidrs(node: &Node) -> Option<String> {
    let cidrs = node.spec.as_ref()?.pod_cidrs.as_ref()?;
    (!cidrs.is_empty()).then(|| cidrs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_is_told_and_nothing_twice() {
        let node = |cidrs: serde_json::Value| {
            let node = serde_json::json!({"metadata": {}, "spec": {"podCIDRs": cidrs}});
            serde_json::from_value::<Node>(node).expect("a node")
        };
        assert_eq!(cidrs(&node(serde_json::json!([]))), None);
        let both = cidrs(&node(serde_json::json!(["10.1.0.0/24", "fd00::/64"])));
        assert_eq!(both.as_deref(), Some("10.1.0.0/24,fd00::/64"));
        let mut news = News { wanted: both.expect("CIDRs"), told: String::new() };
        let call = news.call().expect("a call").runtime_config.expect("a configuration");
        assert_eq!(call.network_config.expect("a network").pod_cidr, "10.1.0.0/24,fd00::/64");
        news.told = news.wanted.clone();
        assert_eq!(news.call(), None);
        assert_eq!(News::default().call(), None, "nobody said anything");
    }
}
