//! The recorded node and pods as inputs of the builders.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret, Service};
use pintle_agent_core::cgroup::formulas;
use pintle_agent_core::cgroup::formulas::LimitPolicy;
use pintle_agent_core::cgroup::names::{CgroupDriver, CgroupSetup, CgroupVersion};
use pintle_agent_core::env::variables::{EnvFile, EnvSources, LookupError};
use pintle_agent_core::observed::ObservedContainer;
use pintle_agent_core::observed::read_back;
use pintle_agent_core::request;
use pintle_agent_core::request::dns::NodeDns;
use pintle_agent_core::request::security::{ImageUser, SecurityPolicy};
use pintle_agent_core::request::{
    ContainerContext, Gates, NodeContext, PodContext, RuntimeHandler, SwapPolicy,
};
use pintle_agent_core::types::{ContainerKind, NodeFacts, SandboxId};
use pintle_agent_core::volume::{Claims, PodVolumes};
use pintle_api_types::pod;
use pintle_api_types::quantity::Amount;
use pintle_cri::v1;
use serde_json::{Value, json};

use crate::files;

/// The random name that the builder is given; recorded ones are replaced for the comparison.
const TERMINATION_FILE: &str = "<random>";
/// No limit of memory, as cgroup v1 shows it.
const MEMORY_UNLIMITED: &str = "9223372036854771712";

/// The node on which the recordings were made.
pub(crate) struct RecordedNode {
    /// As the builders want it.
    pub(crate) context: NodeContext,
    handler: RuntimeHandler,
    sources: RequestObjects,
}

impl RecordedNode {
    /// From the recorded configuration and the recorded Node object.
    pub(crate) fn recorded() -> Self {
        let config = files::of_node("configz.json");
        let config = &config["kubeletconfig"];
        let writes = files::of_node("node-writes.json");
        let status = &writes[0]["body"]["status"];
        let text = |name: &str| config[name].as_str().unwrap_or_default().to_owned();
        let facts = node_facts(&writes[0]["body"]);
        let list = |name: &str| config[name].as_array().cloned().unwrap_or_default();
        let limits = LimitPolicy {
            enforce_cpu_quota: config["cpuCFSQuota"] != json!(false),
            cpu_period_us: formulas::PERIOD_DEFAULT_US,
            pids_max: config["podPidsLimit"].as_i64().unwrap_or(-1),
            hugepage_sizes: facts.hugepage_sizes.clone(),
            memory_qos: None,
        };
        let context = NodeContext {
            root_dir: PathBuf::from("<root>"),
            pod_logs_dir: "<pod-logs>".to_owned(),
            dns: NodeDns {
                cluster_servers: list("clusterDNS").iter().map(address).collect(),
                cluster_domain: text("clusterDomain"),
                // Not recorded but for its one server, which the comparison leaves out.
                resolv_conf: Some("nameserver 192.0.2.53\n".to_owned()),
            },
            cgroup: CgroupSetup {
                root: "<cgroup-root>".to_owned(),
                driver: if text("cgroupDriver") == "systemd" {
                    CgroupDriver::Systemd
                } else {
                    CgroupDriver::Cgroupfs
                },
                version: CgroupVersion::V1,
                per_qos: config["cgroupsPerQOS"] != json!(false),
            },
            limits,
            swap: SwapPolicy { controller: true, limited: false, capacity_bytes: 0 },
            security: SecurityPolicy {
                seccomp_dir: "<root>/seccomp".to_owned(),
                seccomp_default: config["seccompDefault"] == json!(true),
                extra_masked_paths: Vec::new(),
            },
            single_process_oom_kill: config["singleProcessOOMKill"].as_bool(),
            selinux: false,
            gates: Gates::default(),
            facts,
        };
        let handlers = status["runtimeHandlers"].as_array().into_iter().flatten();
        let mut default = handlers.filter(|handler| handler["name"] == "");
        let features = default.next().map(|handler| handler["features"].clone());
        let features = features.unwrap_or_default();
        let handler = RuntimeHandler {
            name: String::new(),
            recursive_read_only: features["recursiveReadOnlyMounts"] == json!(true),
            user_namespaces: features["userNamespaces"] == json!(true),
        };
        Self { context, handler, sources: RequestObjects::recorded() }
    }
}

