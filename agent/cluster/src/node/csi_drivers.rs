//! Writes the CSI drivers of this node into the API: CSINode, the Node's annotation and labels.
//!
//! Input: the registered drivers, the node's own Node object. Output: requests, one driver at a
//! time. A new driver is written to the Node, then to CSINode, because the scheduler waits for
//! CSINode; a removed driver is deleted in the reverse order. Pods can use a driver before it is
//! written, also when the API server is unreachable. A recreated Node object is written again.
//! Owner: one task. Bounds: one request at a time, waits of `RETRY`.
// k8s: pkg/volume/csi/nodeinfomanager/nodeinfomanager.go InstallCSIDriver, UninstallCSIDriver

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{Api, Patch, PatchParams, PostParams};
use pintle_agent_core::storage::node_info::{self, DriverOnNode, Entry, NodeInfoError};
use pintle_agent_plugins::{Drivers, Plugins};
use pintle_api_types::jitter as pace;
use tokio::sync::watch;

use super::own::OwnNode;
use super::{csi_node, patch};

/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(60));

/// The reason for which a driver is not in the API.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("{}", crate::words(.0))]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Node(#[from] NodeInfoError),
}

/// Keeps the API up to date while drivers can change.
pub async fn follow(
    client: kube::Client,
    name: Arc<str>,
    mut own: watch::Receiver<OwnNode>,
    mut drivers: Drivers,
) {
    let mut writer = DriverWriter::new(client, name);
    let mut wait = RETRY.0;
    loop {
        let uid = own.borrow_and_update().uid().map(str::to_owned);
        let is_done = match uid {
            Some(uid) => writer.write(&uid, &wanted(&drivers.snapshot())).await,
            None => true, // the watch of the Node reports when it exists
        };
        let retry = async {
            match is_done {
                true => std::future::pending().await,
                false => tokio::time::sleep(wait).await,
            }
        };
        tokio::select! {
            changed = drivers.changed() => match changed {
                Some(_) => wait = RETRY.0,
                None => return,
            },
            changed = own.changed() => if changed.is_err() { return },
            () = retry => wait = pace::doubled(wait, RETRY.1),
        }
    }
}

fn wanted(plugins: &Plugins) -> BTreeMap<String, DriverOnNode> {
    let driver = |driver: &Arc<pintle_agent_plugins::RegisteredDriver>| {
        let facts = driver.facts.clone();
        let written = DriverOnNode {
            name: driver.name.clone(),
            node_id: facts.node_id,
            max_volumes: facts.max_volumes,
            topology: facts.topology,
        };
        (driver.name.clone(), written)
    };
    plugins.drivers.values().map(driver).collect()
}

/// The drivers that were written, and the Node object that they were written for.
struct DriverWriter {
    nodes: Api<Node>,
    csi_nodes: Api<CSINode>,
    name: Arc<str>,
    /// UID of the Node object that `written` applies to.
    uid: String,
    written: BTreeMap<String, DriverOnNode>,
    /// The last failure of each driver; a repeated one is not logged again.
    failures: BTreeMap<String, String>,
}

impl DriverWriter {
    fn new(client: kube::Client, name: Arc<str>) -> Self {
        Self {
            nodes: Api::all(client.clone()),
            csi_nodes: Api::all(client),
            name,
            uid: String::new(),
            written: BTreeMap::new(),
            failures: BTreeMap::new(),
        }
    }

    /// Writes the differences; returns whether all drivers are written as wanted.
    async fn write(&mut self, uid: &str, wanted: &BTreeMap<String, DriverOnNode>) -> bool {
        if self.uid != uid {
            uid.clone_into(&mut self.uid);
            self.written.clear();
        }
        let gone = self.written.keys().filter(|name| !wanted.contains_key(*name));
        let gone: Vec<String> = gone.cloned().collect();
        for name in gone {
            let removed = self.remove(&name).await;
            if self.note(&name, removed) {
                self.written.remove(&name);
            }
        }
        for (name, driver) in wanted {
            if self.written.get(name) != Some(driver) {
                let added = self.add(driver).await;
                if self.note(name, added) {
                    self.written.insert(name.clone(), driver.clone());
                }
            }
        }
        self.failures.retain(|name, _| wanted.contains_key(name));
        self.written == *wanted
    }

