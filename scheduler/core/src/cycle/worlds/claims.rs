//! ResourceClaims in a world: the API server's and their controller's part.

use k8s_openapi::api::core::v1::NodeAllocatableResourceClaimStatus;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};

use super::*;
use crate::cycle::{ReservationResult, Reserve};

/// A pod, the number of its reservation, its claims, and the device statuses for its status.
type Reservation = (PodRef, u64, Vec<Reserve>, Vec<NodeAllocatableResourceClaimStatus>);

/// Writes of claims under way.
#[derive(Default)]
pub(super) struct ClaimWrites {
    reservations: Vec<Reservation>,
    releases: Vec<(PodRef, Vec<String>, bool)>,
    gives: Vec<(PodRef, Rc<ResourceClaim>)>,
    reserved: Vec<ReservationResult>,
    released: Vec<(Uid, Vec<ResourceClaim>)>,
    gave_back: Vec<(Uid, bool, Vec<ResourceClaim>)>,
}

impl ClaimWrites {
    fn writes(&self) -> usize {
        self.reservations.len() + self.releases.len() + self.gives.len()
    }
}

pub(super) fn class() -> WatchedObject {
    WatchedObject::DeviceClass(object(json!({"metadata": {"name": "gpu"}, "spec": {}})))
}

/// The devices of a node; the first may consume node resources.
pub(super) fn slice(node: &str, count: usize, takes: Option<&str>) -> Value {
    let mut devices: Vec<Value> = (0..count).map(|at| json!({"name": format!("g{at}")})).collect();
    if let (Some(device), Some(cpu)) = (devices.first_mut(), takes) {
        let takes = json!({"cpu": {"allocationMultiplier": cpu}});
        device["nodeAllocatableResourceMappings"] = takes;
    }
    json!({"metadata": {"name": format!("s-{node}")},
        "spec": {"driver": "d", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}})
}

/// The node-allocatable resources in a pod's status.
pub(super) fn shares(pod: &Value) -> impl Iterator<Item = &Value> {
    pod["status"]["nodeAllocatableResourceClaimStatuses"].as_array().into_iter().flatten()
}

fn users(claim: &Value) -> Vec<Value> {
    claim["status"]["reservedFor"].as_array().cloned().unwrap_or_default()
}

fn is_user(claim: &Value, uid: &str) -> bool {
    users(claim).iter().any(|user| user["uid"] == uid)
}

/// The node of a claim's devices.
fn place(claim: &Value) -> Option<String> {
    let results = &claim["status"]["allocation"]["devices"]["results"];
    results[0]["pool"].as_str().map(str::to_owned)
}

impl SchedulerWorld {
    pub(super) fn new_claim(&mut self) {
        let name = format!("c{}", self.chance.below(6));
        if self.claims.contains_key(&name) {
            return;
        }
        self.numbered += 1;
        let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu", "count": 1}});
        let uid = format!("u{}", self.numbered);
        let claim = json!({"metadata": {"name": name, "namespace": "default", "uid": uid},
            "spec": {"devices": {"requests": [request]}}});
        self.set(WatchedKind::ResourceClaim, &name, claim);
    }