fn node_facts(node: &Value) -> NodeFacts {
    let amount = |kind: &str, name: &str| {
        let text = node["status"][kind][name].as_str().unwrap_or("0");
        Amount::parse(text).expect("a quantity")
    };
    let capacity = node["status"]["capacity"].as_object().cloned().unwrap_or_default();
    let sizes = capacity.keys().filter_map(|name| name.strip_prefix("hugepages-"));
    let sizes = sizes.map(|size| Amount::parse(size).expect("a size").units().unsigned_abs());
    let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
    let internal = addresses.filter(|address| address["type"] == "InternalIP");
    NodeFacts {
        name: node["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        host_ips: internal.map(|entry| address(&entry["address"])).collect(),
        memory_capacity_bytes: amount("capacity", "memory").units().unsigned_abs(),
        cpu_allocatable_millis: amount("allocatable", "cpu").millis().unsigned_abs(),
        memory_allocatable_bytes: amount("allocatable", "memory").units().unsigned_abs(),
        storage_allocatable_bytes: amount("allocatable", "ephemeral-storage")
            .units()
            .unsigned_abs(),
        hugepage_sizes: sizes.collect(),
        ..NodeFacts::default()
    }
}

fn address(value: &Value) -> IpAddr {
    value.as_str().unwrap_or_default().parse().expect("an address")
}

/// The objects that existed in the recorded cluster.
struct RequestObjects {
    map: ConfigMap,
    secret: Secret,
    services: Vec<Service>,
}

impl RequestObjects {
    fn recorded() -> Self {
        let map = json!({"data": {"k1": "v1", "k2": "v2"}});
        let secret = json!({"data": {"user": "Ym9i", "pass": "czNjcmV0"}});
        let service = json!({"metadata": {"name": "kubernetes", "namespace": "default"},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]}});
        Self {
            map: serde_json::from_value(map).expect("a config map"),
            secret: serde_json::from_value(secret).expect("a secret"),
            services: vec![serde_json::from_value(service).expect("a service")],
        }
    }
}

impl EnvSources for RequestObjects {
    fn config_map(&self, namespace: &str, name: &str) -> Result<&ConfigMap, LookupError> {
        let found = (namespace, name) == ("gold", "cm1");
        found.then_some(&self.map).ok_or(LookupError::NotFound)
    }
    fn secret(&self, namespace: &str, name: &str) -> Result<&Secret, LookupError> {
        let found = (namespace, name) == ("gold", "sec1");
        found.then_some(&self.secret).ok_or(LookupError::NotFound)
    }
    fn services(&self) -> Option<&[Service]> {
        Some(&self.services)
    }
    fn env_file(&self, _: &str, _: &str) -> Option<&EnvFile> {
        None
    }
}

/// One recorded pod.
pub(crate) struct PodRecording {
    /// Its name.
    pub(crate) name: String,
    /// The object as the agent sees it.
    pub(crate) pod: Pod,
    /// Its CRI calls in order.
    pub(crate) calls: Vec<Value>,
    ips: Vec<IpAddr>,
    file: Value,
}

impl PodRecording {
    /// Reads a recording. For a pod that was gone before it was read again it uses the manifest.
    pub(crate) fn of_pod(name: &str, file: &Value) -> Self {
        let seen = match &file["pod_when_seen"] {
            Value::Object(_) => &file["pod_when_seen"],
            _ => &file["manifest"],
        };
        let mut pod: Pod = serde_json::from_value(seen.clone()).expect("a pod");
        // Its class must follow from the spec; the written status is no input.
        pod.status = None;
        let notes = pod.metadata.annotations.get_or_insert_default();
        notes.entry(pod::ANNOTATION_SOURCE.to_owned()).or_insert_with(|| "api".to_owned());
        notes.entry(pod::ANNOTATION_SEEN.to_owned()).or_insert_with(|| "<time>".to_owned());
        let ips = seen["status"]["podIPs"].as_array().into_iter().flatten();
        let ips = ips.map(|entry| address(&entry["ip"])).collect();
        let calls = file["cri_calls"].as_array().cloned().unwrap_or_default();
        Self { name: name.to_owned(), pod, calls, ips, file: file.clone() }
    }

