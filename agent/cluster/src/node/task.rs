//! The node's tasks: polls of runtime, images and addresses, the reporter, the lease.
//!
//! Each is a task of its own on the main thread, so that a hanging call does not delay the others.
//! They share one cell of facts and a notification of its changes. Bounds: one call per poll at a
//! time.

use std::cell::RefCell;
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use pintle_agent_config::Config;
use pintle_agent_core::request::dns;
use pintle_agent_core::shutdown::{self, ShutdownRecord};
use pintle_agent_core::storage::InUse;
use pintle_agent_core::types::NodeFacts;
use pintle_agent_core::worker::PodsInput;
use pintle_agent_host::node::{facts, host};
use pintle_agent_metrics::Metrics;
use pintle_cri::{Client, v1};
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use pintle_daemon::clock;
use pintle_daemon::tasks;
use tokio::sync::{Notify, mpsc, watch};

use super::capacity::Allocatable;
use super::conditions::NodeEvent;
use super::conditions::{NodeEvents, Pressure};
use super::lease::LeaseKeeper;
use super::own::OwnNode;
use super::pleg::ListsSeen;
use super::report::{Reporter, WrittenInUse};
use super::runtime::RuntimeFacts;
use super::runtime_state::{self, RuntimeState};
use super::settings::NodeSettings;
use super::status::{self, NodeImage, StatusFacts};
use super::{addresses, csi_node};
use crate::NodeCluster;

/// Period of the runtime's Status calls.
const RUNTIME_EVERY: Duration = Duration::from_secs(5);
/// Period of the runtime's Status calls while the node starts.
const RUNTIME_SOON: Duration = Duration::from_millis(250);
/// Longest time for which the node counts as starting.
const STARTING_MAX: Duration = Duration::from_secs(120);
/// Period of the checks of the node's resolv.conf.
// k8s: pkg/kubelet/kubelet.go Run
const RESOLV_CONF_EVERY: Duration = Duration::from_secs(30);
/// Period at which images are listed and the versions of the runtime and the host are read.
const IMAGES_EVERY: Duration = Duration::from_secs(30);

const CGROUP_V1: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed \
                         in a future release. Please migrate to cgroup v2. More information at \
                         https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";

/// Dependencies of the node's tasks.
pub struct NodeTaskParts {
    /// The configuration.
    pub config: Arc<Config>,
    /// The API server.
    pub cluster: NodeCluster,
    /// The container runtime.
    pub runtime: Client,
    /// Receives changed facts.
    pub inputs: mpsc::Sender<PodsInput>,
    /// Facts that the workers started with.
    pub worker_facts: NodeFacts,
    /// When the runtime last listed its pods.
    pub lists: ListsSeen,
    /// The node's pressure conditions.
    pub pressure: watch::Receiver<Pressure>,
    /// Attached volumes that are in use; `None` until they are known.
    pub volumes_in_use: watch::Receiver<Option<InUse>>,
    /// Receives the report of volumes in use that was written.
    pub in_use_written: watch::Sender<Option<WrittenInUse>>,
    /// Emits events.
    pub events: NodeEvents,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Progress of a shutdown of the node.
    pub shutdown: watch::Receiver<Option<ShutdownRecord>>,
}

/// The facts and the notification of their changes.
#[derive(Clone)]
struct TaskFacts {
    facts: Rc<RefCell<StatusFacts>>,
    changed: Rc<Notify>,
    lists: ListsSeen,
    /// Notifies the workers' facts of a changed runtime state.
    runtime: watch::Sender<()>,
}

/// Starts the tasks.
pub fn start(parts: NodeTaskParts, runtime: &RuntimeFacts) {
    let node = parts.cluster.node.clone();
    let keeper = LeaseKeeper::new(
        parts.cluster.heartbeat.clone(),
        Arc::clone(&parts.cluster.node_name),
        parts.config.kubelet.node_lease_duration_seconds,
        node.clone(),
    );
    tasks::singleton("lease", keeper.run());
    let facts = StatusFacts {
        settings: NodeSettings::of(&parts.config),
        machine: host::read(&parts.config.flags.root_dir),
        runtime_version: runtime_state::name_and_version(&runtime.name, &runtime.version),
        storage_error: Some(csi_node::NOT_YET.to_owned()),
        ..StatusFacts::default()
    };
    let shared = TaskFacts {
        facts: Rc::new(RefCell::new(facts)),
        changed: Rc::default(),
        lists: parts.lists.clone(),
        runtime: watch::Sender::default(),
    };
    tasks::singleton("node status", run(parts, shared, node));
}

