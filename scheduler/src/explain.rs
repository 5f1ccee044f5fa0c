//! `explain` and `what-if` on a live cluster, which is listed once and never written.
//!
//! Effects: reads the API server and a file, writes to standard output. Bounds: `LIST_WAIT` for all
//! lists; a list that is rejected or cannot be requested ends the command at once, with the reason.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{LimitRange, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::ListParams;
use pintle_api::informer::{InformerError, InformerObserver};
use pintle_api::{Access, ClientOptions};
use pintle_api_types::object::key_of;
use pintle_daemon::tasks;
use pintle_sched_core::Profile;
use pintle_scheduler_core::cache::ClusterCache;
use pintle_scheduler_core::diagnosis::PodEvaluator;
use pintle_scheduler_core::pod_fields::{has_claims, node_name, scheduler_name};
use pintle_scheduler_core::watch_event::{KINDS, WatchEvent, WatchedKind, WatchedObject};
use tokio::sync::mpsc;

use crate::output;
use crate::simulate::load::{self, Dump};
use crate::simulate::place::{Questions, Simulation, SimulationError};
use crate::simulate::progress::Progress;
use crate::simulate::{self, Format, NodeChanges, ObjectOrigin, object_name, priority, up_to};
use crate::watch::{self, WATCH_EVENTS_MAX};

/// Limit of pods to place: two thirds of those of the largest cluster that Kubernetes supports.
const PODS_MAX: usize = 100_000;
/// Time limit of all lists.
const LIST_WAIT: Duration = Duration::from_secs(120);

/// Which cluster, and by which rules.
#[derive(Clone, Debug, clap::Args)]
pub struct Where {
    /// Credentials that may list; $KUBECONFIG or ~/.kube/config without it.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// KubeSchedulerConfiguration; the defaults of Kubernetes 1.36 without it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How to print.
    #[arg(long, short, value_enum, default_value = "table")]
    output: Format,
}

/// Arguments of `explain`.
#[derive(Clone, Debug, clap::Args)]
pub struct ExplainOptions {
    /// The pod: its name, or namespace/name.
    pod: String,
    /// Its namespace.
    #[arg(long, short, value_name = "NAME", default_value = "default")]
    namespace: String,
    /// Why this node would take it or not.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    #[command(flatten)]
    at: Where,
}

/// Arguments of `what-if`.
#[derive(Clone, Debug, clap::Args)]
pub struct WhatIfOptions {
    /// A pod to place, as JSON or YAML, with or without the defaults of the API server.
    #[arg(long, value_name = "FILE")]
    pod: Option<PathBuf>,
    /// How many such pods.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to::<PODS_MAX>)]
    #[arg(allow_negative_numbers = true)]
    replicas: usize,
    #[command(flatten)]
    changes: NodeChanges,
    /// Rows of a table at most; 0 is all.
    #[arg(long, value_name = "ROWS", default_value_t = 50)]
    limit: usize,
    #[command(flatten)]
    at: Where,
}

/// Runs `explain`.
///
/// # Errors
/// The cluster cannot be read, or has no such pod or node.
pub fn explain(options: &ExplainOptions) -> Result<()> {
    let (namespace, name) = match options.pod.split_once('/') {
        Some((namespace, name)) => (namespace, name),
        None => (options.namespace.as_str(), options.pod.as_str()),
    };
    let mut cache = ClusterCache::with_profiles(profiles(&options.at)?);
    let listed = |cache: &mut ClusterCache, watch_event| {
        let steps = cache.list(watch_event);
        steps.iter().for_each(|step| cache.make(step));
    };
    let pod = on_cluster(&options.at, async |clients| {
        list_all(&clients, |watch_event| listed(&mut cache, watch_event)).await?;
        let pods: kube::Api<Pod> = kube::Api::namespaced(clients, namespace);
        pods.get(name).await.with_context(|| format!("pod {namespace}/{name}"))
    })?;
    let answer = pintle_scheduler_core::explain::explain(
        &mut cache,
        &mut PodEvaluator::default(),
        &pod,
        options.node.as_deref(),
    )
    .with_context(|| key_of(&pod).as_str().to_owned())?;
    let text = match options.at.output {
        Format::Json => serde_json::to_string_pretty(&answer)? + "\n",
        Format::Table => answer.to_string(),
    };
    output::print(|out| out.write_all(text.as_bytes()))
}

