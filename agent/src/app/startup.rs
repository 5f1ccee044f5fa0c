//! The block of log lines with which the agent says what it is and where it runs.
//!
//! Input: the configuration, the runtime's answers, the layout of cgroups and the source of events.
//! Output: five to six lines, logged once, when the agent is up. A setting that is read without
//! effect has a warning with its reason before; the last line repeats its name and adds settings
//! that have no effect on this node alone. Pure but for `log`.

use std::path::Path;

use pintle_agent_config::{Config, EventSource, modes};
use pintle_agent_core::cgroup::names::{CgroupDriver, CgroupSetup, CgroupVersion};
use pintle_agent_core::request::runtime::RuntimeFacts;
use pintle_agent_core::types::RuntimeHandler;
use pintle_agent_host::node::context;
use pintle_ebpf::Mode;

/// Set where the program is built, because its sources need not be a repository.
const COMMIT: Option<&str> = option_env!("PINTLE_COMMIT");
/// The first release of containerd that mounts images as volumes.
const IMAGE_VOLUMES_SINCE: (u32, u32) = (2, 1);
/// Separates a setting's name from the rest of its warning.
const NO_EFFECT: (&str, &str) = (" is set to ", ", which has no effect");

/// What the agent found when it started.
pub(super) struct Startup<'a> {
    /// The configuration.
    pub(super) config: &'a Config,
    /// The runtime's answers.
    pub(super) runtime: &'a RuntimeFacts,
    /// The layout of cgroups, with the driver in use.
    pub(super) cgroup: &'a CgroupSetup,
    /// Where events of containers come from.
    pub(super) events: Mode,
    /// True if the kernel reports pressure.
    pub(super) has_psi: bool,
}

impl<'a> Startup<'a> {
    /// Adds what the host shows.
    pub(super) fn new(
        config: &'a Config,
        runtime: &'a RuntimeFacts,
        cgroup: &'a CgroupSetup,
        events: Mode,
    ) -> Self {
        let has_psi = Path::new("/proc/pressure/memory").exists();
        Self { config, runtime, cgroup, events, has_psi }
    }

    /// Logs the block.
    pub(super) fn log(&self) {
        self.lines().iter().for_each(|line| tracing::info!("{line}"));
    }

    fn lines(&self) -> Vec<String> {
        let version = pintle_agent_config::version();
        let version = version.trim().trim_start_matches("Kubernetes ");
        let (commit, node) = (COMMIT.unwrap_or("unknown"), &self.config.node_name);
        let mut lines = vec![
            format!("pintle-agent {version}, commit {commit}, is up as node {node}"),
            self.cluster(),
            self.runtime(),
            self.cgroups(),
            self.events(),
        ];
        let settings = self.without_effect();
        if !settings.is_empty() {
            lines.push(format!("settings without effect here: {}", settings.join(", ")));
        }
        lines
    }

    fn cluster(&self) -> String {
        match &self.config.flags.kubeconfig {
            Some(path) => format!("API server: the one that {} names", path.display()),
            None => "API server: none, only static pods run (no --kubeconfig)".to_owned(),
        }
    }

    fn runtime(&self) -> String {
        let RuntimeFacts { name, version, .. } = self.runtime;
        let endpoint = &self.config.kubelet.container_runtime_endpoint;
        let default = self.runtime.handlers.iter().find(|handler| handler.name.is_empty());
        let has = |of: fn(&RuntimeHandler) -> bool| default.is_some_and(of);
        let features = [
            ("user namespaces", has(|handler| handler.user_namespaces)),
            ("recursive read-only mounts", has(|handler| handler.recursive_read_only)),
            ("supplementalGroupsPolicy", self.runtime.supplemental_groups_policy),
            ("image volumes", has_image_volumes(self.runtime)),
        ];
        let of = |wanted: bool| {
            let found = features.iter().filter(|(_, offered)| *offered == wanted);
            let names: Vec<_> = found.map(|(name, _)| *name).collect();
            if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
        };
        format!("runtime: {name} {version} at {endpoint}; offers {}; lacks {}", of(true), of(false))
    }