    async fn add(&self, driver: &DriverOnNode) -> Result<(), WriteError> {
        self.change_node(|node| node_info::mark(node, driver)).await?;
        csi_node::ensure(&self.csi_nodes, &self.name, &self.uid).await?;
        let mut object = self.csi_nodes.get(&self.name).await?;
        let before = object.clone();
        let entry = node_info::install(&mut object.spec.drivers, driver);
        if entry == Entry::Replaced {
            let mut without = before;
            node_info::uninstall(&mut without.spec.drivers, &driver.name);
            let without = self.replace(&without).await?;
            object.metadata.resource_version = without.metadata.resource_version;
        }
        if entry != Entry::Same {
            self.replace(&object).await?;
        }
        Ok(())
    }

    async fn remove(&self, name: &str) -> Result<(), WriteError> {
        if let Some(mut object) = self.csi_nodes.get_opt(&self.name).await?
            && node_info::uninstall(&mut object.spec.drivers, name)
        {
            self.replace(&object).await?;
        }
        self.change_node(|node| node_info::unmark(node, name)).await
    }

    async fn replace(&self, object: &CSINode) -> Result<CSINode, kube::Error> {
        self.csi_nodes.replace(&self.name, &PostParams::default(), object).await
    }

    /// Patches labels and annotations, which a node may change through its status.
    async fn change_node(
        &self,
        change: impl FnOnce(&mut Node) -> Result<bool, NodeInfoError>,
    ) -> Result<(), WriteError> {
        let before = self.nodes.get(&self.name).await?;
        let mut after = before.clone();
        if change(&mut after)?
            && let Some(patch) = patch::status(&before, &after)
        {
            let patch = Patch::Strategic(patch);
            self.nodes.patch_status(&self.name, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    /// Logs a failure once; returns whether there was none.
    fn note(&mut self, driver: &str, result: Result<(), WriteError>) -> bool {
        match result {
            Ok(()) => {
                self.failures.remove(driver);
                true
            }
            Err(error) => {
                let words = error.to_string();
                if self.failures.insert(driver.to_owned(), words.clone()) != Some(words) {
                    tracing::warn!(driver, %error, "CSI driver is not in the API; trying again");
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pintle_api_types::kind::Kind;
    use pintle_memory_api::Change;
    use pintle_memory_http::SharedServer;
    use serde_json::{Value, json};

    use super::*;

    const NODE: &str = "/api/v1/nodes/n";
    const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/n";

    /// An API server with a Node, and the writer of its drivers.
    struct DriverTestNode {
        server: SharedServer,
        writer: DriverWriter,
    }

    impl DriverTestNode {
        fn new() -> Self {
            let server = SharedServer::new(1);
            server.put(NODE, json!({}));
            let writer = DriverWriter::new(server.client(), "n".into());
            Self { server, writer }
        }

        async fn write(&mut self, uid: &str, drivers: &[DriverOnNode]) -> bool {
            let wanted = drivers.iter().map(|driver| (driver.name.clone(), driver.clone()));
            self.writer.write(uid, &wanted.collect()).await
        }

        fn node(&self) -> Value {
            self.server.get(NODE).expect("a Node")
        }

        /// Names of the drivers in each CSINode that was written.
        fn writes(&self) -> Vec<Vec<String>> {
            let kind = Kind::interned("storage.k8s.io", "v1", "csinodes", "CSINode", false);
            let name = |driver: &Value| driver["name"].as_str().unwrap_or_default().to_owned();
            let names = |object: &Value| {
                object["spec"]["drivers"].as_array().into_iter().flatten().map(name).collect()
            };
            self.server.act(|server, _| {
                let events = server.events_since(kind, 0).expect("all are kept");
                let written = events.iter().filter(|event| event.change != Change::Deleted);
                written.map(|event| names(&event.object)).collect()
            })
        }
    }

    fn driver(name: &str, node_id: &str, zone: &str) -> DriverOnNode {
        DriverOnNode {
            name: name.to_owned(),
            node_id: node_id.to_owned(),
            max_volumes: Some(5),
            topology: [("zone".to_owned(), zone.to_owned())].into(),
        }
    }

    #[tokio::test]
    async fn drivers_are_in_node_and_csi_node_only_while_they_are_registered() {
        let mut world = DriverTestNode::new();
        let both = [driver("a", "1", "x"), driver("b", "2", "x")];
        assert!(world.write("u", &both).await);
        let node = &world.node()["metadata"];
        assert_eq!(node["annotations"][node_info::NODE_IDS], r#"{"a":"1","b":"2"}"#);
        assert_eq!(node["labels"]["zone"], "x");
        let spec = &world.server.get(CSI_NODE).expect("a CSINode")["spec"];
        assert_eq!(spec["drivers"][1]["allocatable"]["count"], 5);
        assert_eq!(spec["drivers"][1]["topologyKeys"], json!(["zone"]));
        assert!(world.write("u", &both[1..]).await);
        let written: [&[&str]; 4] = [&[], &["a"], &["a", "b"], &["b"]];
        assert_eq!(world.writes(), written);
        let annotations = &world.node()["metadata"]["annotations"];
        assert_eq!(annotations[node_info::NODE_IDS], r#"{"b":"2"}"#);
    }

    #[tokio::test]
    async fn driver_with_a_topology_collision_is_not_in_csi_node_and_blocks_no_other_driver() {
        let mut world = DriverTestNode::new();
        let both = [driver("a", "1", "x"), driver("b", "2", "y")];
        assert!(!world.write("u", &both).await);
        let words = world.writer.failures["b"].clone();
        assert!(words.starts_with("detected topology value collision"), "{words}");
        assert_eq!(world.writes().last(), Some(&vec!["a".to_owned()]));
        world.server.put(NODE, json!({"metadata": {"labels": {"zone": "y"}}}));
        assert!(world.write("u", &both[1..]).await && world.writer.failures.is_empty());
        assert_eq!(world.writes().last(), Some(&vec!["b".to_owned()]));
    }

    #[tokio::test]
    async fn csi_node_entry_with_a_changed_immutable_field_is_removed_first() {
        let mut world = DriverTestNode::new();
        assert!(world.write("u", &[driver("a", "1", "x")]).await);
        let limit = DriverOnNode { max_volumes: Some(6), ..driver("a", "1", "x") };
        assert!(world.write("u", std::slice::from_ref(&limit)).await);
        assert_eq!(world.writes().len(), 3, "a limit may change");
        assert!(world.write("u", &[driver("a", "other", "x")]).await);
        assert_eq!(world.writes()[3..], [Vec::new(), vec!["a".to_owned()]]);
    }

    #[tokio::test]
    async fn node_that_was_created_again_is_written_again() {
        let mut world = DriverTestNode::new();
        let drivers = [driver("a", "1", "x")];
        assert!(world.write("u", &drivers).await);
        world.server.remove(NODE);
        world.server.put(NODE, json!({}));
        assert!(world.write("u", &drivers).await);
        assert_eq!(world.node()["metadata"]["labels"], Value::Null, "nothing has changed");
        // The CSINode of the earlier node is replaced by `csi_node::ensure`.
        world.server.remove(CSI_NODE);
        assert!(world.write("v", &drivers).await);
        assert_eq!(world.node()["metadata"]["labels"]["zone"], "x");
        assert_eq!(world.writes().last(), Some(&vec!["a".to_owned()]));
    }
}