    /// Deletes a claim: it disappears once no pod uses it.
    pub(super) fn end_claim(&mut self) {
        let Some(name) = self.any(WatchedKind::ResourceClaim) else { return };
        let mut claim = self.claims[&name].clone();
        claim["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
        self.set(WatchedKind::ResourceClaim, &name, claim);
    }

    /// Returns true if a group with claims is protected from deletion: a pod uses it, or a claim is
    /// reserved for it.
    // k8s: pkg/controller/podgroupprotection
    pub(super) fn is_protected(&self, group: &str) -> bool {
        let uid = self.groups[group]["metadata"]["uid"].as_str().expect("a uid");
        let is_its = |pod: &Value| pod["spec"]["schedulingGroup"]["podGroupName"] == group;
        let names = self.groups[group]["spec"]["resourceClaims"].is_array();
        names && self.pods.values().any(is_its)
            || self.claims.values().any(|claim| is_user(claim, uid))
    }

    /// Runs the claim controller: removes consumers that are gone, and deallocates claims without
    /// consumers. Returns true if it changed a claim.
    // k8s: pkg/controller/resourceclaim/controller.go syncClaim
    pub(super) fn control_claims(&mut self) -> bool {
        let names: Vec<String> = self.claims.keys().cloned().collect();
        let mut any = false;
        for name in names {
            let mut claim = self.claims[&name].clone();
            let known = self.pods.values().chain(self.groups.values());
            let uids: Vec<&Value> = known.map(|one| &one["metadata"]["uid"]).collect();
            let all = users(&claim);
            let left: Vec<Value> =
                all.iter().filter(|user| uids.contains(&&user["uid"])).cloned().collect();
            let is_leaving = claim["metadata"].get("deletionTimestamp").is_some();
            if left.len() != all.len() {
                claim["status"]["reservedFor"] = json!(left);
                if left.is_empty() {
                    claim["status"] = Value::Null;
                }
                self.set(WatchedKind::ResourceClaim, &name, claim);
                any = true;
            } else if is_leaving && left.is_empty() {
                self.delete(WatchedKind::ResourceClaim, &name);
                any = true;
            }
        }
        any
    }

    pub(super) fn take_claims(&mut self, command: Command) {
        let all = &mut self.of_claims;
        match command {
            Command::ReserveDevices { pod, number, claims, statuses } => {
                all.reservations.push((pod, number, claims, statuses));
            }
            Command::ReleaseDevices { pod, claims, clears } => {
                let uid = |claim: &Rc<ResourceClaim>| claim.metadata.uid.clone().expect("a uid");
                all.releases.push((pod, claims.iter().map(uid).collect(), clears));
            }
            Command::GiveDevicesBack { pod, claim } => all.gives.push((pod, claim)),
            other => panic!("{other:?} is not of claims"),
        }
    }

    /// Executes a write of claims; returns true if there was one.
    pub(super) fn write_claims(&mut self) -> bool {
        let all = &mut self.of_claims;
        if all.writes() == 0 {
            return false;
        }
        let at = self.chance.below(all.writes());
        if at < all.reservations.len() {
            let reservation = all.reservations.swap_remove(at);
            self.reserve(reservation);
        } else if let at = at - all.reservations.len()
            && at < all.releases.len()
        {
            let (pod, claims, clears) = all.releases.swap_remove(at);
            let claims = claims.iter().filter_map(|uid| self.release(&pod, uid)).collect();
            if clears && let Some(value) = self.find_pod(&pod) {
                self.say_shares(&pod, value, Value::Null);
            }
            self.of_claims.released.push((pod.uid, claims));
        } else {
            let at = at - all.reservations.len() - all.releases.len();
            let (pod, claim) = all.gives.swap_remove(at);
            let did = self.give_back(&claim);
            let name = claim.metadata.name.as_deref().expect("a name");
            let is_there = self.claims.contains_key(name);
            // The result contains the claim, unless the answer is lost.
            let claims = is_there && !self.chance.one_in(12);
            let claims = claims.then(|| self.claim(name)).into_iter().collect();
            self.of_claims.gave_back.push((pod.uid, did, claims));
        }
        true
    }

    fn reserve(&mut self, (pod, number, wanted, statuses): Reservation) {
        let (mut claims, mut error) = (Vec::new(), None);
        for reserve in &wanted {
            match self.reserve_one(&pod, reserve) {
                Ok(claim) => claims.push(claim),
                Err(why) => {
                    error = Some(why.to_owned());
                    break;
                }
            }
        }
        if error.is_none() && !statuses.is_empty() {
            match self.find_pod(&pod).filter(|_| !self.chance.one_in(10)) {
                Some(value) => self.say_shares(&pod, value, json!(statuses)),
                None => error = Some("not found".to_owned()),
            }
        }
        // The write succeeded, but its answer is lost.
        if error.is_none() && self.chance.one_in(12) {
            error = Some("no answer".to_owned());
        }
        self.of_claims.reserved.push(ReservationResult { pod, number, claims, error, made: None });
    }

    /// Writes the node-allocatable resources of a pod's devices to its status.
    fn say_shares(&mut self, pod: &PodRef, mut value: Value, statuses: Value) {
        value["status"]["nodeAllocatableResourceClaimStatuses"] = statuses;
        self.set(WatchedKind::Pod, pod.key.name(), value);
    }

    fn reserve_one(
        &mut self,
        pod: &PodRef,
        reserve: &Reserve,
    ) -> Result<ResourceClaim, &'static str> {
        let name = reserve.claim.metadata.name.clone().expect("a name");
        let is_it = |claim: &&Value| {
            claim["metadata"]["uid"].as_str() == reserve.claim.metadata.uid.as_deref()
        };
        let claim = self.claims.get(&name).filter(is_it);
        let mut claim = claim.cloned().ok_or("not found")?;
        if claim["metadata"].get("deletionTimestamp").is_some() {
            return Err("deleted");
        }
        if self.chance.one_in(10) {
            return Err("no");
        }
        let has = &claim["status"]["allocation"];
        let known = reserve.claim.status.as_ref().and_then(|status| status.allocation.as_ref());
        let is_same = |known: &AllocationResult| has["devices"] == json!(known.devices);
        match &reserve.allocation {
            // Another pod of the group has written the same allocation.
            Some(given) if !has.is_null() && is_same(given) => {}
            Some(given) if has.is_null() => claim["status"]["allocation"] = json!(given),
            None if has.is_null() => return Err("deallocated elsewhere"),
            None if known.is_some_and(is_same) => {}
            Some(_) | None => return Err("allocated elsewhere"),
        }
        let mut all = users(&claim);
        let user = match &reserve.user {
            Some(user) => json!(user),
            None => json!({"resource": "pods", "name": pod.key.name(), "uid": &*pod.uid}),
        };
        if !is_user(&claim, user["uid"].as_str().expect("a uid")) {
            all.push(user);
        }
        claim["status"]["reservedFor"] = json!(all);
        self.set(WatchedKind::ResourceClaim, &name, claim);
        self.devices_are_given_once();
        Ok(self.claim(&name))
    }

