//! Pods of a gang are bound together or not at all.
//!
//! A pod belongs to a gang by the label `example.pintle.dev/gang`; the annotation
//! `example.pintle.dev/gang-size` is the size of the gang. Each member that has a node waits for
//! the others; if one fails, the waiting members are rejected too, so that two gangs cannot hold
//! each other's nodes forever. Once a gang is complete, later members are bound like any pod.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pintle_scheduler::framework::{
    CycleState, Handle, Permission, Permit, PluginError, Points, Rejection, Reserve,
};
use serde::Deserialize;
use serde_json::Value;

const NAME: &str = "Gang";
const LABEL: &str = "example.pintle.dev/gang";
const SIZE: &str = "example.pintle.dev/gang-size";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Args {
    wait_seconds: u64,
}

/// Creates the plugin of one profile.
pub(crate) fn make(args: &Value, handle: &Handle) -> Result<Points, PluginError> {
    let args = match args {
        Value::Null => Args { wait_seconds: 60 },
        args => serde_json::from_value(args.clone())
            .map_err(|error| PluginError::new(error.to_string()))?,
    };
    let gangs = Rc::new(Gangs {
        handle: handle.clone(),
        wait: Duration::from_secs(args.wait_seconds),
        members: RefCell::default(),
        begun: RefCell::default(),
    });
    let (reserve, permit) = (Rc::clone(&gangs), gangs);
    Ok(Points::default().reserve(reserve).permit(permit))
}

struct Gangs {
    handle: Handle,
    wait: Duration,
    /// Members with a node, by gang.
    members: RefCell<BTreeMap<String, BTreeSet<String>>>,
    begun: RefCell<BTreeSet<String>>,
}

/// Returns the gang of a pod, with its namespace, and its size.
fn gang(pod: &Pod) -> Result<Option<(String, usize)>, Rejection> {
    let meta = &pod.metadata;
    let Some(name) = meta.labels.as_ref().and_then(|labels| labels.get(LABEL)) else {
        return Ok(None);
    };
    let size = meta.annotations.as_ref().and_then(|all| all.get(SIZE));
    let size = size.and_then(|size| size.parse().ok()).filter(|size| *size > 0);
    let size = size.ok_or_else(|| {
        Rejection::Unresolvable(format!("annotation {SIZE} must say how many pods gang {name} has"))
    })?;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    Ok(Some((format!("{namespace}/{name}"), size)))
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

impl Gangs {
    /// Returns the waiting members of a gang.
    fn waiting(&self, gang_name: &str) -> Vec<String> {
        let all = self.handle.waiting_pods().into_iter();
        let own = all.filter(
            |waiting| matches!(gang(&waiting.pod), Ok(Some((name, _))) if name == gang_name),
        );
        own.map(|waiting| uid(&waiting.pod)).collect()
    }
}

impl Reserve for Gangs {
    fn reserve(&self, _: &CycleState, pod: &Pod, _: &str) -> Result<(), Rejection> {
        if let Some((name, _)) = gang(pod)? {
            self.members.borrow_mut().entry(name).or_default().insert(uid(pod));
        }
        Ok(())
    }

    fn unreserve(&self, _: &CycleState, pod: &Pod, _: &str) {
        let Ok(Some((name, _))) = gang(pod) else { return };
        let was_member = match self.members.borrow_mut().get_mut(&name) {
            Some(members) => members.remove(&uid(pod)),
            None => false,
        };
        if was_member {
            for other in self.waiting(&name) {
                let why = format!("pod {} of gang {name} has no node", uid(pod));
                self.handle.reject(&other, NAME, &why);
            }
        }
    }
}

impl Permit for Gangs {
    fn permit(&self, _: &CycleState, pod: &Pod, _: &str) -> Result<Permission, Rejection> {
        let Some((name, size)) = gang(pod)? else { return Ok(Permission::Granted) };
        let have = self.members.borrow().get(&name).map_or(0, BTreeSet::len);
        if have < size && !self.begun.borrow().contains(&name) {
            return Ok(Permission::Wait(self.wait));
        }
        self.begun.borrow_mut().insert(name.clone());
        self.members.borrow_mut().remove(&name);
        self.waiting(&name).iter().for_each(|other| self.handle.allow(other, NAME));
        Ok(Permission::Granted)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, size: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": uid, "namespace": "d", "uid": uid,
            "labels": {LABEL: "g"}, "annotations": {SIZE: size}}}))
        .expect("a pod")
    }

    fn made() -> Points {
        make(&json!({"waitSeconds": 5}), &Handle::default()).expect("good arguments")
    }

    #[test]
    fn members_wait_until_all_have_a_node() {
        let (points, state) = (made(), CycleState::default());
        let (reserve, permit) = (points.reserve.expect("it is"), points.permit.expect("it is"));
        let ask = |pod: &Pod| {
            reserve.reserve(&state, pod, "n").expect("nothing against it");
            permit.permit(&state, pod, "n").expect("nothing against it")
        };
        assert_eq!(ask(&pod("a", "3")), Permission::Wait(Duration::from_secs(5)));
        assert_eq!(ask(&pod("b", "3")), Permission::Wait(Duration::from_secs(5)));
        reserve.unreserve(&state, &pod("b", "3"), "n");
        assert_eq!(ask(&pod("c", "3")), Permission::Wait(Duration::from_secs(5)));
        assert_eq!(ask(&pod("b", "3")), Permission::Granted);
        assert_eq!(ask(&pod("later", "3")), Permission::Granted, "the gang has begun");
    }

    #[test]
    fn invalid_arguments_and_gang_annotations_are_reported_in_a_sentence() {
        let error = make(&json!({"wait": 5}), &Handle::default()).expect_err("unknown");
        assert!(error.to_string().contains("wait"), "{error}");
        let refused =
            made().permit.expect("it is").permit(&CycleState::default(), &pod("a", "many"), "n");
        let why = "annotation example.pintle.dev/gang-size must say how many pods gang g has";
        assert_eq!(refused, Err(Rejection::Unresolvable(why.to_owned())));
    }
}
