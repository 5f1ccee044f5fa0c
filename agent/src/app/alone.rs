//! Without an API server: reports to the workers the node facts that the Node object would have,
//! and the features of the runtime.
//!
//! Input: the runtime's Status and the host's addresses, every `nodeStatusUpdateFrequency`. Output:
//! `PodsInput::Node` after each change. Bound: one call at a time.
// k8s: pkg/kubelet/kubelet.go updateRuntimeUp, kubelet_getters.go getHostIPsAnyWay

use std::net::IpAddr;
use std::time::Duration;

use pintle_agent_core::node::runtime_state::RuntimeState;
use pintle_agent_core::types::NodeFacts;
use pintle_agent_core::worker::PodsInput;
use pintle_agent_host::node::facts;
use pintle_cri::{Client, v1};
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use pintle_daemon::clock;
use tokio::sync::mpsc;

/// Reports changes until the workers' queue closes. `known` is the workers' initial state; `given`
/// are the addresses of `--node-ip`.
pub(super) async fn follow(
    client: Client,
    mut known: NodeFacts,
    given: Vec<IpAddr>,
    every: Duration,
    inputs: mpsc::Sender<PodsInput>,
) {
    let mut runtime = RuntimeState::default();
    loop {
        tokio::time::sleep(every).await;
        let mut facts = known.clone();
        match client.status(v1::StatusRequest { verbose: false }).await {
            Ok(answer) => runtime.observe(&answer, clock::clocks().mono),
            Err(error) => tracing::debug!(%error, "could not read the runtime's status"),
        }
        runtime.add_to(&mut facts);
        let (name, given) = (facts.name.clone(), given.clone());
        let read = move || facts::addresses(&name, &given);
        let found = blocking::run(JobPlace::own("addresses"), read).await.unwrap_or_default();
        if !found.is_empty() {
            facts.host_ips = found;
        }
        if facts != known {
            known = facts;
            if inputs.send(PodsInput::Node(known.clone())).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pintle_cri::Deadlines;
    use pintle_cri::fake::FakeRuntime;

    use super::*;

    #[tokio::test]
    async fn workers_receive_new_runtime_features_and_a_late_address() {
        let dir = tempfile::tempdir().expect("a folder");
        let runtime = FakeRuntime::start(&dir.path().join("c.sock")).await.expect("it starts");
        let client = Client::connect(&runtime.endpoint(), Deadlines::default()).expect("a path");
        let (inputs, mut queue) = mpsc::channel(1);
        let given = vec!["192.0.2.7".parse().expect("an address")];
        let every = Duration::from_millis(1);
        let following = follow(client, NodeFacts::default(), given.clone(), every, inputs);
        let received = async {
            for able in [false, true] {
                runtime.set_able(able);
                let Some(PodsInput::Node(facts)) = queue.recv().await else { panic!("no facts") };
                assert_eq!(facts.host_ips, given);
                assert_eq!(facts.handler("runc").user_namespaces, able);
                assert_eq!(facts.supplemental_groups_policy, able);
            }
        };
        tokio::select! {
            () = following => panic!("it ends"),
            () = received => {}
        }
    }
}
