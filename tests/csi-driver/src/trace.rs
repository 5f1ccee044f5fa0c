//! The line of each call that upstream's suites look for in the log of the driver's container.
//!
//! Input: a request and its answer. Output: `gRPCCall:` and JSON with the method, the attributes and
//! secrets of the volume, and the code. Only under the host-path driver's flags: the secrets are a
//! suite's own.
// k8s: test/e2e/storage/drivers/csi.go mockCSIDriver.GetCalls

use std::any::Any;
use std::collections::BTreeMap;

use pintle_plugins_v1::csi::{
    ControllerExpandVolumeRequest, NodeExpandVolumeRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest,
};
use serde_json::{Value, json};
use tonic::Status;

/// What a call was about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallTrace {
    method: &'static str,
    context: BTreeMap<String, String>,
    secrets: BTreeMap<String, String>,
}

impl CallTrace {
    /// Reads the fields that the suites look at.
    pub(crate) fn of<Q: Any>(method: &'static str, request: &Q) -> Self {
        let request: &dyn Any = request;
        let (context, secrets) = if let Some(r) = request.downcast_ref::<NodeStageVolumeRequest>() {
            (r.volume_context.clone(), r.secrets.clone())
        } else if let Some(r) = request.downcast_ref::<NodePublishVolumeRequest>() {
            (r.volume_context.clone(), r.secrets.clone())
        } else if let Some(r) = request.downcast_ref::<NodeExpandVolumeRequest>() {
            (BTreeMap::new(), r.secrets.clone())
        } else if let Some(r) = request.downcast_ref::<ControllerExpandVolumeRequest>() {
            (BTreeMap::new(), r.secrets.clone())
        } else {
            Default::default()
        };
        Self { method, context, secrets }
    }

    /// The line after the call has ended.
    pub(crate) fn line(&self, error: Option<&Status>) -> String {
        let code = error.map_or(0, |error| i32::from(error.code()));
        let message = error.map(Status::message).unwrap_or_default();
        let call: Value = json!({
            "Method": format!("/csi.v1/{}", self.method),
            "Request": {"volume_context": self.context, "secrets": self.secrets},
            "Error": message,
            "FullError": {"code": code, "message": message},
        });
        format!("gRPCCall: {call}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_attributes_secrets_and_code() {
        let one = |key: &str| BTreeMap::from([(key.to_owned(), "value".to_owned())]);
        let request = NodePublishVolumeRequest {
            volume_context: one("pod"),
            secrets: one("key"),
            ..Default::default()
        };
        let trace = CallTrace::of("NodePublishVolume", &request);
        let line = trace.line(Some(&Status::not_found("no volume")));
        let call: Value =
            serde_json::from_str(line.strip_prefix("gRPCCall: ").expect("prefix")).expect("JSON");
        assert_eq!(call["Method"], "/csi.v1/NodePublishVolume");
        assert_eq!(call["Request"]["volume_context"]["pod"], "value");
        assert_eq!(call["Request"]["secrets"]["key"], "value");
        assert_eq!(call["FullError"], json!({"code": 5, "message": "no volume"}));
        let line = CallTrace::of("DeleteVolume", &()).line(None);
        assert!(line.contains(r#""code":0"#), "{line}");
    }
}
