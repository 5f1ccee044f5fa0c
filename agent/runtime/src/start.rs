//! Brings a pod up: sandbox and containers.
//!
//! Effects of `CreateSandbox` and `StartContainer`. `request` builds the requests to the runtime,
//! pure; here files are written and calls made, in the kubelet's order, with the kubelet's events
//! and reasons.
// k8s: pkg/kubelet/kubelet.go SyncPod, pkg/kubelet/kuberuntime/kuberuntime_container.go
// startContainer

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret, Service};
use pintle_agent_cluster::objects::ContainerObjects;
use pintle_agent_core::admit;
use pintle_agent_core::env::variables as env;
use pintle_agent_core::node::conditions::NodeEvent;
use pintle_agent_core::request;
use pintle_agent_core::request::dns::{About, DnsWarning, RESOLV_CONF_BYTES_MAX};
use pintle_agent_core::request::hosts;
use pintle_agent_core::request::security::IdRange;
use pintle_agent_core::request::{ContainerContext, PodContext, paths};
use pintle_agent_core::sync::stop_order;
use pintle_agent_core::types::{ContainerId, ContainerKind, PodUid};
use pintle_agent_core::volume::{PlannedDevice, PodDirs, PodVolumes};
use pintle_agent_core::worker::{Failure, NO_SANDBOX_STATUS};
use pintle_agent_host::volume;
use pintle_api_types::pod;
use pintle_cri::v1;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace as Work;
use pintle_ring::{FileError, small};

use crate::env_files;
use crate::execute::{Cancel, Executor, ImageVolumes, NewSandbox, SyncOrder, sandbox_ips};
use crate::hooks::HookTarget;
use crate::image::{ImageRequest, PresentImage};
use crate::logs::log_files;
use crate::start_permits::StartPermit;

/// Longest `/etc/hosts` of the node that is copied into pods on its network, in bytes.
const NODE_HOSTS_BYTES_MAX: usize = 1 << 20;

/// The runtime's error for an image volume that it cannot mount.
// k8s: pkg/kubelet/errors ErrImageVolumeMountFailed
const IMAGE_VOLUME_FAILED: &str = "ImageVolumeMountFailed";

/// A container to start.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContainerStart<'a> {
    pub(super) order: &'a SyncOrder,
    pub(super) pod: &'a Pod,
    pub(super) name: &'a str,
    pub(super) kind: ContainerKind,
    pub(super) restart_count: Option<u32>,
    pub(super) sandbox: Option<&'a NewSandbox>,
    pub(super) image_volumes: &'a OnceCell<ImageVolumes>,
    pub(super) permit: &'a StartPermit,
}

/// The images that a container is made of.
#[derive(Clone, Copy)]
struct ContainerImages<'a> {
    own: &'a PresentImage,
    /// Ids of image volumes by reference.
    volumes: &'a BTreeMap<String, String>,
}

impl Executor {
    pub(super) fn volumes(&self, pod: &Pod) -> PodVolumes {
        let claims = self.objects.claims(&pod::uid(pod));
        PodVolumes::plan(&self.node.root_dir, &self.facts.borrow(), pod, &claims)
    }

