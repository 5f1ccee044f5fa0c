//! The connection to the API server and everything that runs because of it.
//!
//! The connection is made before anything
//! else starts, so that a kubeconfig that cannot be used ends the agent with a sentence.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use pintle_agent_cluster::NodeCluster;
use pintle_agent_cluster::identity::bootstrap::{self, BootstrapTarget};
use pintle_agent_cluster::identity::certificate::Validity;
use pintle_agent_cluster::identity::request::CertificateNames;
use pintle_agent_cluster::identity::rotate;
use pintle_agent_cluster::identity::rotate::Rotation;
use pintle_agent_cluster::identity::store::CertificateStore;
use pintle_agent_cluster::node::own;
use pintle_agent_cluster::node::own::OwnNode;
use pintle_agent_cluster::node::task;
use pintle_agent_cluster::status::writer;
use pintle_agent_config::{Config, user_agent};
use pintle_agent_core::admit;
use pintle_agent_core::api_health::ApiHealth;
use pintle_agent_core::node::conditions::NodeEvents;
use pintle_agent_core::request::runtime::RuntimeFacts;
use pintle_agent_core::types::NodeFacts;
use pintle_agent_core::worker::PodsInput;
use pintle_agent_metrics::{CertificateOf, Metrics};
use pintle_agent_runtime::storage::Volumes;
use pintle_api::events;
use pintle_api::{Access, ClientOptions, Observer, Rate};
use pintle_daemon::tasks;
use tokio::sync::{mpsc, watch};

use super::StageInputs;

/// Longest read of the Node object for a pod that waits for it.
const NODE_READ_MAX: Duration = Duration::from_secs(10);

/// The clients of `--kubeconfig`; `None` in standalone mode. With a bootstrap kubeconfig this may
/// wait for the first certificate.
pub(super) async fn connect(
    config: &Config,
    metrics: &Arc<Metrics>,
) -> Result<Option<NodeCluster>> {
    let Some(path) = &config.flags.kubeconfig else { return Ok(None) };
    let store = CertificateStore::open(&config.flags.cert_dir, "kubelet-client");
    let (access, first) = identity(config, path, &store).await?;
    warn_of_expiry(&access);
    let observer: Option<Arc<dyn Observer>> = Some(Arc::clone(metrics) as _);
    let kubelet = &config.kubelet;
    let rate = Some(rate(kubelet.kube_api_qps, kubelet.kube_api_burst)?);
    let general =
        ClientOptions { user_agent: user_agent(), rate, timeout: None, observer: observer.clone() };
    let general = access.clients(general);
    let (client, objects) = (general.urgent(), general.bulk());
    let writes = general.writes(writer::REQUEST_MAX);
    // k8s: cmd/kubelet/app/server.go run: a heartbeat must not wait longer than a lease lives
    let lease = u64::from(kubelet.node_lease_duration_seconds.max(1).unsigned_abs());
    let lease = Duration::from_secs(lease);
    let timeout = Some(kubelet.node_status_update_frequency.to_std().min(lease));
    let heartbeat = access.client(ClientOptions {
        user_agent: user_agent(),
        rate: None,
        timeout,
        observer: observer.clone(),
    });
    if kubelet.rotate_certificates {
        let wanted =
            CertificateNames { node: config.node_name.clone(), ..CertificateNames::default() };
        let counts = metrics.certificate(CertificateOf::Client);
        let rotation = Rotation::of_client(store, access.clone(), client.clone(), first, counts);
        tasks::singleton("client certificate", async move {
            // The sender stays until the end: the names never change.
            let (_names, wanted) = watch::channel(Some(wanted));
            rotation.run(wanted).await;
        });
    }
    let node_name: Arc<str> = config.node_name.as_str().into();
    let node = own::start(client.clone(), Arc::clone(&node_name));
    // k8s: cmd/kubelet/app/server.go eventClientConfig: a client of their own, limited by
    // eventRecordQPS alone, which the sink sees to. With the other one events took three of every
    // seven requests that a started pod may make: 100 pods waited 12 s for that instead of 6.
    let events = ClientOptions { user_agent: user_agent(), rate: None, timeout: None, observer };
    let events = start_events(config, access.client(events));
    let api_health = ApiHealth::default();
    Ok(Some(NodeCluster {
        client,
        objects,
        writes,
        heartbeat,
        node_name,
        node,
        access,
        events,
        api_health,
    }))
}

