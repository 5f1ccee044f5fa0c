//! In which order limits are written, so that no container ever has more than its pod.
//!
//! Input: the pod cgroup's numbers now and then, and the containers to update. Output: steps. Pure.
//! Memory comes before CPU. Increases are written to the pod first and then to its containers,
//! decreases to the containers first; among containers decreases come before increases. Nothing is
//! written twice.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go doPodResizeAction

use super::change::{ContainerUpdate, Figures};

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Memory.
    Memory,
    /// CPU.
    Cpu,
}

/// Numbers of a pod's cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodFigures {
    /// Memory limit in bytes; `i64::MAX` for none.
    pub memory_limit: i64,
    /// CFS quota in microseconds; -1 for none.
    pub cpu_quota_us: i64,
    /// CPU shares.
    pub cpu_shares: u64,
}

impl PodFigures {
    /// The memory limit in the form that the runtime receives: -1 for none, which is how the
    /// kubelet reads `max`.
    // k8s: pkg/kubelet/cm/cgroup_manager_linux.go readCgroupMemoryConfig
    pub fn cri_memory_limit(&self) -> i64 {
        if self.memory_limit == i64::MAX { -1 } else { self.memory_limit }
    }
}

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeStep {
    /// The pod's memory limit.
    PodMemory,
    /// The pod's CPU quota.
    PodQuota,
    /// The pod's CPU shares.
    PodShares,
    /// One resource of the container at this index; the other keeps its last numbers.
    Container(usize, Resource),
}

/// The resize to order.
#[derive(Clone, Copy, Debug)]
pub struct ResizeOrder<'a> {
    /// Containers that are updated while they run.
    pub updates: &'a [ContainerUpdate],
    /// The pod's numbers change beyond that: a container restarts with others, or the pod's own
    /// requirements changed.
    pub pod_changes: bool,
}

/// The writes in their order.
pub fn steps(order: &ResizeOrder<'_>, now: &PodFigures, then: &PodFigures) -> Vec<ResizeStep> {
    let mut steps = Vec::new();
    let memory = containers(order.updates, Resource::Memory);
    if !memory.is_empty() || order.pod_changes {
        steps.extend((then.memory_limit > now.memory_limit).then_some(ResizeStep::PodMemory));
        steps.extend(memory);
        steps.extend((then.memory_limit < now.memory_limit).then_some(ResizeStep::PodMemory));
    }
    let cpu = containers(order.updates, Resource::Cpu);
    if !cpu.is_empty() || order.pod_changes {
        steps.extend((then.cpu_quota_us > now.cpu_quota_us).then_some(ResizeStep::PodQuota));
        steps.extend((then.cpu_shares > now.cpu_shares).then_some(ResizeStep::PodShares));
        steps.extend(cpu);
        steps.extend((then.cpu_shares < now.cpu_shares).then_some(ResizeStep::PodShares));
        steps.extend((then.cpu_quota_us < now.cpu_quota_us).then_some(ResizeStep::PodQuota));
    }
    steps
}

/// Steps for containers with a change of that resource: each decrease comes first, each increase
/// last.
fn containers(updates: &[ContainerUpdate], resource: Resource) -> Vec<ResizeStep> {
    let (mut less, mut more) = (Vec::new(), Vec::new());
    for (index, update) in updates.iter().enumerate() {
        let (from, to) = (numbers(&update.from, resource), numbers(&update.to, resource));
        // A limit decides where it changes, else the request.
        let (from, to) = if from.0 == to.0 { (from.1, to.1) } else { (from.0, to.0) };
        match to.cmp(&from) {
            std::cmp::Ordering::Greater => more.push(ResizeStep::Container(index, resource)),
            std::cmp::Ordering::Less => less.insert(0, ResizeStep::Container(index, resource)),
            std::cmp::Ordering::Equal => {}
        }
    }
    less.append(&mut more);
    less
}

/// Limit and request.
fn numbers(figures: &Figures, resource: Resource) -> (i64, i64) {
    match resource {
        Resource::Memory => (figures.memory_limit, figures.memory_request),
        Resource::Cpu => (figures.cpu_limit, figures.cpu_request),
    }
}