    /// The builders' context of the pod.
    pub(crate) fn context<'a>(&'a self, node: &'a RecordedNode, attempt: u32) -> PodContext<'a> {
        PodContext {
            node: &node.context,
            pod: &self.pod,
            attempt,
            handler: &node.handler,
            users: None,
            extra_groups: &[],
            pod_ips: &self.ips,
            exclusive_cpus: false,
        }
    }

    /// A container of the spec, an ephemeral one included.
    pub(crate) fn container(&self, name: &str) -> Container {
        let spec = pod::spec(&self.pod);
        let ephemeral = spec.ephemeral_containers.iter().flatten().find(|c| c.name == name);
        ephemeral
            .map(pod::containers::from_ephemeral)
            .or_else(|| pod::containers::find(spec, name).map(|(_, container)| container.clone()))
            .unwrap_or_else(|| panic!("{} has no container {name}", self.name))
    }

    /// True for an init container that keeps running.
    pub(crate) fn is_sidecar(&self, name: &str) -> bool {
        let spec = pod::spec(&self.pod);
        pod::containers::find(spec, name).is_some_and(|(kind, _)| kind == ContainerKind::Sidecar)
    }

    /// A container as the runtime would show it: read back from the recorded request.
    pub(crate) fn observed(&self, name: &str) -> ObservedContainer {
        let made = self.calls.iter().find(|call| {
            let metadata = &call["request"]["config"]["metadata"];
            call["method"] == "CreateContainer" && metadata["name"] == name
        });
        let config =
            &made.unwrap_or_else(|| panic!("{name} was never created"))["request"]["config"];
        let map = |value: &Value| serde_json::from_value(value.clone()).expect("a map of text");
        let status = v1::ContainerStatus {
            id: name.to_owned(),
            labels: map(&config["labels"]),
            annotations: map(&config["annotations"]),
            ..Default::default()
        };
        let read = read_back::container(&status, &SandboxId::from("s"));
        read.expect("labels of a container").1
    }

    /// Builds a container's configuration. `want` has values that only the runtime knows: the
    /// image's id and, where the spec does not name it, the image's user.
    pub(crate) fn container_config(
        &self,
        node: &RecordedNode,
        name: &str,
        attempt: u32,
        want: &Value,
        ids: &BTreeMap<String, String>,
    ) -> anyhow::Result<v1::ContainerConfig> {
        let container = self.container(name);
        let user = image_user(want);
        let ephemeral = pod::spec(&self.pod).ephemeral_containers.iter().flatten();
        let target =
            ephemeral.filter(|c| c.name == name).find_map(|c| c.target_container_name.clone());
        let pod_context = self.context(node, 0);
        let images = image_ids(want);
        let mut ctx = ContainerContext {
            container: &container,
            restart_count: attempt,
            image_ref: want["config"]["image"]["image"].as_str().unwrap_or_default(),
            image_user: &user,
            target_id: target.and_then(|target| ids.get(&target)).map(String::as_str),
            mounts: &[],
            images: &images,
            termination_file: TERMINATION_FILE,
            sources: &node.sources,
            devices: &[],
            cdi_devices: &[],
            annotations: &BTreeMap::new(),
            exclusive_cpus: false,
        };
        let facts = &node.context.facts;
        let environment = request::container_environment(&pod_context, &ctx);
        let environment = environment?.to_map();
        let root = &node.context.root_dir;
        let volumes = PodVolumes::plan(root, facts, &self.pod, &Claims::default());
        let supported = node.handler.recursive_read_only;
        let mounts = volumes.mounts(&container, &environment, supported);
        let mounts = mounts?;
        ctx.mounts = &mounts;
        Ok(request::container_config(&pod_context, &ctx)?)
    }

    /// Containers that wait with `CreateContainerConfigError`, and the message.
    pub(crate) fn config_errors(&self) -> Vec<(String, String)> {
        let status = &self.file["pod_when_seen"]["status"];
        let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
        let all = lists.iter().flat_map(|list| status[*list].as_array().into_iter().flatten());
        let waiting = all.filter(|container| {
            container["state"]["waiting"]["reason"] == request::ConfigError::REASON
        });
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        waiting.map(|c| (text(&c["name"]), text(&c["state"]["waiting"]["message"]))).collect()
    }

