//! Node allocatable: limits all pods together, and the host's own cgroups, at the start.
//!
//! Effects of `cgroup::reserve`. The limit of all pods is retried each minute until the kernel
//! accepts it, because running pods may use more than that, and set again when the cgroup was made
//! anew, which the kubelet does at its next start. A cgroup of the host that cannot be
//! limited ends the agent, as it ends the kubelet, because the reservation would not hold. So does
//! a reservation of more than the machine has, and a `cgroupRoot` that does not exist.
// k8s: pkg/kubelet/cm/node_container_manager_linux.go enforceNodeAllocatableCgroups

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pintle_agent_config::Config;
use pintle_agent_core::cgroup::CgroupLimits;
use pintle_agent_core::cgroup::names::CgroupSetup;
use pintle_agent_core::cgroup::reserve;
use pintle_agent_core::cgroup::reserve::ReservedCgroup;
use pintle_agent_core::node::capacity;
use pintle_agent_core::node::conditions::NodeEvent;
use pintle_agent_core::node::conditions::NodeEvents;
use pintle_agent_core::node::settings::CapacitySettings;
use pintle_agent_core::types::with_causes;
use pintle_agent_host::cgroup::Cgroups;
use pintle_agent_host::node::host;

/// Wait before refused limits are retried, and between checks of the cgroup.
const RETRY: Duration = Duration::from_secs(60);

/// Applies the limits; returns once the host's cgroups have theirs.
pub(super) async fn enforce(
    config: &Config,
    setup: &CgroupSetup,
    cgroups: Option<Rc<Cgroups>>,
    emit: &NodeEvents,
) -> Result<()> {
    // Other log lines of the start come first.
    tokio::task::yield_now().await;
    let machine = host::read(&config.flags.root_dir);
    if let Some(why) = capacity::over_reserved(&CapacitySettings::of(config), &machine) {
        bail!(why);
    }
    if let Some(cgroups) = cgroups {
        if !cgroups.has_root() {
            bail!(
                "cgroupRoot: there is no cgroup {} in every hierarchy; make it before the agent \
                 starts, or take another cgroupRoot",
                setup.root
            );
        }
        let made = cgroups.ensure_tree().await;
        made.context("cgroupsPerQOS: the cgroups of all pods cannot be made")?;
        let limits = reserve::of_pods(config, &machine, setup);
        pintle_daemon::tasks::singleton(
            "node allocatable",
            limit_pods(cgroups, limits, Rc::clone(emit)),
        );
    }
    let of_host = reserve::of_host(config, &machine);
    if of_host.is_empty() {
        return Ok(());
    }
    // Their names do not begin at cgroupRoot.
    let top = CgroupSetup { root: "/".to_owned(), ..setup.clone() };
    let cgroups = Cgroups::of(&top).context("enforceNodeAllocatable")?;
    for reserved in of_host {
        limit_host(&cgroups, &top, &reserved, emit).await?;
    }
    Ok(())
}

/// Limits the cgroup of all pods, and again when another cgroup has taken its place: systemd forgets
/// the limits of a stopped slice, and makes the slice again with the next pod.
async fn limit_pods(cgroups: Rc<Cgroups>, limits: CgroupLimits, emit: NodeEvents) {
    let name = cgroups.all_pods().to_owned();
    let id = async || cgroups.on_disk(&name, |tree, name| tree.id(name, "memory")).await.ok();
    let mut limited = None;
    loop {
        if limited.is_none() || id().await != limited {
            match cgroups.limit_all_pods(&limits).await {
                Ok(()) => {
                    limited = id().await;
                    let message = "Updated Node Allocatable limit across pods".to_owned();
                    emit(event(false, message));
                }
                Err(error) => {
                    let error = with_causes(&error);
                    let message =
                        format!("Failed to update Node Allocatable Limits {name:?}: {error}");
                    emit(event(true, message));
                }
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn limit_host(
    cgroups: &Cgroups,
    top: &CgroupSetup,
    reserved: &ReservedCgroup,
    emit: &NodeEvents,
) -> Result<()> {
    let ReservedCgroup { field, word, what, cgroup, limits } = reserved;
    let path = top.of_host(cgroup);
    let name = path.trim_start_matches('/');
    let limited = match cgroups.exists(name) {
        true => cgroups.update_pod(name, limits).await.map_err(|error| with_causes(&error)),
        false => Err(format!(
            "{field}: there is no cgroup {path}; make it before the agent starts, or take {word} \
             out of enforceNodeAllocatable"
        )),
    };
    if let Err(error) = limited {
        let message = format!("Failed to enforce {what} Cgroup Limits on {cgroup:?}: {error}");
        emit(event(true, message.clone()));
        bail!(message);
    }
    let owner = if field.starts_with("system") { "system" } else { "kube" };
    emit(event(false, format!("Updated limits on {owner} reserved cgroup {cgroup}")));
    Ok(())
}

fn event(warning: bool, message: String) -> NodeEvent {
    let reason =
        if warning { "FailedNodeAllocatableEnforcement" } else { "NodeAllocatableEnforced" };
    NodeEvent { warning, reason, message }
}