/// Runs `what-if`.
///
/// # Errors
/// The cluster or the file cannot be read.
pub fn what_if(options: &WhatIfOptions) -> Result<()> {
    ensure!(
        options.pod.is_some() || !options.changes.drain.is_empty(),
        "nothing to place: give --pod FILE, or --drain NODE"
    );
    let mut requested = match &options.pod {
        Some(path) => requested_pods(path)?,
        None => Dump::default(),
    };
    let all = options.replicas.saturating_mul(requested.pods.len());
    ensure!(options.pod.is_none() || all > 0, "--replicas is 0: nothing to place");
    ensure!(all <= PODS_MAX, "--replicas: these are {all} pods; give at most {PODS_MAX}");
    let profile = profile_for(&options.at, &requested.pods)?;
    let mut dump = Dump::default();
    on_cluster(&options.at, async |client| {
        list_all(&client, |watch_event| keep(&mut dump, watch_event)).await?;
        match options.pod {
            Some(_) => follow_admission(&client, &mut dump, &mut requested).await,
            None => Ok(()),
        }
    })?;
    dump.assumed.append(std::mem::take(&mut requested.assumed));
    for at in 1..=options.replicas {
        for (pod, source) in requested.pods.iter().zip(&requested.pod_sources) {
            dump.pods.push(copy(pod, at, options.replicas));
            dump.pod_sources.push(ObjectOrigin { is_stored: false, ..source.clone() });
        }
    }
    let questions = Questions {
        why: None,
        drain: options.changes.drain.clone(),
        add_nodes: options.changes.add_nodes.unwrap_or(0),
        like: options.changes.like.clone(),
    };
    let simulation = Simulation::run(dump, profile, &questions, &Progress::new(false))?;
    output::print(|out| simulate::write(&simulation, options.at.output, options.limit, out))
}

/// Lists what admission reads, and sets the priorities of the pods: the priority of a pod must
/// match its class, unless these credentials may not list the classes.
async fn follow_admission(
    client: &kube::Client,
    dump: &mut Dump,
    requested: &mut Dump,
) -> Result<()> {
    let own = "pods have the priority that they say themselves";
    let classes = list_allowed::<PriorityClass>(client, "PriorityClasses", own).await?;
    let is_known = classes.is_some();
    for class in classes.into_iter().flatten() {
        dump.priority_classes.insert(object_name("PriorityClass", &class.metadata), class);
    }
    dump.priority_classes.append(&mut requested.priority_classes);
    let classes: Vec<_> = dump.priority_classes.values().cloned().collect();
    for (pod, source) in requested.pods.iter_mut().zip(&requested.pod_sources) {
        let given = if is_known { priority::admit_new } else { priority::admit };
        given(&classes, pod).map_err(|(field, problem)| {
            let (place, pod) = (&source.place, key_of(pod));
            anyhow::anyhow!("{place}: Pod {}: {field}: {problem}", pod.as_str())
        })?;
    }
    let own = "pods have no defaults of LimitRanges";
    let ranges = list_allowed::<LimitRange>(client, "LimitRanges", own).await?;
    for range in ranges.into_iter().flatten() {
        dump.limit_ranges.insert(object_name("LimitRange", &range.metadata), range);
    }
    dump.limit_ranges.append(&mut requested.limit_ranges);
    let has_class =
        |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.runtime_class_name.is_some());
    if requested.pods.iter().any(has_class) {
        let own = "pods have no overhead of RuntimeClasses";
        let classes = list_allowed::<RuntimeClass>(client, "RuntimeClasses", own).await?;
        dump.has_all_runtime_classes = classes.is_some();
        for class in classes.into_iter().flatten() {
            dump.runtime_classes.insert(object_name("RuntimeClass", &class.metadata), class);
        }
    }
    dump.runtime_classes.append(&mut requested.runtime_classes);
    Ok(())
}

/// Reads the pods to place from a file.
fn requested_pods(path: &Path) -> Result<Dump> {
    let shown = path.display().to_string();
    let bytes = simulate::read("--pod", path)?;
    let mut requested = Dump::default();
    load::load(&shown, &bytes, &mut requested)?;
    ensure!(
        !requested.pods.is_empty(),
        "{shown}: holds no Pod: of a Deployment or Job give a pod of its template"
    );
    if let Some(at) = requested.pods.iter().position(has_claims) {
        let (pod, place) = (key_of(&requested.pods[at]), &requested.pod_sources[at].place);
        anyhow::bail!("{place}: {}", SimulationError::HasClaims(pod.as_str().to_owned()));
    }
    Ok(requested)
}