    /// Calls of StopContainer: the container's name and the timeout.
    pub(crate) fn stops(&self) -> Vec<(String, i64)> {
        let of =
            |method: &'static str| self.calls.iter().filter(move |call| call["method"] == method);
        let name_of = |id: &Value| {
            let made =
                of("CreateContainer").find(|call| &call["response"]["container_id"] == id)?;
            Some(made["request"]["config"]["metadata"]["name"].as_str()?.to_owned())
        };
        let stops = of("StopContainer").filter_map(|call| {
            let timeout = call["request"]["timeout"].as_str().unwrap_or("0");
            let timeout = timeout.parse().expect("a number of seconds");
            Some((name_of(&call["request"]["container_id"])?, timeout))
        });
        stops.collect()
    }

    /// The recorded text of the pod's hosts file.
    pub(crate) fn hosts_file(&self) -> Option<String> {
        let files = self.file["pod_dir"].as_array()?;
        let hosts = files.iter().find(|file| file["path"] == "etc-hosts")?;
        Some(hosts["content"].as_str()?.to_owned())
    }

    /// True for a name server that the pod or the cluster named, not the host.
    pub(crate) fn names_server(&self, server: &str) -> bool {
        let own = pod::spec(&self.pod).dns_config.as_ref();
        let own = own.and_then(|own| own.nameservers.as_ref()).into_iter().flatten();
        let config = files::of_node("configz.json");
        let cluster = config["kubeletconfig"]["clusterDNS"].as_array().cloned().unwrap_or_default();
        own.map(String::as_str).any(|name| name == server) || cluster.iter().any(|c| c == server)
    }

    /// Files of the pod's own cgroup (v1): name, recorded and computed value.
    pub(crate) fn cgroup_values(&self, node: &RecordedNode) -> Vec<(String, String, String)> {
        let uid = pod::uid(&self.pod);
        let path = node.context.cgroup.pod(pod::qos::class_of(&self.pod), &uid);
        let path = path.trim_start_matches('/');
        let limits = formulas::pod_limits(&request::pod_amounts(&self.pod), &node.context.limits);
        let or = |value: Option<i64>, none: &str| match value {
            None | Some(0) => none.to_owned(),
            Some(value) => value.to_string(),
        };
        let period = limits.cpu_period_us.map_or(formulas::PERIOD_DEFAULT_US, u64::cast_signed);
        let computed = [
            ("cpu", "cpu.shares", limits.cpu_shares.unwrap_or(1024).to_string()),
            ("cpu", "cpu.cfs_quota_us", or(limits.cpu_quota_us, "-1")),
            ("cpu", "cpu.cfs_period_us", period.to_string()),
            ("memory", "memory.limit_in_bytes", or(limits.memory_limit, MEMORY_UNLIMITED)),
            ("pids", "pids.max", or(limits.pids_max, "max")),
        ];
        let recorded = |controller: &str, file: &str| {
            let value = &self.file["cgroups"][format!("{controller}:{path}")][file];
            value.as_str().map(str::to_owned)
        };
        let pairs = computed.into_iter().filter_map(|(controller, file, got)| {
            Some((file.to_owned(), recorded(controller, file)?, got))
        });
        pairs.collect()
    }
}

/// Ids of images that are mounted as volumes, which only the runtime knows.
fn image_ids(want: &Value) -> BTreeMap<String, String> {
    let mounts = want["config"]["mounts"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let ids = mounts.filter_map(|mount| {
        Some((text(&mount["image"]["user_specified_image"])?, text(&mount["image"]["image"])?))
    });
    ids.collect()
}

/// The image's user, seen in the recorded request where the spec names none.
fn image_user(want: &Value) -> ImageUser {
    let security = &want["config"]["linux"]["security_context"];
    match (security["run_as_username"].as_str(), security["run_as_user"]["value"].as_str()) {
        (Some(name), _) => ImageUser::Name(name.to_owned()),
        (None, Some(uid)) => ImageUser::Id(uid.parse().expect("a user id")),
        (None, None) => ImageUser::Id(0),
    }
}