    /// The sandbox, with its log directory.
    pub(super) async fn create_sandbox(
        &self,
        order: &SyncOrder,
        pod: &Pod,
        attempt: u32,
        permit: &StartPermit,
        cancel: &Cancel,
    ) -> Result<NewSandbox, Failure> {
        let fail = |text: String| {
            // The end of the pod meanwhile may remove the files that its sandbox is made of.
            if !cancel.is_cancelled() {
                let message = format!("Failed to create pod sandbox: {text}");
                self.recorder.event(&order.uid, true, "FailedCreatePodSandBox", &message, None);
            }
            let failure = Failure::new("CreatePodSandboxError", text);
            Failure { cancelled: cancel.is_cancelled(), ..failure }
        };
        let handler = self.objects.runtime_handler(pod).await;
        let handler = handler.map_err(|error| fail(error.to_string()))?;
        let handler = self.facts.borrow().handler(&handler);
        let node = self.node_now().await.map_err(|error| fail(error.to_string()))?;
        let users = self.users.range(pod, &handler).await;
        let users = users.map_err(|error| fail(error.to_string()))?;
        let extra_groups = &*self.objects.claims(&order.uid).extra_groups(pod);
        let ctx = self.context(&node, pod, attempt, &handler, users);
        let ctx = PodContext { extra_groups, ..ctx };
        let made = request::sandbox_config(&ctx).map_err(|error| fail(error.to_string()))?;
        for DnsWarning { about, reason, message } in made.warnings {
            match about {
                About::Pod => self.recorder.event(&order.uid, true, reason, &message, None),
                About::Node => (self.node_events)(NodeEvent { warning: true, reason, message }),
            }
        }
        let logs = PathBuf::from(&made.config.log_directory);
        let made_dir = in_background(&order.uid, move || make_log_dir(&logs)).await;
        made_dir.map_err(|error| fail(error.to_string()))?;
        let request = v1::RunPodSandboxRequest {
            config: Some(made.config),
            runtime_handler: made.handler.clone(),
        };
        let call = async {
            let begun = std::time::Instant::now();
            let answer = self.client.run_pod_sandbox(request).await;
            self.metrics.sandbox(&made.handler, begun.elapsed(), answer.is_ok());
            answer
        };
        let answer = permit.call(call).await.map_err(|error| fail(error.rpc_text()))?;
        let id = answer.pod_sandbox_id;
        self.reader.made(&id);
        let ips = sandbox_ips(&self.client, &id).await.map_err(|error| {
            let text = format!("Unable to get pod sandbox status: {}", error.rpc_text());
            self.recorder.event(&order.uid, true, NO_SANDBOX_STATUS, &text, None);
            Failure::new(NO_SANDBOX_STATUS, text)
        })?;
        Ok(NewSandbox { id, attempt, ips })
    }

    /// Image, configuration, create, start, postStart.
    pub(super) async fn start_container(
        &self,
        start: &ContainerStart<'_>,
        cancel: &Cancel,
    ) -> Result<(), Failure> {
        let Some(container) = container_of(start) else { return Ok(()) };
        let (sandbox_id, attempt, ips) = sandbox_of(start)?;
        let handler = self.objects.known_handler(start.pod).await;
        let handler = self.facts.borrow().handler(&handler);
        let node = self.node_now().await;
        let node = node.map_err(|error| self.refuse(start, &error.to_string()))?;
        let users = self.users.range(start.pod, &handler).await;
        let users = users.map_err(|error| self.refuse(start, &error.to_string()))?;
        let extra_groups = &*self.objects.claims(&start.order.uid).extra_groups(start.pod);
        let ctx = self.context(&node, start.pod, attempt, &handler, users);
        let ctx = PodContext { extra_groups, pod_ips: &ips, ..ctx };
        let mut config = request::sandbox_config(&ctx)
            .map_err(|error| self.refuse(start, &error.to_string()))?
            .config;
        self.keep_together(start, &mut config);
        let secrets = self.objects.pull_secrets(&start.order.uid, start.pod).await;
        let images = self.image_volumes(start, &container, &config, &secrets.keyring);
        let images = cancel.unless(images).await??;
        let started = async {
            let wanted = ImageRequest {
                uid: &start.order.uid,
                pod: start.pod,
                container: Some(start.name),
                image: container.image.as_deref().unwrap_or_default(),
                policy: container.image_pull_policy.as_deref().unwrap_or("IfNotPresent"),
                sandbox: &config,
                keyring: &secrets.keyring,
            };
            let image =
                cancel.unless(self.images.ensure(&wanted)).await?.inspect_err(|failure| {
                    let text = format!("Error: {}", failure.reason);
                    self.recorder.event(&start.order.uid, true, "Failed", &text, Some(start.name));
                })?;
            let images = ContainerImages { own: &image, volumes: &images };
            let created = self.create(start, &container, &ctx, images, &sandbox_id, config).await?;
            if cancel.is_cancelled() {
                return Err(Failure::cancelled());
            }
            self.begin(start, &created).await?;
            self.follow(start, &ContainerId::from(created.id.as_str())).await;
            self.post_start(start, &container, &created, &ips, cancel).await
        };
        let started = started.await;
        let bad = |failure: &Failure| failure.message.contains(IMAGE_VOLUME_FAILED);
        let (requested, mounted) = image_mounts(start.pod, &container);
        self.metrics.image_volumes(requested, mounted, !started.as_ref().is_err_and(bad));
        started
    }