/// Returns the profile of these pods' scheduler name; the first profile if they have none.
fn profile_for(at: &Where, pods: &[Pod]) -> Result<Profile> {
    let mut names: Vec<&str> = pods.iter().map(scheduler_name).collect();
    names.sort_unstable();
    names.dedup();
    ensure!(
        names.len() < 2,
        "--pod: the pods ask for several schedulers ({}): ask about those of one at a time",
        names.join(", ")
    );
    let name = names.first().copied();
    let Some(path) = &at.config else {
        let default = Profile::default();
        let scheduler_name = name.map_or(default.scheduler_name.clone(), str::to_owned);
        return Ok(Profile { scheduler_name, ..default });
    };
    let shown = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(shown)?;
    pintle_scheduler_core::config::profile(&text, name).with_context(shown)
}

/// Returns one of several copies of a pod, not placed yet.
fn copy(pod: &Pod, at: usize, of: usize) -> Pod {
    let mut pod = pod.clone();
    (pod.metadata.uid, pod.metadata.deletion_timestamp, pod.status) = (None, None, None);
    if let (Some(name), true) = (&mut pod.metadata.name, of > 1) {
        name.push_str(&format!("-{at}"));
    }
    if let Some(spec) = &mut pod.spec {
        spec.node_name = None;
    }
    pod
}

/// Keeps what a simulation uses. Pending pods are not explained and hold no resources.
fn keep(dump: &mut Dump, watch_event: WatchEvent) {
    let WatchEvent::Listed(thing) = watch_event else { return };
    let source = || ObjectOrigin { place: "the cluster".to_owned(), is_stored: true };
    match thing {
        WatchedObject::Pod(pod) if node_name(&pod).is_some() => {
            dump.pods.push(*pod);
            dump.pod_sources.push(source());
        }
        WatchedObject::Node(node) => {
            dump.nodes.push(*node);
            dump.node_sources.push(source());
        }
        WatchedObject::Namespace(o) => {
            dump.namespaces.insert(object_name("Namespace", &o.metadata), *o);
        }
        WatchedObject::Service(o) => {
            dump.services.insert(object_name("Service", &o.metadata), *o);
        }
        WatchedObject::ReplicaSet(o) => {
            dump.replica_sets.insert(object_name("ReplicaSet", &o.metadata), *o);
        }
        WatchedObject::StatefulSet(o) => {
            dump.stateful_sets.insert(object_name("StatefulSet", &o.metadata), *o);
        }
        WatchedObject::ReplicationController(o) => {
            dump.replication_controllers
                .insert(object_name("ReplicationController", &o.metadata), *o);
        }
        WatchedObject::PodDisruptionBudget(o) => {
            dump.budgets.insert(object_name("PodDisruptionBudget", &o.metadata), *o);
        }
        // A simulation has no volumes and no pending pods.
        _ => {}
    }
}

fn profiles(at: &Where) -> Result<Vec<Profile>> {
    let Some(path) = &at.config else { return Ok(vec![Profile::default()]) };
    let shown = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(shown)?;
    pintle_scheduler_core::config::without_extenders(&text).with_context(shown)
}

fn on_cluster<T>(at: &Where, work: impl AsyncFnOnce(kube::Client) -> Result<T>) -> Result<T> {
    let path = match &at.kubeconfig {
        Some(path) => path.clone(),
        None => usual_kubeconfig(std::env::var_os("KUBECONFIG"), std::env::home_dir())
            .context("which cluster? give --kubeconfig FILE")?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let access = Access::read(&path)?;
        let user_agent = pintle_config::help::user_agent("pintle-scheduler");
        let client = access.client(ClientOptions { user_agent, ..Default::default() });
        // Without user info before an @.
        let server = access.server.authority().map_or("", |authority| authority.as_str());
        let server = server.rsplit('@').next().unwrap_or_default();
        work(client).await.with_context(|| format!("API server {server}"))
    })
}