/// The limit of all requests but heartbeats and events.
// k8s: staging/src/k8s.io/client-go/kubernetes/clientset.go NewForConfigAndClient
fn rate(per_second: i32, burst: i32) -> Result<Rate> {
    anyhow::ensure!(
        per_second <= 0 || burst > 0,
        "kubeAPIBurst: burst is required to be greater than 0 when RateLimiter is not set and QPS is \
         set to greater than 0"
    );
    Ok(Rate::of_settings(per_second, burst))
}

/// The kubelet's name as the source, because users and tools filter by it.
fn start_events(config: &Config, client: kube::Client) -> events::Recorder {
    let rate = Rate::of_settings(config.kubelet.event_record_qps, config.kubelet.event_burst);
    let name = &config.node_name;
    let (recorder, sink) = events::recorder(client, "kubelet", name, rate);
    tasks::singleton("event sink", sink.run());
    recorder
}

/// Events about the node: by name, because its object may not be there yet. The name is the uid,
/// too, because `kubectl describe node` selects events by it.
// k8s: pkg/kubelet/kubelet.go NewMainKubelet nodeRef
// k8s: staging/src/k8s.io/kubectl/pkg/describe/describe.go NodeDescriber.Describe
fn about_node(name: &str) -> ObjectReference {
    let name = Some(name.to_owned());
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        uid: name.clone(),
        name,
        ..ObjectReference::default()
    }
}

/// The node's identity. With rotation the second client requests the first certificate while there
/// is none; without, this waits for it.
// k8s: cmd/kubelet/app/server.go buildKubeletClientConfig
async fn identity(
    config: &Config,
    path: &Path,
    store: &CertificateStore,
) -> Result<(Access, Option<kube::Client>)> {
    let rotates = config.kubelet.rotate_certificates;
    let first = |access: &Access| {
        access.client(ClientOptions { user_agent: user_agent(), ..Default::default() })
    };
    let now = jiff::Timestamp::now().as_second();
    let bootstrap = config.flags.bootstrap_kubeconfig.as_deref();
    let bootstrap = bootstrap.filter(|_| !bootstrap::is_valid(path, now));
    if let Some(bootstrap) = bootstrap {
        let access = Access::read(bootstrap).context("--bootstrap-kubeconfig")?;
        if rotates {
            bootstrap::write_kubeconfig(&access, path, &store.current())?;
            return Ok((access.with_certificate(store.current()), Some(first(&access))));
        }
        let (cert_dir, node) = (config.flags.cert_dir.as_path(), config.node_name.as_str());
        let of = BootstrapTarget { kubeconfig: path, store, cert_dir, node };
        bootstrap::request(&access, first(&access), of).await?;
    }
    let mut access = Access::read(path).context("--kubeconfig")?;
    if !rotates {
        return Ok((access, None));
    }
    if access.certificate_pem().is_none() {
        // A token only serves to request a certificate.
        return Ok((access.with_certificate(store.current()), Some(first(&access))));
    }
    bootstrap::prefer_stored(&mut access, store, now);
    Ok((access, None))
}

/// Events about the node are logged and, in a cluster, sent to the API server.
pub(super) fn node_events(cluster: Option<&NodeCluster>) -> NodeEvents {
    let about = cluster.map(|c| (c.events.clone(), about_node(&c.node_name)));
    Rc::new(move |event| {
        let kind =
            if event.warning { events::EventKind::Warning } else { events::EventKind::Normal };
        tracing::info!(reason = event.reason, "{}", event.message);
        if let Some((recorder, about)) = &about {
            recorder.event(about.clone(), kind, event.reason, &event.message);
        }
    })
}

/// The facts about the node before its object is known.
pub(super) struct NodeKnown {
    /// The workers' initial facts.
    pub(super) facts: NodeFacts,
    /// The node's offer to pods.
    pub(super) offered: Arc<admit::AdmissionNode>,
    /// Volumes of drivers, for `volumesInUse` of the Node's status.
    pub(super) volumes: Volumes,
}

