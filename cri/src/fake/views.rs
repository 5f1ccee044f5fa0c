//! Reads of the fake runtime's state: lists, statuses, statistics, as containerd answers them.
//! Pure: `&State` in, reply out.

use std::collections::BTreeMap;

use tonic::Status;

use super::state::{FakeContainer, Nanos, Sandbox, State, container_not_found};
use crate::v1::*;

impl State {
    /// Sandboxes that match the filter, oldest first.
    pub fn list_pod_sandbox(&self, filter: Option<&PodSandboxFilter>) -> Vec<PodSandbox> {
        let all = self.sandboxes.values().map(Sandbox::item);
        let Some(filter) = filter else { return all.collect() };
        all.filter(|item| {
            (filter.id.is_empty() || item.id == filter.id)
                && filter.state.is_none_or(|wanted| wanted.state == item.state)
                && has_labels(&item.labels, &filter.label_selector)
        })
        .collect()
    }

    /// Containers that match the filter, oldest first.
    pub fn list_containers(&self, filter: Option<&ContainerFilter>) -> Vec<Container> {
        let all = self.containers.values().map(FakeContainer::item);
        let Some(filter) = filter else { return all.collect() };
        all.filter(|item| {
            (filter.id.is_empty() || item.id == filter.id)
                && (filter.pod_sandbox_id.is_empty()
                    || item.pod_sandbox_id == filter.pod_sandbox_id)
                && filter.state.is_none_or(|wanted| wanted.state == item.state)
                && has_labels(&item.labels, &filter.label_selector)
        })
        .collect()
    }

    /// One sandbox. With container statuses and a timestamp, as runtimes with events send them.
    pub fn pod_sandbox_status(
        &self,
        request: &PodSandboxStatusRequest,
        now: Nanos,
        with_containers: bool,
    ) -> Result<PodSandboxStatusResponse, Status> {
        let id = &request.pod_sandbox_id;
        let sandbox = self.sandboxes.get(id).ok_or_else(|| {
            Status::not_found(format!(
                "an error occurred when try to find sandbox {id:?}: not found"
            ))
        })?;
        let linux = sandbox.config.linux.as_ref();
        let parent = linux.map(|linux| linux.cgroup_parent.as_str()).unwrap_or_default();
        let spec = runtime_spec(parent, id, "network", &format!("/run/netns/{id}"));
        let info = format!(
            r#"{{"pid":{},"runtimeHandler":"{}","runtimeSpec":{spec}}}"#,
            1, sandbox.handler
        );
        Ok(PodSandboxStatusResponse {
            status: Some(sandbox.status()),
            info: verbose_info(request.verbose, info),
            containers_statuses: match with_containers {
                true => self.statuses_of(id),
                false => Vec::new(),
            },
            timestamp: if with_containers { now } else { 0 },
        })
    }

    /// One container.
    pub fn container_status(
        &self,
        request: &ContainerStatusRequest,
    ) -> Result<ContainerStatusResponse, Status> {
        let id = &request.container_id;
        let entry = self.containers.get(id).ok_or_else(|| container_not_found(id))?;
        let sandbox = self.sandboxes.get(&entry.sandbox_id);
        let linux = sandbox.and_then(|sandbox| sandbox.config.linux.as_ref());
        let parent = linux.map(|linux| linux.cgroup_parent.as_str()).unwrap_or_default();
        let spec = runtime_spec(parent, id, "pid", "");
        let info = format!(
            r#"{{"sandboxID":"{}","pid":{},"runtimeSpec":{spec}}}"#,
            entry.sandbox_id, entry.pid
        );
        Ok(ContainerStatusResponse {
            status: Some(entry.status.clone()),
            info: verbose_info(request.verbose, info),
        })
    }

    /// `namespace/pod/container`, `namespace/pod`, or the id itself when it is unknown.
    pub fn name_of(&self, id: &str) -> String {
        if let Some(entry) = self.containers.get(id) {
            return entry.name.clone();
        }
        let metadata = self.sandboxes.get(id).and_then(|s| s.config.metadata.as_ref());
        metadata.map_or_else(|| id.to_owned(), |m| format!("{}/{}", m.namespace, m.name))
    }

    /// The newest container of that `namespace/pod/container`.
    pub fn container_named(&self, name: &str) -> Option<ContainerStatus> {
        let newest = self.containers.values().rev().find(|entry| entry.name == name);
        newest.map(|entry| entry.status.clone())
    }

    /// Usage of containers: made up, but the same for equal states.
    pub fn container_stats(
        &self,
        filter: &ContainerStatsFilter,
        now: Nanos,
    ) -> Vec<ContainerStats> {
        let running = self.containers.values().filter(|entry| {
            entry.pid != 0
                && (filter.id.is_empty() || entry.id == filter.id)
                && (filter.pod_sandbox_id.is_empty() || entry.sandbox_id == filter.pod_sandbox_id)
                && has_labels(&entry.config.labels, &filter.label_selector)
        });
        running.map(|entry| entry.stats(now)).collect()
    }