/// Returns the default kubeconfig of kubectl.
fn usual_kubeconfig(named: Option<std::ffi::OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let named = named.filter(|text| !text.is_empty());
    let first = named.and_then(|all| std::env::split_paths(&all).next());
    first.or_else(|| home.map(|home: PathBuf| home.join(Path::new(".kube/config"))))
}

/// Reports failed lists of a kind.
struct Hears(WatchedKind, mpsc::UnboundedSender<Fails>);

/// A failed list: is a retry useless, and a sentence with the reason.
struct Fails {
    kind: WatchedKind,
    is_final: bool,
    message: String,
}

impl InformerObserver for Hears {
    fn fails(&self, name: &str, error: &InformerError) {
        use InformerError::{Busy, Expired, TooLarge};
        let is_final = !matches!(error, Busy(_) | Expired(_) | TooLarge(_));
        // The receiver is closed only when the command is about to end.
        let _ = self.1.send(Fails { kind: self.0, is_final, message: cannot_list(name, error) });
    }
}

/// Lists everything that decisions read. As with kubectl the first failed list ends the command;
/// only a list rejected with a retry hint is retried.
async fn list_all(client: &kube::Client, mut take: impl FnMut(WatchEvent)) -> Result<()> {
    let (sender, mut watch_events) = mpsc::channel(WATCH_EVENTS_MAX);
    let (fails, mut failed) = mpsc::unbounded_channel();
    let hears = |kind| Arc::new(Hears(kind, fails.clone())) as Arc<dyn InformerObserver>;
    let running: Vec<_> = watch::follow_observed(|| client.clone(), &sender, false, Some(&hears))
        .into_iter()
        .map(|(name, follows)| tasks::spawn(name, follows))
        .collect();
    let mut missing: Vec<_> = KINDS.into();
    let mut last = None;
    let all = async {
        while !missing.is_empty() {
            tokio::select! {
                // A watch of a complete kind may still fail: credentials may allow list but not
                // watch.
                biased;
                Some(one) = watch_events.recv() => {
                    if let WatchEvent::Complete(kind) = &one {
                        missing.retain(|other| other != kind);
                    }
                    take(one);
                }
                Some(one) = failed.recv() => {
                    if missing.contains(&one.kind) && one.is_final {
                        return Err(anyhow::Error::msg(one.message));
                    }
                    last = Some(one.message);
                }
            }
        }
        Ok(())
    };
    let ended = tokio::time::timeout(LIST_WAIT, all).await;
    running.iter().for_each(tokio::task::JoinHandle::abort);
    ended.unwrap_or_else(|_| {
        let (names, wait) = (missing.iter().map(|kind| format!("{kind:?}")), LIST_WAIT.as_secs());
        let names = names.collect::<Vec<_>>().join(", ");
        let last = last.map(|last| format!("; {last}")).unwrap_or_default();
        Err(anyhow::anyhow!("no list within {wait} s of {names}{last}"))
    })
}

/// Returns the server's message, or the reason it cannot be reached, with a remedy.
fn cannot_list(name: &str, error: &InformerError) -> String {
    let message = error.to_string();
    let message = message.strip_prefix("ServiceError: ").unwrap_or(&message);
    let remedy = match error {
        InformerError::Unreachable(_) if message.contains("refused") => {
            "is this the address of the API server, and does it run?"
        }
        InformerError::NotFound(_) => "the API server has to serve this kind (--runtime-config)",
        _ if message.contains("orbidden") => {
            "give credentials that may list what the ClusterRole system:kube-scheduler lists"
        }
        _ if message.contains("nauthorized") => "check the credentials in the kubeconfig",
        _ => "check the kubeconfig and the API server",
    };
    format!("cannot list {name}: {message}; {remedy}")
}

/// Lists all objects of a kind; returns `None`, and warns on standard error, if these credentials
/// may not list them.
async fn list_allowed<T>(
    client: &kube::Client,
    kinds: &str,
    without: &str,
) -> Result<Option<Vec<T>>>
where
    T: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let all = kube::Api::<T>::all(client.clone());
    let params = ListParams::default();
    let listed = tokio::time::timeout(LIST_WAIT, all.list(&params)).await;
    match listed.with_context(|| kinds.to_owned())? {
        Ok(listed) => Ok(Some(listed.items)),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            // The reader of standard error may be gone.
            let _ = writeln!(std::io::stderr(), "{}: {without}", status.message);
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| kinds.to_owned()),
    }
}
