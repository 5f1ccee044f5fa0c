//! The fake runtime's sandboxes, containers and images, and the effects of calls on them.
//!
//! Input: requests, scripts and the time, all as arguments. Output: replies or refusals as
//! containerd makes them, and lifecycle events in an outbox. Pure: no clock, no I/O, no async; ids,
//! addresses and pids are counted, so equal inputs make equal worlds. A simulator can drive it with
//! simulated time: `next_due` is the time of the next exit of a container, `advance` makes it
//! happen.
//!
//! Owner: `FakeRuntime`, behind a lock. Reads are in views.rs, images in images.rs.

use std::{collections::BTreeMap, time::Duration};

use tonic::{Code, Status};

use super::{
    images::FakeImages,
    script::{Behaviour, EXIT_KILLED, EXIT_START_ERROR, EXIT_UNSEEN, ExecAnswer, OnStop, Scripts},
};
use crate::v1::*;

/// A point in time: nanoseconds since 1970, as the protocol counts.
pub type Nanos = i64;

/// A sandbox as the fake keeps it.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    pub(super) id: String,
    pub(super) config: PodSandboxConfig,
    pub(super) handler: String,
    pub(super) ready: bool,
    pub(super) created_at: Nanos,
    pub(super) ip: String,
}

/// A container as the fake keeps it.
#[derive(Clone, Debug)]
pub(super) struct FakeContainer {
    pub(super) id: String,
    pub(super) sandbox_id: String,
    pub(super) config: ContainerConfig,
    pub(super) name: String,
    pub(super) image_id: String,
    pub(super) pid: u32,
    pub(super) status: ContainerStatus,
    behaviour: Behaviour,
    exit_due: Option<(Nanos, i32)>,
}

/// Everything the fake runtime knows.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub(super) sandboxes: BTreeMap<String, Sandbox>,
    pub(super) containers: BTreeMap<String, FakeContainer>,
    pub(super) images: FakeImages,
    pub(super) scripts: Scripts,
    pub(super) outbox: Vec<ContainerEventResponse>,
    pub(super) pod_cidr: String,
    pub(super) conditions: BTreeMap<String, (bool, String)>,
    /// It has the features that `Status` reports.
    pub(super) able: bool,
    /// Addresses that pods get, by `namespace/pod`; others are counted.
    pub(super) addresses: BTreeMap<String, String>,
    /// Port of the streaming server, on loopback.
    pub(super) streaming_port: u16,
    next_number: u32,
    /// The runtime process is away: exits happen unseen.
    pub(super) down: bool,
}

const PID_FIRST: u32 = 100_000;

impl State {
    /// Creates a sandbox. Its name stays taken until it is removed.
    pub fn run_pod_sandbox(
        &mut self,
        request: RunPodSandboxRequest,
        now: Nanos,
    ) -> Result<RunPodSandboxResponse, Status> {
        let config = request.config.unwrap_or_default();
        let Some(metadata) = &config.metadata else {
            return Err(Status::invalid_argument("sandbox config must include metadata"));
        };
        if let Some(taken) = self.sandboxes.values().find(|s| s.config.metadata == config.metadata)
        {
            return Err(reserved("sandbox", &sandbox_name(metadata), &taken.id));
        }
        if !matches!(request.runtime_handler.as_str(), "" | "runc") {
            let handler = request.runtime_handler;
            let text = format!("failed to get sandbox runtime: no runtime for {handler:?}");
            return Err(Status::unknown(text));
        }
        let host_network = is_host_network(&config);
        if host_network && !config.hostname.is_empty() {
            return Err(Status::unknown("cannot set a hostname in the host's namespace"));
        }
        let number = self.number();
        let id = id_of(number);
        let ip = match host_network {
            true => String::new(),
            false => {
                let given =
                    self.addresses.get(&format!("{}/{}", metadata.namespace, metadata.name));
                given.cloned().unwrap_or_else(|| address(number))
            }
        };
        let (handler, ready) = (request.runtime_handler, true);
        let sandbox = Sandbox { id: id.clone(), config, handler, ready, created_at: now, ip };
        self.sandboxes.insert(id.clone(), sandbox);
        self.tell(&id, &id, ContainerEventType::ContainerCreatedEvent, now);
        self.tell(&id, &id, ContainerEventType::ContainerStartedEvent, now);
        Ok(RunPodSandboxResponse { pod_sandbox_id: id })
    }