/// Events that are emitted once at the start, as the kubelet's.
// k8s: pkg/kubelet/kubelet.go BirthCry, cgroupVersionCheck
fn start_events() -> Vec<NodeEvent> {
    let event = |warning, reason, message: &str| {
        let message = message.to_owned();
        NodeEvent { warning, reason, message }
    };
    let mut events = vec![event(false, "Starting", "Starting kubelet.")];
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        events.push(event(true, "CgroupV1", CGROUP_V1));
    }
    events
}

/// Polls everything once, so that the first status is correct; then starts the polls and reports.
async fn run(parts: NodeTaskParts, shared: TaskFacts, own: watch::Receiver<OwnNode>) {
    start_events().into_iter().for_each(|event| (parts.events)(event));
    let client = &parts.runtime;
    tokio::join!(
        poll_runtime(client, &shared),
        poll_images(client, &shared),
        poll_addresses(&shared)
    );
    let (polled, client) = (shared.clone(), parts.runtime.clone());
    tasks::singleton("runtime status", async move { follow_runtime(&client, &polled).await });
    let (polled, client) = (shared.clone(), parts.runtime.clone());
    tasks::singleton("image list", async move {
        loop {
            tokio::time::sleep(IMAGES_EVERY).await;
            poll_images(&client, &polled).await;
            poll_versions(&client, &polled).await;
        }
    });
    tasks::singleton("node shutdown state", follow_shutdown(parts.shutdown, shared.clone()));
    let checks = check_resolv_conf(Arc::clone(&parts.config), Rc::clone(&parts.events));
    tasks::singleton("resolv.conf", checks);
    let polled = shared.clone();
    tasks::singleton("node addresses", async move {
        loop {
            let every = polled.facts.borrow().settings.update_every;
            tokio::time::sleep(every).await;
            poll_addresses(&polled).await;
        }
    });
    tasks::singleton("node pressure", follow_pressure(parts.pressure, shared.clone()));
    tasks::singleton("volumes in use", follow_in_use(parts.volumes_in_use, shared.clone()));
    let workers = follow_facts(parts.worker_facts, shared.clone(), own.clone(), parts.inputs);
    tasks::singleton("node facts", workers);
    let TaskFacts { facts, changed, .. } = shared;
    let reporter = Reporter::new(parts.cluster, facts, changed, own, parts.events);
    reporter.timed_in(parts.metrics).with_in_use_written(parts.in_use_written).run().await;
}

/// Applies pressure changes to the facts until the pressure monitor ends.
async fn follow_pressure(mut pressure: watch::Receiver<Pressure>, shared: TaskFacts) {
    loop {
        let now = *pressure.borrow_and_update();
        if std::mem::replace(&mut shared.facts.borrow_mut().pressure, now) != now {
            shared.changed.notify_one();
        }
        if pressure.changed().await.is_err() {
            return;
        }
    }
}

/// Applies changes of the volumes in use to the facts until their owner ends.
async fn follow_in_use(mut in_use: watch::Receiver<Option<InUse>>, shared: TaskFacts) {
    loop {
        let now = in_use.borrow_and_update().clone();
        let known = std::mem::replace(&mut shared.facts.borrow_mut().volumes_in_use, now.clone());
        if known != now {
            shared.changed.notify_one();
        }
        if in_use.changed().await.is_err() {
            return;
        }
    }
}

/// The node is not ready while it is being shut down.
// k8s: pkg/kubelet/nodeshutdown/nodeshutdown_manager_linux.go ShutdownStatus
async fn follow_shutdown(mut progress: watch::Receiver<Option<ShutdownRecord>>, shared: TaskFacts) {
    loop {
        let goes_on = progress.borrow_and_update().as_ref().is_some_and(|record| !record.cancelled);
        let error = goes_on.then(|| shutdown::NOT_READY.to_owned());
        let known = std::mem::replace(&mut shared.facts.borrow_mut().shutdown_error, error.clone());
        if known != error {
            shared.changed.notify_one();
        }
        if progress.changed().await.is_err() {
            return;
        }
    }
}