/// Starts the tasks of the cluster. Returns the channel for reads of the Node object.
pub(super) fn start(
    parts: &StageInputs,
    cluster: &NodeCluster,
    runtime: &RuntimeFacts,
    known: NodeKnown,
) -> mpsc::Sender<u64> {
    let NodeKnown { facts, offered, volumes } = known;
    start_serving(parts, cluster);
    let node = task::NodeTaskParts {
        config: Arc::clone(&parts.config),
        cluster: cluster.clone(),
        runtime: parts.runtime.clone(),
        pressure: parts.pressure.subscribe(),
        volumes_in_use: volumes.in_use(),
        in_use_written: volumes.in_use_written(),
        inputs: parts.inputs.clone(),
        worker_facts: facts,
        lists: parts.lists.clone(),
        metrics: Arc::clone(&parts.metrics),
        events: node_events(Some(cluster)),
        shutdown: parts.shutdown.subscribe(),
    };
    task::start(node, runtime);
    // The workers have one question at a time.
    let (asks, asked) = mpsc::channel(1);
    let (client, name) = (cluster.client.clone(), Arc::clone(&cluster.node_name));
    let own = cluster.node.clone();
    let offers = offer(client, name, own, offered, asked, parts.inputs.clone());
    tasks::singleton("admission facts", offers);
    asks
}

/// Sends the Node object's labels, taints and allocatable amounts to admission whenever they
/// change, and the current object upon each request.
async fn offer(
    client: kube::Client,
    name: Arc<str>,
    mut own: watch::Receiver<OwnNode>,
    mut offered: Arc<admit::AdmissionNode>,
    mut asked: mpsc::Receiver<u64>,
    inputs: mpsc::Sender<PodsInput>,
) {
    let nodes = kube::Api::<Node>::all(client);
    // That there is no object yet is an answer, too: pods wait for the first.
    let mut told = false;
    loop {
        let input = tokio::select! {
            changed = own.changed() => {
                if changed.is_err() {
                    return;
                }
                let object = own.borrow_and_update().object().cloned();
                let now = object.map(|object| offered.with_object(&object));
                if std::mem::replace(&mut told, true) && now.as_ref().is_none_or(|n| *n == *offered)
                {
                    continue;
                }
                offered = now.map_or(offered, Arc::new);
                PodsInput::Admission(Arc::clone(&offered))
            }
            Some(ticket) = asked.recv() => {
                let read = tokio::time::timeout(NODE_READ_MAX, nodes.get(&name)).await;
                let object = read.ok().and_then(Result::ok);
                let node = object.map(|object| Arc::new(offered.with_object(&object)));
                offered = node.clone().unwrap_or(offered);
                PodsInput::NodeFetched { ticket, node }
            }
        };
        if inputs.send(input).await.is_err() {
            return;
        }
    }
}

/// Warns of an expired certificate, because a server only answers that the client is unknown.
fn warn_of_expiry(access: &Access) {
    let Some(validity) = access.certificate_pem().and_then(|pem| Validity::of_pem(&pem)) else {
        return;
    };
    let now = jiff::Timestamp::now().as_second();
    let at = |second| jiff::Timestamp::from_second(second).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let path = access.path.display();
    if now >= validity.not_after {
        tracing::error!(
            "kubeconfig {path}: the client certificate expired at {}; put a new one in its place, \
             or give --bootstrap-kubeconfig",
            at(validity.not_after)
        );
    } else if now < validity.not_before {
        tracing::error!(
            "kubeconfig {path}: the client certificate holds from {} only; is the clock right?",
            at(validity.not_before)
        );
    }
}

/// Keeps the serving certificate that the cluster signs, with `serverTLSBootstrap`.
fn start_serving(parts: &StageInputs, cluster: &NodeCluster) {
    let kubelet = &parts.config.kubelet;
    let given = !kubelet.tls_cert_file.is_empty() || !kubelet.tls_private_key_file.is_empty();
    let gate = parts.config.gates.enabled("RotateKubeletServerCertificate");
    if given || !kubelet.server_tls_bootstrap || !gate {
        return;
    }
    let store = CertificateStore::open(&parts.config.flags.cert_dir, "kubelet-server");
    let cell = Arc::clone(&parts.serving_cert);
    let counts = parts.metrics.certificate(CertificateOf::Server);
    let rotation = Rotation::of_serving(
        store,
        cluster.client.clone(),
        move |pair| cell.store(Some(pair)),
        counts,
    );
    let (names, wanted) = watch::channel(None);
    let node = parts.config.node_name.clone();
    let addresses = rotate::follow_addresses(node, cluster.node.clone(), names);
    tasks::singleton("certificate names", addresses);
    tasks::singleton("serving certificate", rotation.run(wanted));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_without_a_burst_is_refused() {
        assert!(rate(50, 0).is_err());
        assert_eq!(rate(0, 0).expect("both are zero").burst, 10);
    }
}