    async fn create(
        &self,
        start: &ContainerStart<'_>,
        container: &Container,
        ctx: &PodContext<'_>,
        images: ContainerImages<'_>,
        sandbox_id: &str,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<Created, Failure> {
        let failed = |error: StartRequestError| self.refuse(start, &error.to_string());
        // A pod that a kubelet admitted may need a device when one of its containers restarts.
        let plugins = &ctx.node.facts.plugin_resources;
        if let Some(resource) = admit::needed_plugin_resource(plugins, container) {
            let text = format!(
                "no device plugin is registered for {resource}: the container would start without \
                 its device"
            );
            return Err(self.refuse(start, &text));
        }
        let logs = PathBuf::from(&sandbox_config.log_directory);
        let volumes = self.volumes(start.pod);
        let uid = &start.order.uid;
        let restart_count = match start.restart_count {
            Some(count) => count,
            None => {
                let log_dir = logs.join(start.name);
                let next = move || Ok::<_, String>(log_files::next_attempt(&log_dir));
                in_background(uid, next).await.map_err(failed)?
            }
        };
        let sources = EnvSources {
            files: EnvFiles::read(uid, container, &volumes).await.map_err(failed)?,
            objects: self.objects.environment(&start.order.uid, start.pod, container).await,
        };
        let target_id = target_of(start).map_err(failed)?;
        let termination_file = random_hex();
        let devices = volumes.devices(container).map_err(StartRequestError::of).map_err(failed)?;
        let devices: Vec<_> = devices.into_iter().map(device).collect();
        let of_container = ContainerContext {
            container,
            restart_count,
            image_ref: &images.own.id,
            image_user: &images.own.user,
            target_id: target_id.as_deref(),
            mounts: &[],
            images: images.volumes,
            termination_file: &termination_file,
            sources: &sources,
            devices: &devices,
            cdi_devices: &[],
            annotations: &BTreeMap::new(),
            exclusive_cpus: false,
        };
        let config = self.files_and_config(start, ctx, of_container, &volumes, &logs).await;
        let config = config.map_err(failed)?;
        let log = logs.join(&config.log_path);
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let answer = start
            .permit
            .call(self.client.create_container(request))
            .await
            .map_err(|error| self.failed(start, "CreateContainerError", &error.message))?;
        self.reader.made(&answer.container_id);
        self.recorder.event(uid, false, "Created", "Container created", Some(start.name));
        Ok(Created { id: answer.container_id, log })
    }

    /// Writes the files that the container mounts and builds its configuration.
    async fn files_and_config(
        &self,
        start: &ContainerStart<'_>,
        ctx: &PodContext<'_>,
        container: ContainerContext<'_>,
        volumes: &PodVolumes,
        logs: &Path,
    ) -> Result<v1::ContainerConfig, StartRequestError> {
        let uid = &start.order.uid;
        let dirs = PodDirs::new(Path::new(&self.node.root_dir), uid);
        let environment =
            request::container_environment(ctx, &container).map_err(StartRequestError::of)?;
        let env = environment.variables().iter().cloned().collect();
        let mounts = volumes
            .mounts(container.container, &env, ctx.handler.recursive_read_only)
            .map_err(StartRequestError::of)?;
        let prepared = volume::execute::prepare_container(uid, start.name, &mounts).await;
        prepared.map_err(StartRequestError::of)?;
        let container = ContainerContext { mounts: &mounts, ..container };
        let hosts = match request::mounts_hosts_file(ctx, &container) {
            true => Some(self.hosts_text(start, ctx).await?),
            false => None,
        };
        let (pod_dirs, name) = (dirs.clone(), start.name.to_owned());
        in_background(uid, move || {
            if let Some(text) = hosts {
                volume::execute::write_hosts(&pod_dirs, &text)?;
            }
            volume::execute::make_container_dir(&pod_dirs, &name)
        })
        .await?;
        // Before the termination message file: a container that is refused leaves none.
        let config = request::container_config(ctx, &container).map_err(StartRequestError::of)?;
        let (name, file) = (start.name.to_owned(), container.termination_file.to_owned());
        let logs = logs.to_owned();
        in_background(uid, move || {
            volume::execute::make_termination_log(&dirs, &name, &file)?;
            log_files::make_container_dir(&logs, &name)
        })
        .await?;
        Ok(config)
    }

    async fn hosts_text(
        &self,
        start: &ContainerStart<'_>,
        ctx: &PodContext<'_>,
    ) -> Result<String, StartRequestError> {
        let node_file = match pod::uses_host_network(start.pod) {
            true => {
                let path = Path::new(hosts::HOSTS_PATH);
                match small::read(Work::own("hosts"), path, NODE_HOSTS_BYTES_MAX).await {
                    Ok(text) => String::from_utf8_lossy(&text).into_owned(),
                    // As where there is none.
                    Err(FileError::Chain(_)) => String::new(),
                    Err(error) => return Err(StartRequestError::of(error)),
                }
            }
            false => String::new(),
        };
        request::hosts_text(ctx, &node_file).map_err(StartRequestError::of)
    }

    async fn begin(&self, start: &ContainerStart<'_>, created: &Created) -> Result<(), Failure> {
        let request = v1::StartContainerRequest { container_id: created.id.clone() };
        let call = self.client.start_container(request);
        start
            .permit
            .call(call)
            .await
            .map_err(|error| self.begin_failed(start, created, &error.message))?;
        let uid = &start.order.uid;
        self.recorder.event(uid, false, "Started", "Container started", Some(start.name));
        let link = PathBuf::from(paths::log_link(start.pod, start.name, &created.id));
        let log = created.log.clone();
        let linked = in_background(uid, move || match log.exists() {
            true => log_files::make_link(&link, &log),
            false => Ok(()),
        });
        // A convenience for log collectors; a read-only /var/log must not stop containers.
        if let Err(error) = linked.await {
            tracing::debug!(%error, "no link to the container's log");
        }
        Ok(())
    }

    /// A container of a sandbox that lives elsewhere is made where the sandbox is.
    fn keep_together(&self, start: &ContainerStart<'_>, config: &mut v1::PodSandboxConfig) {
        if let (Some(parent), Some(linux)) = (self.parent_of_new(start), &mut config.linux) {
            linux.cgroup_parent = parent;
        }
    }

    async fn post_start(
        &self,
        start: &ContainerStart<'_>,
        container: &Container,
        created: &Created,
        ips: &[IpAddr],
        cancel: &Cancel,
    ) -> Result<(), Failure> {
        let hook = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref());
        let Some(hook) = hook else { return Ok(()) };
        let uid = &start.order.uid;
        let id = ContainerId::from(created.id.as_str());
        let ports = container.ports.as_deref().unwrap_or_default();
        let described = pod::described(start.pod);
        let target =
            HookTarget { uid, pod: &described, name: start.name, container: &id, ips, ports };
        let Err(error) = cancel.unless(self.hooks.run(&target, hook)).await? else {
            return Ok(());
        };
        let message = error.to_string();
        let text = "PostStartHook failed";
        self.recorder.event(uid, true, "FailedPostStartHook", text, Some(start.name));
        let stop = stop_order::ContainerStop {
            id,
            name: start.name.to_owned(),
            grace_seconds: pod::grace_seconds(start.pod),
            pre_stop: container.lifecycle.as_ref().and_then(|l| l.pre_stop.clone()),
            ports: ports.to_vec(),
            after: Vec::new(),
        };
        let observed = &start.order.observed;
        // The container ends in any case: the next plan sees to it should this fail.
        let _ = cancel.unless(self.killer.stop(observed, &stop, "FailedPostStartHook", None)).await;
        Err(Failure::new("PostStartHookError", message))
    }