    /// Kills the sandbox's containers and gives its address back. An unknown id is fine.
    pub fn stop_pod_sandbox(&mut self, id: &str, now: Nanos) {
        let running = self.containers_of(id);
        running.iter().for_each(|id| self.exit(id, EXIT_KILLED, now));
        let Some(sandbox) = self.sandboxes.get_mut(id) else { return };
        if std::mem::replace(&mut sandbox.ready, false) {
            sandbox.ip.clear();
            self.tell(id, id, ContainerEventType::ContainerStoppedEvent, now);
        }
    }

    /// Removes the sandbox and its containers. An unknown id is fine.
    pub fn remove_pod_sandbox(&mut self, id: &str, now: Nanos) {
        self.stop_pod_sandbox(id, now);
        let containers = self.containers_of(id);
        containers.iter().for_each(|container| self.remove_container(container, now));
        if self.sandboxes.contains_key(id) {
            self.tell(id, id, ContainerEventType::ContainerDeletedEvent, now);
            self.sandboxes.remove(id);
        }
    }

    /// Creates a container from an image that must be present, in a sandbox that must be ready.
    pub fn create_container(
        &mut self,
        request: CreateContainerRequest,
        now: Nanos,
    ) -> Result<CreateContainerResponse, Status> {
        let sandbox_id = request.pod_sandbox_id;
        let config = request.config.unwrap_or_default();
        let sandbox = self.sandboxes.get(&sandbox_id).ok_or_else(|| {
            Status::not_found(format!("failed to find sandbox id {sandbox_id:?}: not found"))
        })?;
        let Some(metadata) = config.metadata.clone() else {
            return Err(Status::invalid_argument("container config must include metadata"));
        };
        if !sandbox.ready {
            return Err(Status::unknown("sandbox container is not running"));
        }
        let pod = sandbox.config.metadata.clone().unwrap_or_default();
        let same = |entry: &&FakeContainer| {
            entry.sandbox_id == sandbox_id && entry.config.metadata.as_ref() == Some(&metadata)
        };
        if let Some(taken) = self.containers.values().find(same) {
            let name = format!("{}_{}_{}", metadata.name, sandbox_name(&pod), metadata.attempt);
            return Err(reserved("container", &name, &taken.id));
        }
        let wanted = config.image.clone().unwrap_or_default().image;
        let image = self.images.find(&wanted).ok_or_else(|| {
            Status::not_found(format!("failed to resolve image {wanted:?}: not found"))
        })?;
        let name = format!("{}/{}/{}", pod.namespace, pod.name, metadata.name);
        let behaviour = self.scripts.container(&format!("{name}#{}.", metadata.attempt));
        let image_id = image.id.clone();
        let image_ref = image.repo_digests.first().unwrap_or(&image.id).clone();
        let id = id_of(self.number());
        let log_path = sandbox_log_path(&self.sandboxes[&sandbox_id], &config).unwrap_or_default();
        let status = ContainerStatus {
            id: id.clone(),
            metadata: Some(metadata),
            state: ContainerState::ContainerCreated.into(),
            created_at: now,
            image: config.image.clone(),
            image_ref,
            image_id: image_id.clone(),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
            mounts: config.mounts.clone(),
            log_path,
            resources: Some(ContainerResources {
                linux: config.linux.as_ref().and_then(|linux| linux.resources.clone()),
                windows: None,
            }),
            stop_signal: config.stop_signal,
            ..Default::default()
        };
        let entry = FakeContainer {
            id: id.clone(),
            sandbox_id: sandbox_id.clone(),
            config,
            behaviour,
            name,
            image_id,
            pid: 0,
            status,
            exit_due: None,
        };
        self.containers.insert(id.clone(), entry);
        self.tell(&id, &sandbox_id, ContainerEventType::ContainerCreatedEvent, now);
        Ok(CreateContainerResponse { container_id: id })
    }