    /// Usage of pods.
    pub fn pod_sandbox_stats(
        &self,
        filter: &PodSandboxStatsFilter,
        now: Nanos,
    ) -> Vec<PodSandboxStats> {
        let matching = self.sandboxes.values().filter(|sandbox| {
            sandbox.ready
                && (filter.id.is_empty() || sandbox.id == filter.id)
                && has_labels(&sandbox.config.labels, &filter.label_selector)
        });
        matching
            .map(|sandbox| {
                let of = ContainerStatsFilter {
                    pod_sandbox_id: sandbox.id.clone(),
                    ..Default::default()
                };
                PodSandboxStats {
                    attributes: Some(PodSandboxAttributes {
                        id: sandbox.id.clone(),
                        metadata: sandbox.config.metadata.clone(),
                        labels: sandbox.config.labels.clone(),
                        annotations: sandbox.config.annotations.clone(),
                    }),
                    linux: Some(LinuxPodSandboxStats {
                        containers: self.container_stats(&of, now),
                        ..Default::default()
                    }),
                    windows: None,
                }
            })
            .collect()
    }

    /// Conditions of the runtime: ready unless a test sets others.
    pub fn status(&self) -> StatusResponse {
        let condition = |kind: &str| {
            let (status, reason) =
                self.conditions.get(kind).cloned().unwrap_or((true, String::new()));
            RuntimeCondition { r#type: kind.into(), status, reason, message: String::new() }
        };
        let able = self.able;
        let features =
            RuntimeHandlerFeatures { recursive_read_only_mounts: able, user_namespaces: able };
        StatusResponse {
            status: Some(RuntimeStatus {
                conditions: vec![condition("RuntimeReady"), condition("NetworkReady")],
            }),
            runtime_handlers: ["", "runc"]
                .map(|name| RuntimeHandler { name: name.into(), features: Some(features) })
                .into(),
            features: Some(RuntimeFeatures {
                supplemental_groups_policy: able,
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    /// Usage of the image file system.
    pub fn image_fs_info(&self, now: Nanos) -> ImageFsInfoResponse {
        let (bytes, inodes) = self.images.bytes();
        let usage = |name: &str| FilesystemUsage {
            timestamp: now,
            fs_id: Some(FilesystemIdentifier { mountpoint: format!("/var/lib/fake/{name}") }),
            used_bytes: Some(UInt64Value { value: bytes }),
            inodes_used: Some(UInt64Value { value: inodes }),
        };
        ImageFsInfoResponse {
            image_filesystems: vec![usage("images")],
            container_filesystems: vec![usage("images")],
        }
    }

    pub(super) fn statuses_of(&self, sandbox: &str) -> Vec<ContainerStatus> {
        let own = self.containers.values().filter(|entry| entry.sandbox_id == sandbox);
        own.map(|entry| entry.status.clone()).collect()
    }
}

impl Sandbox {
    fn state(&self) -> PodSandboxState {
        match self.ready {
            true => PodSandboxState::SandboxReady,
            false => PodSandboxState::SandboxNotready,
        }
    }

    fn item(&self) -> PodSandbox {
        PodSandbox {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state().into(),
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.handler.clone(),
        }
    }

    pub(super) fn status(&self) -> PodSandboxStatus {
        let context = self.config.linux.as_ref().and_then(|l| l.security_context.as_ref());
        let options = context.and_then(|context| context.namespace_options.clone());
        PodSandboxStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state().into(),
            created_at: self.created_at,
            network: Some(PodSandboxNetworkStatus {
                ip: self.ip.clone(),
                additional_ips: Vec::new(),
            }),
            linux: Some(LinuxPodSandboxStatus { namespaces: Some(Namespace { options }) }),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.handler.clone(),
        }
    }
}

impl FakeContainer {
    fn item(&self) -> Container {
        Container {
            id: self.id.clone(),
            pod_sandbox_id: self.sandbox_id.clone(),
            metadata: self.config.metadata.clone(),
            image: self.config.image.clone(),
            image_ref: self.status.image_ref.clone(),
            state: self.status.state,
            created_at: self.status.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            image_id: self.image_id.clone(),
        }
    }

    fn stats(&self, now: Nanos) -> ContainerStats {
        let value = |value| Some(UInt64Value { value });
        ContainerStats {
            attributes: Some(ContainerAttributes {
                id: self.id.clone(),
                metadata: self.config.metadata.clone(),
                labels: self.config.labels.clone(),
                annotations: self.config.annotations.clone(),
            }),
            cpu: Some(CpuUsage {
                timestamp: now,
                usage_core_nano_seconds: value(u64::from(self.pid)),
                ..Default::default()
            }),
            memory: Some(MemoryUsage {
                timestamp: now,
                working_set_bytes: value(u64::from(self.pid) * 4096),
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}

fn has_labels(labels: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// The part of an OCI runtime spec with cgroup path and namespace.
fn runtime_spec(parent: &str, id: &str, kind: &str, path: &str) -> String {
    let namespace = match path {
        "" => format!(r#"{{"type":"{kind}"}}"#),
        path => format!(r#"{{"type":"{kind}","path":"{path}"}}"#),
    };
    let cgroup = format!("{}/{id}", parent.trim_end_matches('/'));
    format!(r#"{{"linux":{{"cgroupsPath":"{cgroup}","namespaces":[{namespace}]}}}}"#)
}

fn verbose_info(verbose: bool, json: String) -> BTreeMap<String, String> {
    if verbose { BTreeMap::from([("info".to_owned(), json)]) } else { BTreeMap::new() }
}