    /// In the event the container's name replaces its id, which is another one each time.
    // k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go recordContainerEvent
    fn begin_failed(&self, start: &ContainerStart<'_>, created: &Created, text: &str) -> Failure {
        self.failed(start, "RunContainerError", &text.replace(&created.id, start.name));
        Failure::new("RunContainerError", text)
    }

    fn refuse(&self, start: &ContainerStart<'_>, text: &str) -> Failure {
        self.failed(start, request::ConfigError::REASON, text)
    }

    fn failed(&self, start: &ContainerStart<'_>, reason: &str, text: &str) -> Failure {
        let message = format!("Error: {text}");
        self.recorder.event(&start.order.uid, true, "Failed", &message, Some(start.name));
        Failure::new(reason, text)
    }

    fn context<'a>(
        &self,
        node: &'a request::NodeContext,
        pod: &'a Pod,
        attempt: u32,
        handler: &'a request::RuntimeHandler,
        users: Option<IdRange>,
    ) -> PodContext<'a> {
        PodContext {
            node,
            pod,
            attempt,
            handler,
            users,
            extra_groups: &[],
            pod_ips: &[],
            exclusive_cpus: false,
        }
    }

    /// The node's side with today's facts and resolv.conf. Without the latter no name would be
    /// resolved: a pod waits rather than starts with none.
    // k8s: pkg/kubelet/network/dns/dns.go getDNSConfig
    async fn node_now(&self) -> Result<request::NodeContext, StartRequestError> {
        let mut node = self.node.clone();
        node.facts = self.facts.borrow().clone();
        if let Some(path) = self.settings.resolv_conf.clone() {
            let text = small::read(Work::own("resolv.conf"), &path, RESOLV_CONF_BYTES_MAX).await;
            let text = text.map_err(|error| match error {
                FileError::Chain(error) => {
                    // In Go's words.
                    let why = error.errno().desc().to_lowercase();
                    StartRequestError::ResolvConf { path: path.clone(), why }
                }
                other => StartRequestError::of(other),
            });
            node.dns.resolv_conf = Some(String::from_utf8_lossy(&text?).into_owned());
        }
        Ok(node)
    }
}