    fn cgroups(&self) -> String {
        let version = match self.cgroup.version {
            CgroupVersion::V1 => 1,
            CgroupVersion::V2 => 2,
        };
        let (used, configured) = (self.cgroup.driver, context::configured_driver(self.config));
        let by = match self.runtime.cgroup_driver {
            Some(_) if used != configured => {
                format!("as the runtime uses it, not {} as configured", word(configured))
            }
            Some(_) => "as the runtime uses it".to_owned(),
            None => "as configured".to_owned(),
        };
        format!("cgroups: version {version}, driver {}, {by}", word(used))
    }

    fn events(&self) -> String {
        let source = match self.events {
            Mode::Ebpf { .. } => "programs in the kernel (ebpf)",
            Mode::Pidfd => "descriptors of processes (pidfd)",
            Mode::Relist => "a list of all containers each second (relist)",
        };
        let wanted = self.config.flags.event_source;
        let why = match (self.events, wanted) {
            (Mode::Pidfd, EventSource::Auto | EventSource::Ebpf) => ": the kernel refuses eBPF",
            (Mode::Relist, EventSource::Relist) => ": set by --pintle-events",
            (Mode::Relist, _) => ": the kernel offers nothing better",
            _ => "",
        };
        format!("events of containers: {source}{why}")
    }

    /// Names of settings that are read and change nothing here, with the reason where no warning
    /// has it.
    fn without_effect(&self) -> Vec<String> {
        let (begin, end) = NO_EFFECT;
        let warned = self.config.warnings.iter().filter(|warning| warning.contains(end));
        let names = warned.filter_map(|warning| Some(warning.split_once(begin)?.0.to_owned()));
        let mut settings: Vec<String> = names.collect();
        let mut add = |name: &str, why: &str| {
            if !settings.iter().any(|setting| setting == name) {
                settings.push(format!("{name} ({why})"));
            }
        };
        let is_v1 = self.cgroup.version == CgroupVersion::V1;
        let swap = self.config.kubelet.memory_swap.swap_behavior;
        if is_v1 && swap == modes::SwapBehavior::LimitedSwap {
            add("memorySwap.swapBehavior", "cgroup version 1 cannot limit swap");
        }
        if is_v1 && self.config.kubelet.single_process_oom_kill == Some(true) {
            add("singleProcessOOMKill", "cgroup version 1 never kills a whole container");
        }
        if is_v1 && self.config.gates.enabled("MemoryQoS") {
            add("MemoryQoS", "cgroup version 1 has no memory.high");
        }
        if self.config.flags.psi_eviction && !self.has_psi {
            add("--pintle-psi-eviction", "the kernel reports no pressure");
        }
        settings
    }
}

fn word(driver: CgroupDriver) -> &'static str {
    match driver {
        CgroupDriver::Systemd => "systemd",
        CgroupDriver::Cgroupfs => "cgroupfs",
    }
}

