//! A plugin with a bug: it blocks the deciding thread forever, or panics. Only debug builds have
//! it, for tests of the scheduler's reaction.

use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;
use pintle_scheduler::framework::{
    CycleState, Filter, Handle, NodeInfo, PluginError, Points, Rejection,
};
use serde_json::Value;

/// `blocks` or `panics`.
const LABEL: &str = "example.pintle.dev/stuck";

/// Creates the plugin of one profile.
pub(crate) fn make(_: &Value, _: &Handle) -> Result<Points, PluginError> {
    Ok(Points::default().filter(Rc::new(Stuck)))
}

struct Stuck;

impl Filter for Stuck {
    fn filter(&self, _: &CycleState, pod: &Pod, _: &NodeInfo<'_>) -> Result<(), Rejection> {
        let labels = pod.metadata.labels.as_ref();
        match labels.and_then(|labels| labels.get(LABEL)).map(String::as_str) {
            Some("blocks") => {
                eprintln!("Stuck blocks");
                loop {
                    std::thread::park();
                }
            }
            Some("panics") => panic!("Stuck panics"),
            _ => Ok(()),
        }
    }
}
