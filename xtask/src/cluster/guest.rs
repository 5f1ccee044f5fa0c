//! Nodes of a cluster that are guests: the control plane as it is, wires to machines with kernels
//! of their own.
//!
//! Input: names of nodes. Output: an API server with its store, keys for the nodes, and for each
//! the wire that its guest is started with: a tap device at the bridge of the control plane's
//! machine. For pods that name their node and their images an API server is enough; nodes of a
//! whole cluster have the scheduler, the controllers, the registry and the DNS as well.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::layout::{CONTROL, DNS_SERVICE, address, number, pod_range};
use super::{Cluster, config, network};
use crate::runtime::{Runtime, Version};
use crate::uml::Wire;

/// Memory that a guest promises to no pod: the overlay of its root is memory too.
const GUEST_RESERVED: &str = "3Gi";

impl Cluster {
    /// Starts an API server with its store, and makes the keys of all nodes.
    pub fn up_for_guests(&self) -> Result<()> {
        self.up_control("API server of", &self.nodes, || {
            self.start_api_server()?;
            // Its controller does not run, and no pod is admitted without it.
            self.kubectl(&["create", "serviceaccount", "default"]).map(drop)
        })
    }

    /// Starts the whole control plane, and makes the keys of all nodes.
    pub fn up_control_plane(&self) -> Result<()> {
        self.up_control("control plane of", &self.nodes, || self.start_control())
    }

    /// What the configuration of a guest's agent also has in a whole cluster.
    pub fn whole_guest_settings(&self) -> Value {
        json!({
            "clusterDNS": [DNS_SERVICE],
            "systemReserved": {"memory": GUEST_RESERVED},
        })
    }

    /// A shell script that gives a guest its names, its name server, routes to the pods of other
    /// nodes, and kube-proxy.
    pub fn guest_network(&self, node: &str) -> Result<String> {
        let runtime = Runtime::ensure(Version::usual()?)?;
        let mut script = format!(
            "hostname {node}\necho 127.0.0.1 localhost {node} > /etc/hosts\n\
             echo {} {node} >> /etc/hosts\necho nameserver {CONTROL} > /etc/resolv.conf\n",
            address(node)
        );
        for other in self.nodes.iter().filter(|other| *other != node) {
            let (range, via) = (pod_range(other), address(other));
            script += &format!("ip route replace {range} via {via}\n");
        }
        let program = self.components()?.join("kube-proxy");
        let arguments = config::proxy_arguments(&self.layout.kubeconfig("proxy"), node).join(" ");
        let (path, program) = (runtime.path(), program.display());
        script += &format!(
            "systemd-run --quiet --unit=kube-proxy --setenv=PATH={path} \
             --property=Restart=always {program} {arguments}\n"
        );
        Ok(script)
    }

    /// Folders of the host that a guest of a whole cluster sees: keys, and kube-proxy's program.
    pub fn guest_shares(&self) -> Result<Vec<PathBuf>> {
        Ok(vec![self.layout.pki(""), self.components()?])
    }

    /// The wire to a node that is a guest, with a route to its pods; the guest makes the device.
    pub fn wire_guest(&self, node: &str) -> Result<Wire> {
        self.check_node(node)?;
        let pid = self.holder_pid(network::CONTROL_HOLDER)?;
        let (guest, pods) = (address(node), pod_range(node));
        // The bridge knows the guest's address only once the guest is there.
        let route = format!("route replace {pods} via {guest} dev br0 onlink\n");
        network::ip(&self.processes, network::CONTROL_HOLDER, &route)?;
        Ok(Wire {
            network_of: Some(pid),
            device: format!("tap{}", number(node)),
            bridge: Some("br0".to_owned()),
            guest,
            host: CONTROL,
        })
    }

    /// What the configuration of a guest's agent has of this cluster.
    pub fn guest_settings(&self) -> Value {
        json!({
            "clusterDomain": "cluster.local",
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": self.layout.pki("ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
        })
    }

    /// Flags of a guest's agent.
    pub fn guest_flags(&self, node: &str) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", self.layout.kubeconfig(node).display()),
            format!("--hostname-override={node}"),
            format!("--node-ip={}", address(node)),
        ]
    }

    /// Waits until a node that is a guest is ready.
    pub fn wait_guest_ready(&self, node: &str) -> Result<()> {
        let wait = format!("--timeout={}s", super::NODE_WAIT.as_secs());
        // The agent registers the node itself.
        let created = ["wait", "--for=create", &wait, &format!("node/{node}")];
        self.kubectl(&created).with_context(|| format!("{node} does not register"))?;
        let ready = ["wait", "--for=condition=Ready", &wait, &format!("node/{node}")];
        self.kubectl(&ready).map(drop)
    }
}