/// containerd does not report this feature. Another runtime counts as having it: it refuses the
/// container otherwise.
fn has_image_volumes(runtime: &RuntimeFacts) -> bool {
    if runtime.name != "containerd" {
        return true;
    }
    let mut numbers = runtime.version.trim_start_matches('v').split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= IMAGE_VOLUMES_SINCE,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use pintle_agent_config::Command;
    use pintle_ebpf::Programs;

    use super::*;

    fn config(flags: &[&str]) -> Config {
        let args = ["pintle-agent", "--hostname-override=n1"].iter().chain(flags);
        match pintle_agent_config::parse(args.map(Into::into)) {
            Ok(Command::Run(config)) => *config,
            other => panic!("{flags:?} gives {other:?}"),
        }
    }

    fn runtime(version: &str, is_able: bool) -> RuntimeFacts {
        let handler = RuntimeHandler {
            name: String::new(),
            recursive_read_only: is_able,
            user_namespaces: is_able,
        };
        RuntimeFacts {
            name: "containerd".to_owned(),
            version: version.to_owned(),
            handlers: vec![handler],
            supplemental_groups_policy: is_able,
            cgroup_driver: is_able.then_some(CgroupDriver::Systemd),
        }
    }

    fn lines(config: &Config, runtime: &RuntimeFacts, setup: (CgroupVersion, Mode)) -> Vec<String> {
        let (version, events) = setup;
        let driver = runtime.cgroup_driver.unwrap_or(CgroupDriver::Cgroupfs);
        let cgroup = CgroupSetup { version, driver, ..CgroupSetup::default() };
        Startup { config, runtime, cgroup: &cgroup, events, has_psi: false }.lines()
    }

    #[test]
    fn a_node_of_today_is_described_in_five_lines() {
        let flags = ["--kubeconfig=/k.conf", "--cgroup-driver=systemd"];
        let ebpf = Mode::Ebpf { programs: Programs::ALL };
        let lines = lines(&config(&flags), &runtime("2.4.2", true), (CgroupVersion::V2, ebpf));
        assert_eq!(lines.len(), 5, "{lines:#?}");
        let version = pintle_agent_config::version();
        let version = version.trim().trim_start_matches("Kubernetes ");
        assert!(lines[0].starts_with(&format!("pintle-agent {version}, commit ")), "{}", lines[0]);
        assert!(lines[0].ends_with(" is up as node n1"), "{}", lines[0]);
        assert_eq!(lines[1], "API server: the one that /k.conf names");
        assert!(lines[2].starts_with("runtime: containerd 2.4.2 at unix://"), "{}", lines[2]);
        assert!(lines[2].ends_with("image volumes; lacks nothing"), "{}", lines[2]);
        assert_eq!(lines[3], "cgroups: version 2, driver systemd, as the runtime uses it");
        assert_eq!(lines[4], "events of containers: programs in the kernel (ebpf)");
    }

    #[test]
    fn missing_node_features_are_logged_at_the_start() {
        let flags = [
            "--pintle-psi-eviction",
            "--cgroup-driver=systemd",
            "--cpu-manager-policy=static",
            "--reserved-cpus=0",
        ];
        let config = config(&flags);
        let old = runtime("1.7.24", false);
        let lines = lines(&config, &old, (CgroupVersion::V1, Mode::Pidfd));
        assert_eq!(lines[1], "API server: none, only static pods run (no --kubeconfig)");
        let lacks = "offers nothing; lacks user namespaces, recursive read-only mounts, \
                     supplementalGroupsPolicy, image volumes";
        assert!(lines[2].ends_with(lacks), "{}", lines[2]);
        assert_eq!(lines[3], "cgroups: version 1, driver cgroupfs, as configured");
        assert!(lines[4].ends_with("(pidfd): the kernel refuses eBPF"), "{}", lines[4]);
        let psi = "--pintle-psi-eviction (the kernel reports no pressure)";
        assert!(lines[5].starts_with("settings without effect here: "), "{lines:#?}");
        assert!(lines[5].contains(psi), "{}", lines[5]);
        for warning in config.warnings.iter().filter(|warning| warning.contains(NO_EFFECT.1)) {
            let name = warning.split(NO_EFFECT.0).next().expect("a name");
            assert!(lines[5].contains(name), "{name}: {}", lines[5]);
        }
    }

    #[test]
    fn cgroup_driver_of_the_runtime_that_differs_from_the_configured_one_is_logged() {
        let new = runtime("2.3.7", true);
        let lines = lines(&config(&[]), &new, (CgroupVersion::V2, Mode::Relist));
        let text = "cgroups: version 2, driver systemd, as the runtime uses it, not cgroupfs as \
                    configured";
        assert_eq!(lines[3], text);
        assert!(lines[4].ends_with(": the kernel offers nothing better"), "{}", lines[4]);
    }

    #[test]
    fn image_volume_support_is_derived_from_the_containerd_version() {
        for (version, expected) in
            [("1.7.24", false), ("2.0.5", false), ("2.1.9", true), ("v2.4.2", true), ("x", true)]
        {
            assert_eq!(has_image_volumes(&runtime(version, true)), expected, "{version}");
        }
    }
}