    fn release(&mut self, pod: &PodRef, uid: &str) -> Option<ResourceClaim> {
        let mut all = self.claims.iter();
        let (name, claim) = all.find(|(_, claim)| claim["metadata"]["uid"] == uid)?;
        let (name, mut claim) = (name.clone(), claim.clone());
        let left = users(&claim).into_iter().filter(|user| user["uid"] != *pod.uid);
        claim["status"]["reservedFor"] = json!(left.collect::<Vec<_>>());
        self.set(WatchedKind::ResourceClaim, &name, claim);
        Some(self.claim(&name))
    }

    fn claim(&self, name: &str) -> ResourceClaim {
        serde_json::from_value(self.claims[name].clone()).expect("a claim")
    }

    fn give_back(&mut self, known: &ResourceClaim) -> bool {
        let name = known.metadata.name.clone().expect("a name");
        let Some(mut claim) = self.claims.get(&name).cloned() else { return false };
        let version = claim["metadata"]["resourceVersion"].as_str();
        if version != known.metadata.resource_version.as_deref() || self.chance.one_in(10) {
            return false;
        }
        claim["status"] = Value::Null;
        self.set(WatchedKind::ResourceClaim, &name, claim);
        true
    }

    /// Delivers one pending result; returns true if there was one.
    pub(super) fn answer_claims(&mut self, scheduler: &mut Scheduler) -> bool {
        let now = Duration::from_secs(self.now);
        let all = &mut self.of_claims;
        if let Some(reserved) = all.reserved.pop() {
            scheduler.devices_reserved(reserved, now);
        } else if let Some((pod, claims)) = all.released.pop() {
            scheduler.devices_released(&pod, claims, now);
        } else if let Some((pod, did, claims)) = all.gave_back.pop() {
            scheduler.gave_back(&pod, did, claims, now);
        } else {
            return false;
        }
        true
    }

    /// Checks that the claims of a pod that is being bound have devices on its node.
    pub(super) fn check_devices(&self, pod: &Value, node: &str) {
        let all = pod["spec"]["resourceClaims"].as_array();
        for claim in all.into_iter().flatten() {
            let name = claim["resourceClaimName"].as_str().expect("a name");
            let claim = &self.claims[name];
            let uid = pod["metadata"]["uid"].as_str().expect("a uid");
            let group = pod["spec"]["schedulingGroup"]["podGroupName"].as_str();
            let group = group.and_then(|name| self.groups.get(name)?["metadata"]["uid"].as_str());
            let is_its = is_user(claim, uid) || group.is_some_and(|group| is_user(claim, group));
            assert!(is_its, "{claim} is not reserved for {uid}");
            assert_eq!(place(claim).as_deref(), Some(node), "{claim}");
            self.says_what_is_taken(pod, claim);
        }
    }

    /// Checks that a claim's entry in the pod's status equals the consumption of its devices. A
    /// successor may find the entry of a scheduler that died before the binding, and leaves it.
    fn says_what_is_taken(&self, pod: &Value, claim: &Value) {
        let name = &claim["metadata"]["name"];
        let mut said = shares(pod).filter(|status| status["resourceClaimName"] == *name);
        let Some(said) = said.next().filter(|_| !self.has_successors) else { return };
        let taken = self.takes.filter(|_| {
            let given = &claim["status"]["allocation"]["devices"]["results"][0];
            given["device"] == "g0"
        });
        assert_eq!(said["resources"]["cpu"].as_str(), taken, "{pod} {claim}");
    }

    fn devices_are_given_once(&self) {
        let mut given: Vec<String> = Vec::new();
        for claim in self.claims.values() {
            let results = &claim["status"]["allocation"]["devices"]["results"];
            let results = results.as_array().into_iter().flatten();
            given.extend(results.map(|one| format!("{}/{}", one["pool"], one["device"])));
        }
        let count = given.len();
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), count, "a device was given twice: {:?}", self.claims);
    }
}
