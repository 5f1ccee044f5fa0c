//! The sums of the admitted pods, against which a new pod is checked.
//!
//! Pure. Updated as pods come, change and leave, so that an admission costs the same on a full node
//! as on an empty one. Sums are in the units in which amounts are compared, and wide enough for any
//! number of pods. Bounds: an entry for each admitted pod, each resource that one requests and each
//! of their host ports.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerPort, Pod};

use super::Admitted;
use super::fit::in_units;
use super::placement::host_ports;
use pintle_api_types::ids::PodUid;
use pintle_api_types::pod::resources::Amounts;

/// The admitted pods and the sums of their resources.
#[derive(Debug, Default)]
pub struct TakenResources {
    shares: BTreeMap<PodUid, PodShare>,
    sums: BTreeMap<String, i128>,
    /// Container ports by host port and pod, whatever their protocol and address.
    ports: BTreeMap<i32, BTreeMap<PodUid, Vec<ContainerPort>>>,
}

/// The amounts counted for one pod.
#[derive(Debug)]
struct PodShare {
    pod: Arc<Pod>,
    requests: Amounts,
}

impl TakenResources {
    /// The sums of these admitted pods.
    pub fn of<'a>(admitted: impl IntoIterator<Item = Admitted<'a>>) -> Self {
        let mut taken = Self::default();
        for pod in admitted {
            taken.set(pod.uid, Some(pod));
        }
        taken
    }

    /// From now on the pod holds this, or nothing.
    pub fn set(&mut self, uid: &PodUid, held: Option<Admitted<'_>>) {
        let known = self.shares.get(uid);
        let same = match (known, &held) {
            (Some(known), Some(held)) => {
                Arc::ptr_eq(&known.pod, held.pod) && known.requests == *held.requests
            }
            (None, None) => true,
            _ => false,
        };
        if same {
            return;
        }
        if let Some(PodShare { pod, requests }) = self.shares.remove(uid) {
            self.count(&requests, -1);
            for port in host_ports(&pod).filter_map(|port| port.host_port) {
                if let Some(pods) = self.ports.get_mut(&port) {
                    pods.remove(uid);
                    if pods.is_empty() {
                        self.ports.remove(&port);
                    }
                }
            }
        }
        let Some(Admitted { pod, requests, .. }) = held else { return };
        self.count(requests, 1);
        for port in host_ports(pod) {
            let pods = self.ports.entry(port.host_port.unwrap_or_default()).or_default();
            pods.entry(uid.clone()).or_default().push(port.clone());
        }
        let share = PodShare { pod: Arc::clone(pod), requests: requests.clone() };
        self.shares.insert(uid.clone(), share);
    }

    fn count(&mut self, requests: &Amounts, times: i128) {
        for (name, amount) in requests {
            let change = times * i128::from(in_units(name, *amount));
            match self.sums.get_mut(name) {
                Some(sum) => *sum += change,
                None => drop(self.sums.insert(name.clone(), change)),
            }
            if self.sums.get(name) == Some(&0) {
                self.sums.remove(name);
            }
        }
    }

    /// All of them.
    pub fn all(&self) -> Others<'_> {
        Others { taken: self, but: None }
    }

    /// All but this one.
    pub fn but<'a>(&'a self, uid: &'a PodUid) -> Others<'a> {
        Others { taken: self, but: Some(uid) }
    }
}

/// The pods against which a candidate is checked.
#[derive(Clone, Copy, Debug)]
pub struct Others<'a> {
    taken: &'a TakenResources,
    but: Option<&'a PodUid>,
}

impl<'a> Others<'a> {
    fn excepted(&self) -> Option<&'a PodShare> {
        self.taken.shares.get(self.but?)
    }

    /// How many there are.
    pub(super) fn count(&self) -> i64 {
        let count = self.taken.shares.len() - usize::from(self.excepted().is_some());
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    /// How much of a resource they hold.
    pub(super) fn used(&self, resource: &str) -> i64 {
        let all = self.taken.sums.get(resource).copied().unwrap_or(0);
        let own = self.excepted().and_then(|share| share.requests.get(resource));
        let used = all - own.map_or(0, |amount| i128::from(in_units(resource, *amount)));
        i64::try_from(used).unwrap_or(if used > 0 { i64::MAX } else { i64::MIN })
    }

    /// Container ports of admitted pods with this host port, of any protocol and address.
    pub(super) fn on_port(&self, port: i32) -> impl Iterator<Item = &'a ContainerPort> {
        let but = self.but;
        let pods = self.taken.ports.get(&port).into_iter().flatten();
        pods.filter(move |(uid, _)| Some(*uid) != but).flat_map(|(_, ports)| ports)
    }

    /// Each admitted pod, by uid, for choosing victims: a sum does not show which pod's end would
    /// make room.
    pub(super) fn each(&self) -> Vec<Admitted<'a>> {
        let others = self.taken.shares.iter().filter(|(uid, _)| Some(*uid) != self.but);
        others
            .map(|(uid, share)| Admitted { uid, pod: &share.pod, requests: &share.requests })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_api_types::pod::resources::pod_requests;
    use proptest::prelude::*;
    use serde_json::json;

    fn pod(cpu: i64, port: i32) -> Arc<Pod> {
        let ports = json!([{"containerPort": 1, "hostPort": port}]);
        let requests = json!({"cpu": format!("{cpu}m"), "vendor/gpu": "1"});
        let container = json!({"name": "c", "ports": ports, "resources": {"requests": requests}});
        let pod = json!({"metadata": {}, "spec": {"containers": [container]}});
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    proptest! {
        /// After any sequence of admissions, changes and removals the sums are those of the pods
        /// present.
        #[test]
        fn sums_are_those_of_the_pods_that_are_there(
            steps in prop::collection::vec((0..4_usize, prop::option::of((1..500_i64, 1..4_i32))), 0..30),
        ) {
            let (mut taken, mut held) = (TakenResources::default(), BTreeMap::new());
            for (index, step) in steps {
                let uid = PodUid::from(format!("p{index}").as_str());
                let Some((cpu, port)) = step else {
                    taken.set(&uid, None);
                    held.remove(&uid);
                    continue;
                };
                let pod = pod(cpu, port);
                let requests = pod_requests(&pod);
                taken.set(&uid, Some(Admitted { uid: &uid, pod: &pod, requests: &requests }));
                held.insert(uid, (cpu, port));
            }
            let but = PodUid::from("p0");
            let others: Vec<_> = held.iter().filter(|(uid, _)| **uid != but).collect();
            let view = taken.but(&but);
            prop_assert_eq!(view.count(), others.len() as i64);
            prop_assert_eq!(view.used("cpu"), others.iter().map(|(_, (cpu, _))| cpu).sum::<i64>());
            prop_assert_eq!(view.used("vendor/gpu"), others.len() as i64);
            prop_assert_eq!(taken.all().count(), held.len() as i64);
            for port in 1..4 {
                let on = others.iter().filter(|(_, (_, of))| *of == port).count();
                prop_assert_eq!(view.on_port(port).count(), on);
            }
            prop_assert_eq!(view.each().len(), others.len());
            let uids: Vec<_> = held.into_keys().collect();
            uids.iter().for_each(|uid| taken.set(uid, None));
            prop_assert!(taken.sums.is_empty() && taken.ports.is_empty(), "{:?}", taken);
        }
    }
}