    /// Starts a created container, or fails by its script.
    pub fn start_container(&mut self, id: &str, now: Nanos) -> Result<(), Status> {
        let number = self.number();
        let entry = self.container_mut(id)?;
        if entry.status.state() != ContainerState::ContainerCreated {
            let state = entry.status.state().as_str_name();
            return Err(Status::unknown(format!("container {id:?} is in {state} state")));
        }
        if let Some(message) = entry.behaviour.start_error.clone() {
            entry.status.set_state(ContainerState::ContainerExited);
            entry.status.finished_at = now;
            entry.status.exit_code = EXIT_START_ERROR;
            entry.status.reason = "StartError".into();
            let message = message.replace("{id}", id);
            entry.status.message = message.clone();
            return Err(Status::unknown(message));
        }
        entry.status.set_state(ContainerState::ContainerRunning);
        entry.status.started_at = now;
        entry.pid = PID_FIRST + number;
        entry.exit_due = entry.behaviour.exits.map(|(after, code)| (later(now, after), code));
        let sandbox = entry.sandbox_id.clone();
        self.tell(id, &sandbox, ContainerEventType::ContainerStartedEvent, now);
        self.advance(now);
        Ok(())
    }

    /// Sends the stop signal: decides when the container will be gone. `false` when there is
    /// nothing to wait for.
    pub fn signal_container(&mut self, id: &str, grace: i64, now: Nanos) -> bool {
        let Some(entry) = self.containers.get_mut(id) else { return false };
        if entry.status.state() != ContainerState::ContainerRunning {
            return false;
        }
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let (after, code) = match entry.behaviour.on_stop {
            OnStop::Exits(after, code) if after < grace => (after, code),
            _ => (grace, EXIT_KILLED),
        };
        let due = (later(now, after), code);
        if entry.exit_due.is_none_or(|earlier| due.0 < earlier.0) {
            entry.exit_due = Some(due);
        }
        self.advance(now);
        true
    }

    /// Removes a container, killing it first. An unknown id is fine.
    pub fn remove_container(&mut self, id: &str, now: Nanos) {
        self.exit(id, EXIT_KILLED, now);
        let Some(entry) = self.containers.get(id) else { return };
        let sandbox = entry.sandbox_id.clone();
        self.tell(id, &sandbox, ContainerEventType::ContainerDeletedEvent, now);
        self.containers.remove(id);
    }

    /// A running container's main process ends. Nothing happens when it does not run.
    pub fn exit(&mut self, id: &str, code: i32, now: Nanos) {
        let down = self.down;
        let Some(entry) = self.containers.get_mut(id) else { return };
        if entry.status.state() != ContainerState::ContainerRunning {
            return;
        }
        let (code, reason) = match (down, entry.behaviour.exit_reason.clone(), code) {
            (true, _, _) => (EXIT_UNSEEN, "Unknown".to_owned()),
            (false, Some(reason), code) => (code, reason),
            (false, None, 0) => (0, "Completed".to_owned()),
            (false, None, code) => (code, "Error".to_owned()),
        };
        entry.status.set_state(ContainerState::ContainerExited);
        entry.status.finished_at = now;
        entry.status.exit_code = code;
        entry.status.reason = reason;
        entry.exit_due = None;
        entry.pid = 0;
        let sandbox = entry.sandbox_id.clone();
        if !down {
            self.tell(id, &sandbox, ContainerEventType::ContainerStoppedEvent, now);
        }
    }

    /// The pause process of a sandbox dies without a request, and its containers with it.
    pub fn kill_sandbox(&mut self, id: &str, now: Nanos) {
        let running = self.containers_of(id);
        running.iter().for_each(|id| self.exit(id, EXIT_KILLED, now));
        let Some(sandbox) = self.sandboxes.get_mut(id) else { return };
        if std::mem::replace(&mut sandbox.ready, false) && !self.down {
            self.tell(id, id, ContainerEventType::ContainerStoppedEvent, now);
        }
    }

    /// Lets every exit happen that is due.
    pub fn advance(&mut self, now: Nanos) {
        let due: Vec<_> = self
            .containers
            .values()
            .filter_map(|entry| Some((entry.exit_due?, entry.id.clone())))
            .filter(|((at, _), _)| *at <= now)
            .collect();
        due.iter().for_each(|((at, code), id)| self.exit(id, *code, *at));
    }

    /// Time of the next exit of a container, by itself or by its stop signal.
    pub fn next_due(&self) -> Option<Nanos> {
        self.containers.values().filter_map(|entry| Some(entry.exit_due?.0)).min()
    }