async fn follow_runtime(client: &Client, shared: &TaskFacts) {
    let begun = tokio::time::Instant::now();
    loop {
        let ready = shared.facts.borrow().runtime.errors(clock::clocks().mono).is_empty();
        let soon = !ready && begun.elapsed() < STARTING_MAX;
        tokio::time::sleep(if soon { RUNTIME_SOON } else { RUNTIME_EVERY }).await;
        poll_runtime(client, shared).await;
    }
}

async fn poll_runtime(client: &Client, shared: &TaskFacts) {
    let answer = client.status(v1::StatusRequest { verbose: false }).await;
    let now = clock::clocks().mono;
    let mut facts = shared.facts.borrow_mut();
    let seen = |runtime: &RuntimeState| {
        (runtime.errors(now), runtime.handlers.clone(), runtime.features.clone())
    };
    let before = seen(&facts.runtime);
    match answer {
        Ok(answer) => facts.runtime.observe(&answer, now),
        Err(error) => tracing::debug!(%error, "could not read the runtime's status"),
    }
    facts.runtime.lists = shared.lists.error();
    let after = seen(&facts.runtime);
    if before != after {
        if before.0 != after.0 {
            say_runtime(&after.0);
        }
        drop(facts);
        shared.changed.notify_one();
        shared.runtime.send_replace(());
    }
}

fn say_runtime(errors: &[String]) {
    match errors {
        [] => tracing::info!("the container runtime is ready"),
        errors => tracing::warn!(errors = errors.join(", "), "the container runtime is not ready"),
    }
}

async fn poll_images(client: &Client, shared: &TaskFacts) {
    let images = match client.list_images(v1::ListImagesRequest { filter: None }).await {
        Ok(answer) => answer.images,
        Err(error) => return tracing::debug!(%error, "images"),
    };
    let of = |image: v1::Image| NodeImage {
        bytes: i64::try_from(image.size).unwrap_or(i64::MAX),
        names: image.repo_digests.into_iter().chain(image.repo_tags).collect(),
        id: image.id,
    };
    let mut images: Vec<NodeImage> = images.into_iter().map(of).collect();
    status::sort_images(&mut images);
    let limit = shared.facts.borrow().settings.images_max.unwrap_or(usize::MAX);
    images.truncate(limit);
    shared.facts.borrow_mut().images = images;
}

/// Reads the versions that an upgrade changes under a running agent.
// k8s: pkg/kubelet/nodestatus/setters.go VersionInfo
async fn poll_versions(client: &Client, shared: &TaskFacts) {
    let asked = client.version(v1::VersionRequest::default()).await;
    let os = blocking::run(JobPlace::own("os-release"), host::os_image).await;
    let mut facts = shared.facts.borrow_mut();
    match asked {
        Ok(v1::VersionResponse { runtime_name: name, runtime_version: version, .. }) => {
            facts.runtime_version = runtime_state::name_and_version(&name, &version);
        }
        Err(error) => tracing::debug!(%error, "version of the runtime"),
    }
    if let Ok(os) = os {
        facts.machine.os_image = os;
    }
}

/// Emits an event when pods cannot get the node's search line unchanged.
// k8s: pkg/kubelet/network/dns/dns.go CheckLimitsForResolvConf
async fn check_resolv_conf(config: Arc<Config>, events: NodeEvents) {
    let (path, domain) = (&config.kubelet.resolv_conf, &config.kubelet.cluster_domain);
    while !path.is_empty() {
        let problem =
            match pintle_daemon::files::try_read(Path::new(path), dns::RESOLV_CONF_BYTES_MAX) {
                Ok(text) => dns::search_limits(path, &text, domain),
                Err(error) => Some(format!("open {path}: {error}")),
            };
        if let Some(message) = problem {
            events(NodeEvent { warning: true, reason: "CheckLimitsForResolvConf", message });
        }
        tokio::time::sleep(RESOLV_CONF_EVERY).await;
    }
}

async fn poll_addresses(shared: &TaskFacts) {
    let settings = shared.facts.borrow().settings.clone();
    let look = move || facts::addresses_of_host(&settings);
    let Ok(host) = blocking::run(JobPlace::own("addresses"), look).await else { return };
    let mut facts = shared.facts.borrow_mut();
    if facts.host != host {
        if let Err(error) = addresses::decide(&facts.settings, &host, &[]) {
            tracing::warn!("addresses of the node: {error}");
        }
        facts.host = host;
        drop(facts);
        shared.changed.notify_one();
    }
}