/// The containers with a decreasing memory limit, with the new limit: their usage must not exceed
/// it.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go validateMemoryResizeAction
pub fn shrinking(updates: &[ContainerUpdate]) -> impl Iterator<Item = (&ContainerUpdate, i64)> {
    updates.iter().filter_map(|update| {
        let (from, to) = (update.from.memory_limit, update.to.memory_limit);
        (to != 0 && (from == 0 || to < from)).then_some((update, to))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_api_types::ids::ContainerId;
    use proptest::prelude::*;

    fn update(from: (i64, i64), to: (i64, i64)) -> ContainerUpdate {
        let figures = |(cpu, memory): (i64, i64)| Figures {
            memory_limit: memory,
            memory_request: memory,
            cpu_limit: cpu,
            cpu_request: cpu,
        };
        let (id, name) = (ContainerId::from("i"), "c".to_owned());
        let (from, to) = (figures(from), figures(to));
        ContainerUpdate { id, name, from, to, resources: to.requirements() }
    }

    fn pod(cpu: i64, memory: i64) -> PodFigures {
        let cpu_shares = cpu.unsigned_abs();
        PodFigures { memory_limit: memory, cpu_quota_us: cpu * 100, cpu_shares }
    }

    #[test]
    fn unlimited_memory_is_sent_to_the_runtime_as_minus_one() {
        assert_eq!(pod(1, i64::MAX).cri_memory_limit(), -1);
        assert_eq!(pod(1, 5).cri_memory_limit(), 5);
    }

    #[test]
    fn the_pod_grows_before_its_containers_and_shrinks_after_them() {
        use ResizeStep::{Container, PodMemory, PodQuota, PodShares};
        use Resource::{Cpu, Memory};
        let grow = [update((1, 1), (2, 2))];
        let order = ResizeOrder { updates: &grow, pod_changes: false };
        let want = [PodMemory, Container(0, Memory), PodQuota, PodShares, Container(0, Cpu)];
        assert_eq!(steps(&order, &pod(1, 1), &pod(2, 2)), want);
        let shrink = [update((2, 2), (1, 1))];
        let order = ResizeOrder { updates: &shrink, pod_changes: false };
        let want = [Container(0, Memory), PodMemory, Container(0, Cpu), PodShares, PodQuota];
        assert_eq!(steps(&order, &pod(2, 2), &pod(1, 1)), want);
    }

    #[test]
    fn among_containers_decreases_come_first() {
        use ResizeStep::Container;
        use Resource::{Cpu, Memory};
        let updates = [
            update((1, 5), (2, 5)),
            update((3, 5), (2, 4)),
            update((5, 1), (1, 1)),
            update((1, 1), (1, 9)),
        ];
        let order = ResizeOrder { updates: &updates, pod_changes: false };
        let want = [
            Container(1, Memory),
            Container(3, Memory),
            Container(2, Cpu),
            Container(1, Cpu),
            Container(0, Cpu),
        ];
        assert_eq!(steps(&order, &pod(10, 12), &pod(10, 12)), want);
    }

    #[test]
    fn a_restart_changes_the_pod_alone() {
        let order = ResizeOrder { updates: &[], pod_changes: true };
        assert_eq!(steps(&order, &pod(1, 1), &pod(1, 2)), [ResizeStep::PodMemory]);
        let nothing = ResizeOrder { updates: &[], pod_changes: false };
        assert_eq!(steps(&nothing, &pod(1, 1), &pod(2, 2)), []);
    }

    #[test]
    fn limits_that_shrink_or_appear_are_held_against_usage() {
        let updates = [
            update((1, 2), (1, 1)),
            update((1, 0), (1, 5)),
            update((1, 1), (1, 2)),
            update((1, 1), (1, 0)),
        ];
        let found: Vec<i64> = shrinking(&updates).map(|(_, limit)| limit).collect();
        assert_eq!(found, [1, 5]);
    }

    proptest! {
        /// At no point do the containers together have more than the pod, if they did not before
        /// and will not afterwards; and every container ends with its allocated resources.
        #[test]
        fn containers_never_have_more_than_their_pod(
            pairs in prop::collection::vec(((1_i64..50, 1_i64..50), (1_i64..50, 1_i64..50)), 1..6),
        ) {
            let updates: Vec<_> = pairs.iter().map(|(from, to)| update(*from, *to)).collect();
            let sum = |side: fn(&ContainerUpdate) -> Figures| {
                let all = updates.iter().map(side);
                all.fold((0, 0), |(c, m), f| (c + f.cpu_limit, m + f.memory_limit))
            };
            let (before, after) = (sum(|u| u.from), sum(|u| u.to));
            let (now, then) = (pod(before.0, before.1), pod(after.0, after.1));
            let order = ResizeOrder { updates: &updates, pod_changes: false };
            let mut have: Vec<_> = updates.iter().map(|u| u.from).collect();
            let mut limit = now;
            for step in steps(&order, &now, &then) {
                match step {
                    ResizeStep::PodMemory => limit.memory_limit = then.memory_limit,
                    ResizeStep::PodQuota => limit.cpu_quota_us = then.cpu_quota_us,
                    ResizeStep::PodShares => limit.cpu_shares = then.cpu_shares,
                    ResizeStep::Container(index, Resource::Memory) => {
                        have[index].memory_limit = updates[index].to.memory_limit;
                    }
                    ResizeStep::Container(index, Resource::Cpu) => {
                        have[index].cpu_limit = updates[index].to.cpu_limit;
                    }
                }
                let memory: i64 = have.iter().map(|f| f.memory_limit).sum();
                let cpu: i64 = have.iter().map(|f| f.cpu_limit).sum();
                prop_assert!(memory <= limit.memory_limit && cpu * 100 <= limit.cpu_quota_us);
            }
            prop_assert_eq!(limit, then);
            for (have, update) in have.iter().zip(&updates) {
                prop_assert_eq!(have.memory_limit, update.to.memory_limit);
                prop_assert_eq!(have.cpu_limit, update.to.cpu_limit);
            }
        }
    }
}