    /// Changes the limits that the request gives; zero and empty leave one alone.
    pub fn update_container_resources(
        &mut self,
        request: UpdateContainerResourcesRequest,
    ) -> Result<(), Status> {
        let entry = self.container_mut(&request.container_id)?;
        let resources = entry.status.resources.get_or_insert_default();
        let current = resources.linux.get_or_insert_default();
        let Some(wanted) = request.linux else { return Ok(()) };
        for (current, wanted) in [
            (&mut current.cpu_period, wanted.cpu_period),
            (&mut current.cpu_quota, wanted.cpu_quota),
            (&mut current.cpu_shares, wanted.cpu_shares),
            (&mut current.memory_limit_in_bytes, wanted.memory_limit_in_bytes),
            (&mut current.memory_swap_limit_in_bytes, wanted.memory_swap_limit_in_bytes),
            (&mut current.oom_score_adj, wanted.oom_score_adj),
        ] {
            if wanted != 0 {
                *current = wanted;
            }
        }
        for (current, wanted) in [
            (&mut current.cpuset_cpus, wanted.cpuset_cpus),
            (&mut current.cpuset_mems, wanted.cpuset_mems),
        ] {
            if !wanted.is_empty() {
                *current = wanted;
            }
        }
        current.unified.extend(wanted.unified);
        Ok(())
    }

    /// Refuses unless the container runs.
    pub fn check_running(&self, id: &str) -> Result<(), Status> {
        let entry = self.containers.get(id).ok_or_else(|| container_not_found(id))?;
        match entry.status.state() {
            ContainerState::ContainerRunning => Ok(()),
            state => {
                let state = state.as_str_name();
                Err(Status::unknown(format!("container {id:?} is in {state} state")))
            }
        }
    }

    /// The answer of a command in a running container.
    pub fn exec(&self, id: &str, command: &[String]) -> Result<ExecAnswer, Status> {
        self.check_running(id)?;
        Ok(self.scripts.command(&self.containers[id].name, command))
    }

    fn container_mut(&mut self, id: &str) -> Result<&mut FakeContainer, Status> {
        self.containers.get_mut(id).ok_or_else(|| container_not_found(id))
    }

    fn containers_of(&self, sandbox: &str) -> Vec<String> {
        let own = self.containers.values().filter(|entry| entry.sandbox_id == sandbox);
        own.map(|entry| entry.id.clone()).collect()
    }

    fn number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number
    }

    /// Puts an event with both statuses as of now into the outbox.
    fn tell(&mut self, id: &str, sandbox: &str, kind: ContainerEventType, now: Nanos) {
        let event = ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: now,
            pod_sandbox_status: self.sandboxes.get(sandbox).map(Sandbox::status),
            containers_statuses: self.statuses_of(sandbox),
        };
        self.outbox.push(event);
    }
}

pub(super) fn container_not_found(id: &str) -> Status {
    let text = format!("an error occurred when try to find container {id:?}: not found");
    Status::new(Code::NotFound, text)
}

pub(super) fn is_host_network(config: &PodSandboxConfig) -> bool {
    let context = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    context
        .and_then(|context| context.namespace_options.as_ref())
        .is_some_and(|options| options.network() == NamespaceMode::Node)
}

fn sandbox_name(metadata: &PodSandboxMetadata) -> String {
    let PodSandboxMetadata { name, uid, namespace, attempt } = metadata;
    format!("{name}_{namespace}_{uid}_{attempt}")
}

fn sandbox_log_path(sandbox: &Sandbox, config: &ContainerConfig) -> Option<String> {
    let directory = &sandbox.config.log_directory;
    (!directory.is_empty() && !config.log_path.is_empty())
        .then(|| format!("{}/{}", directory.trim_end_matches('/'), config.log_path))
}

fn reserved(what: &str, name: &str, holder: &str) -> Status {
    Status::failed_precondition(format!(
        "failed to reserve {what} name {name:?}: name {name:?} is reserved for {holder:?}"
    ))
}

/// 64 hexadecimal digits as real ids have, the counted part first so that people can read it.
fn id_of(number: u32) -> String {
    format!("{number:08x}{:056x}", 0)
}

fn address(number: u32) -> String {
    let [_, _, high, low] = number.to_be_bytes();
    format!("10.88.{high}.{low}")
}

fn later(now: Nanos, after: Duration) -> Nanos {
    now.saturating_add(i64::try_from(after.as_nanos()).unwrap_or(i64::MAX))
}