/// Sends the workers changes of the node's addresses, allocatable resources, network and runtime
/// features.
async fn follow_facts(
    mut known: NodeFacts,
    shared: TaskFacts,
    mut own: watch::Receiver<OwnNode>,
    inputs: mpsc::Sender<PodsInput>,
) {
    let mut runtime = shared.runtime.subscribe();
    loop {
        runtime.mark_unchanged();
        let node = own.borrow_and_update().object().cloned();
        let mut facts = match node {
            Some(node) => worker_facts(&known, &shared.facts.borrow(), &node),
            None => known.clone(),
        };
        shared.facts.borrow().runtime.add_to(&mut facts);
        facts.network_error = shared.facts.borrow().runtime.network_error().map(str::to_owned);
        if facts != known {
            known = facts;
            if inputs.send(PodsInput::Node(known.clone())).await.is_err() {
                return;
            }
        }
        tokio::select! {
            changed = own.changed() => if changed.is_err() { return },
            changed = runtime.changed() => if changed.is_err() { return },
        }
    }
}

/// The workers' facts, updated from the Node object.
// k8s: pkg/util/node/node.go GetNodeHostIPs
fn worker_facts(known: &NodeFacts, facts: &StatusFacts, node: &Node) -> NodeFacts {
    let mut new = known.clone();
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_deref());
    let of = |kind: &'static str| {
        let addresses = addresses.unwrap_or_default().iter();
        addresses.filter(move |a| a.type_ == kind).filter_map(|a| a.address.parse::<IpAddr>().ok())
    };
    let mut ips: Vec<IpAddr> = Vec::new();
    for ip in of("InternalIP").chain(of("ExternalIP")) {
        // One address of each family.
        if !ips.iter().any(|known| known.is_ipv4() == ip.is_ipv4()) {
            ips.push(ip);
        }
    }
    if !ips.is_empty() {
        new.host_ips = ips;
    }
    let left = Allocatable::of(&facts.settings.capacity, &facts.machine);
    new.cpu_allocatable_millis = left.cpu_millis;
    new.memory_allocatable_bytes = left.memory_bytes;
    new.storage_allocatable_bytes = left.storage_bytes;
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn workers_hear_of_a_replaced_runtime_and_of_addresses_that_come_late() {
        let shared = TaskFacts {
            facts: Rc::default(),
            changed: Rc::default(),
            lists: ListsSeen::default(),
            runtime: watch::Sender::default(),
        };
        let (nodes, own) = watch::channel(OwnNode::default());
        let (inputs, mut queue) = mpsc::channel(4);
        let following = follow_facts(NodeFacts::default(), shared.clone(), own, inputs);
        let heard = async {
            let Some(PodsInput::Node(facts)) = queue.recv().await else { panic!("no facts") };
            assert_eq!(facts.network_error.as_deref(), Some("network state unknown"));
            let condition = |kind: &str| v1::RuntimeCondition {
                r#type: kind.to_owned(),
                status: true,
                ..v1::RuntimeCondition::default()
            };
            let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
            let features =
                v1::RuntimeHandlerFeatures { user_namespaces: true, ..Default::default() };
            let answer = v1::StatusResponse {
                status: Some(v1::RuntimeStatus { conditions }),
                runtime_handlers: vec![v1::RuntimeHandler {
                    name: "runc".to_owned(),
                    features: Some(features),
                }],
                ..v1::StatusResponse::default()
            };
            shared.facts.borrow_mut().runtime.observe(&answer, clock::clocks().mono);
            shared.runtime.send_replace(());
            let Some(PodsInput::Node(facts)) = queue.recv().await else { panic!("no facts") };
            assert_eq!(facts.network_error, None);
            assert!(facts.handler("runc").user_namespaces && !facts.handler("").user_namespaces);
            let address = serde_json::json!({"type": "InternalIP", "address": "192.0.2.7"});
            let node =
                serde_json::json!({"metadata": {"name": "n"}, "status": {"addresses": [address]}});
            let node: Node = serde_json::from_value(node).expect("a node");
            nodes.send_replace(OwnNode::Present { node: Arc::new(node), lists: 1 });
            let Some(PodsInput::Node(facts)) = queue.recv().await else { panic!("no facts") };
            assert_eq!(facts.host_ips, ["192.0.2.7".parse::<IpAddr>().expect("an address")]);
            assert!(facts.handler("runc").user_namespaces);
        };
        tokio::select! {
            () = following => panic!("it ends"),
            () = heard => {}
        }
    }
}