/// Reason why a request to the runtime cannot be made; the text of the pod's event.
#[derive(Debug, thiserror::Error)]
enum StartRequestError {
    /// The pod's definition does not allow one, or a file of it cannot be made or read.
    #[error("{0}")]
    Failed(String),
    #[error("open {}: {why}", path.display())]
    ResolvConf { path: PathBuf, why: String },
    #[error("unable to find target container {0}")]
    NoTarget(String),
}

impl StartRequestError {
    fn of(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A container that was created.
struct Created {
    id: String,
    log: PathBuf,
}

/// Variables from files in volumes, read beforehand.
struct EnvFiles(BTreeMap<(String, String), env::EnvFile>);

impl EnvFiles {
    async fn read(
        uid: &PodUid,
        container: &Container,
        volumes: &PodVolumes,
    ) -> Result<Self, StartRequestError> {
        let needed = env::files_needed(container);
        let found = needed.into_iter().filter_map(|((name, path), keys)| {
            let found = volumes.volumes.iter().find(|v| v.name == name)?;
            let volume = found.host_dir(&volumes.dirs)?;
            let wanted = env_files::WantedEnvFile { volume, path: path.to_owned(), keys };
            Some(((name.to_owned(), path.to_owned()), wanted))
        });
        let (names, wanted): (Vec<_>, Vec<_>) = found.unzip();
        if wanted.is_empty() {
            return Ok(Self(BTreeMap::new()));
        }
        let read = move || Self(names.into_iter().zip(env_files::read_all(&wanted)).collect());
        blocking::run(Work::look(uid), read).await.map_err(StartRequestError::of)
    }
}

/// Everything that a container's variables refer to.
struct EnvSources {
    files: EnvFiles,
    objects: ContainerObjects,
}

impl env::EnvSources for EnvSources {
    fn config_map(&self, namespace: &str, name: &str) -> Result<&ConfigMap, env::LookupError> {
        self.objects.config_map(namespace, name)
    }
    fn secret(&self, namespace: &str, name: &str) -> Result<&Secret, env::LookupError> {
        self.objects.secret(namespace, name)
    }
    fn services(&self) -> Option<&[Service]> {
        self.objects.services()
    }
    fn env_file(&self, volume: &str, path: &str) -> Option<&env::EnvFile> {
        self.files.0.get(&(volume.to_owned(), path.to_owned()))
    }
}

fn container_of(start: &ContainerStart<'_>) -> Option<Container> {
    let spec = pod::spec(start.pod);
    if start.kind == ContainerKind::Ephemeral {
        let mut all = spec.ephemeral_containers.iter().flatten();
        return all.find(|c| c.name == start.name).map(pod::containers::from_ephemeral);
    }
    pod::containers::find(spec, start.name).map(|(_, container)| container.clone())
}

/// How many image volumes the container mounts, and in how many places.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go incrementImageVolumeMetrics
fn image_mounts(pod: &Pod, container: &Container) -> (usize, usize) {
    let volumes = pod::spec(pod).volumes.iter().flatten();
    let images: BTreeSet<&str> =
        volumes.filter(|v| v.image.is_some()).map(|v| v.name.as_str()).collect();
    let mounts = container.volume_mounts.iter().flatten().map(|mount| mount.name.as_str());
    let mounts: Vec<_> = mounts.filter(|name| images.contains(name)).collect();
    (BTreeSet::from_iter(&mounts).len(), mounts.len())
}

/// Id, attempt and addresses of the sandbox of the container.
fn sandbox_of(start: &ContainerStart<'_>) -> Result<(String, u32, Vec<IpAddr>), Failure> {
    if let Some(new) = start.sandbox {
        return Ok((new.id.clone(), new.attempt, new.ips.clone()));
    }
    let newest = start.order.observed.newest_sandbox();
    let newest = newest.ok_or_else(|| Failure::new("ContainerCreating", "there is no sandbox"))?;
    Ok((newest.id.as_str().to_owned(), newest.attempt, newest.ips.clone()))
}

// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go getTargetID
fn target_of(start: &ContainerStart<'_>) -> Result<Option<String>, StartRequestError> {
    if start.kind != ContainerKind::Ephemeral {
        return Ok(None);
    }
    let mut all = pod::spec(start.pod).ephemeral_containers.iter().flatten();
    let target = all.find(|c| c.name == start.name).and_then(|c| c.target_container_name.clone());
    let Some(target) = target.filter(|name| !name.is_empty()) else { return Ok(None) };
    match start.order.observed.latest(&target) {
        Some(found) => Ok(Some(found.id.as_str().to_owned())),
        None => Err(StartRequestError::NoTarget(target)),
    }
}

fn make_log_dir(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(paths::LOG_DIR_MODE).create(path)
}

/// Changes files of a pod where that may block; the error is a sentence.
async fn in_background<T: Send + 'static, E: std::fmt::Display + Send + 'static>(
    uid: &PodUid,
    change: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, StartRequestError> {
    match blocking::run(Work::change(uid), change).await {
        Ok(done) => done.map_err(StartRequestError::of),
        Err(blocked) => Err(StartRequestError::of(blocked)),
    }
}

/// Eight random hexadecimal digits.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go makeUID
fn random_hex() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let random = RandomState::new().build_hasher().finish();
    format!("{:08x}", random & 0xffff_ffff)
}

/// A device of a block volume, as the runtime takes it.
fn device(planned: PlannedDevice) -> v1::Device {
    v1::Device {
        container_path: planned.container_path,
        host_path: planned.host_path.to_string_lossy().into_owned(),
        permissions: planned.permissions.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn image_volume_mounts_are_counted_per_container() {
        let volume = |name: &str| json!({"name": name, "image": {"reference": "i"}});
        let mount = |name: &str| json!({"name": name, "mountPath": "/m"});
        let pod = json!({"spec": {
            "volumes": [volume("a"), volume("b"), {"name": "e", "emptyDir": {}}],
            "containers": [
                {"name": "twice", "volumeMounts": [mount("a"), mount("a"), mount("e")]},
                {"name": "none", "volumeMounts": [mount("e")]},
            ],
        }});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let counted = pod::spec(&pod).containers.iter().map(|c| image_mounts(&pod, c));
        assert_eq!(counted.collect::<Vec<_>>(), [(1, 2), (0, 0)]);
    }
}
