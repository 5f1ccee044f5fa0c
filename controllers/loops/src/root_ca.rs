//! Root CA publisher: each namespace has the ConfigMap `kube-root-ca.crt`, by which pods verify the
//! API server.
//!
//! Reads namespaces and these ConfigMaps. Writes: creations and updates of these ConfigMaps.
// k8s: pkg/controller/certificates/rootcacertpublisher/publisher.go

use std::rc::Rc;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{CONFIG_MAPS, Kind, NAMESPACES, ROOT_CA_CONFIG_MAPS};
use pintle_api_types::request::{Request, Target};
use pintle_controllers_core::frame::{
    Controller, Now, SyncOutcome, Transcript, TranscriptStop, Wakes,
};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::RootCaConfigMap;
use pintle_controllers_core::tables::{Change, Tables};
use serde_json::{Value, json};

const NAME: &str = "kube-root-ca.crt";
const DESCRIPTION_ANNOTATION: &str = "kubernetes.io/description";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when \
    using internal endpoints such as the internal service IP or kubernetes.default.svc. No other \
    usage is guaranteed across distributions of Kubernetes clusters.";

/// The controller.
#[derive(Debug)]
pub struct RootCaPublisher {
    /// The bundle of `--root-ca-file`, in PEM.
    pub root_ca: Rc<str>,
}

/// A namespace and its ConfigMap.
#[derive(Debug)]
pub struct PublishedBundle {
    namespace: String,
    root_ca: Rc<str>,
    config_map: Option<Rc<KeptObject<RootCaConfigMap>>>,
}

impl Controller for RootCaPublisher {
    /// The name of a namespace.
    type Key = ObjectKey;
    type Snapshot = PublishedBundle;
    type Note = ();

    const NAME: &'static str = "root-ca-certificate-publisher-controller";

    fn key_of(object: &ObjectKey) -> Option<ObjectKey> {
        Some(object.clone())
    }

    fn kinds(&self) -> Vec<Kind> {
        vec![NAMESPACES, ROOT_CA_CONFIG_MAPS]
    }

    // k8s: cmd/kube-controller-manager/app/certificates.go newRootCACertificatePublisherController
    fn workers(&self) -> usize {
        1
    }

    fn handle_change(&mut self, change: &Change, _: &Tables, _: Now, wake: &mut Wakes<ObjectKey>) {
        match change {
            Change::Namespace(delta) => {
                if let Some(namespace) = &delta.new
                    && (delta.old.is_none() || namespace.is_active())
                {
                    wake.now(namespace.metadata.key());
                }
            }
            // One that was just created, also by this controller, is left alone as upstream leaves
            // it alone.
            Change::RootCaConfigMap(delta) if delta.old.is_some() => {
                wake.now(ObjectKey::new("", &delta.object().metadata.namespace));
            }
            _ => {}
        }
    }

    fn snapshot(&mut self, key: &ObjectKey, tables: &Tables, _: Now) -> Option<PublishedBundle> {
        let namespace = key.name().to_owned();
        let config_map = tables.root_ca_config_maps.get(&ObjectKey::new(&namespace, NAME)).cloned();
        Some(PublishedBundle { namespace, root_ca: Rc::clone(&self.root_ca), config_map })
    }

    fn sync(
        snapshot: &PublishedBundle,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        let data = json!({"ca.crt": &*snapshot.root_ca});
        let Some(config_map) = &snapshot.config_map else {
            return create(snapshot, data, transcript);
        };
        let mut value = config_map.value();
        let description = value["metadata"]["annotations"][DESCRIPTION_ANNOTATION].as_str();
        if value["data"] == data && description.is_some_and(|text| !text.is_empty()) {
            return Ok(SyncOutcome::done());
        }
        transcript.because("the ConfigMap has another CA bundle or no description");
        value["data"] = data;
        value["metadata"]["annotations"][DESCRIPTION_ANNOTATION] = DESCRIPTION.into();
        let target = Target::object(ROOT_CA_CONFIG_MAPS, config_map.metadata.key());
        transcript.send(Request::Replace { target, body: value })??;
        Ok(SyncOutcome::done())
    }
}

fn create(
    snapshot: &PublishedBundle,
    data: Value,
    transcript: &mut Transcript,
) -> Result<SyncOutcome<()>, TranscriptStop> {
    transcript.because("the ConfigMap is missing");
    let body = json!({
        "apiVersion": CONFIG_MAPS.api_version(),
        "kind": CONFIG_MAPS.kind,
        "metadata": {"name": NAME, "annotations": {DESCRIPTION_ANNOTATION: DESCRIPTION}},
        "data": data,
    });
    let namespace = snapshot.namespace.clone();
    let request = Request::Create { kind: ROOT_CA_CONFIG_MAPS, namespace, below: None, body };
    match transcript.send(request)? {
        // Nothing can be created there any more.
        Err(error) if error.is_not_found() || error.is_namespace_terminating() => {
            Ok(SyncOutcome::done())
        }
        Err(error) => Err(error.into()),
        Ok(_) => Ok(SyncOutcome::done()),
    }
}

#[cfg(test)]
mod tests {
    use pintle_api_types::request::{Answer, ApiError};
    use pintle_controllers_core::frame::drive;

    use super::*;
    use crate::testing::at;

    fn synced(config_map: Option<Value>, answer: Answer) -> (Vec<Request>, bool) {
        let config_map = config_map.map(|value| {
            Rc::new(KeptObject::<RootCaConfigMap>::of_value(&value).expect("a ConfigMap"))
        });
        let snapshot = PublishedBundle { namespace: "n".into(), root_ca: "ca".into(), config_map };
        let driven = drive::<RootCaPublisher>(&snapshot, at(0).wall, |_| answer.clone());
        (driven.requests, driven.outcome.is_ok())
    }

    fn config_map(data: Value, annotations: Value) -> Option<Value> {
        Some(json!({"metadata": {"name": NAME, "namespace": "n", "annotations": annotations},
            "data": data, "other": 1}))
    }

    // k8s: publisher_test.go TestConfigMapCreation
    #[test]
    fn config_map_is_corrected_only_if_its_bundle_or_description_is_wrong() {
        let good = json!({"ca.crt": "ca"});
        let described = json!({DESCRIPTION_ANNOTATION: "custom", "a": "b"});
        for (data, annotations, is_replaced) in [
            (good.clone(), described.clone(), false),
            (good.clone(), json!({}), true),
            (good, Value::Null, true),
            (json!({"ca.crt": "old"}), described.clone(), true),
            (json!({"ca.crt": "ca", "more": "x"}), described.clone(), true),
            (Value::Null, described, true),
        ] {
            let (requests, is_ok) = synced(config_map(data, annotations), Ok(Value::Null));
            assert!(is_ok);
            assert_eq!(requests.len(), usize::from(is_replaced), "{requests:?}");
            if let Some(Request::Replace { body, .. }) = requests.first() {
                assert_eq!(body["data"], json!({"ca.crt": "ca"}));
                assert_eq!(body["metadata"]["annotations"][DESCRIPTION_ANNOTATION], DESCRIPTION);
                assert_eq!(body["other"], 1);
            }
        }
    }

    #[test]
    fn creation_fails_only_when_the_namespace_still_takes_objects() {
        let error = |reason: &str, cause: &str| ApiError {
            reason: reason.into(),
            causes: vec![cause.into()],
            ..ApiError::default()
        };
        for (answer, is_good) in [
            (Ok(Value::Null), true),
            (Err(error("NotFound", "")), true),
            (Err(error("Forbidden", "NamespaceTerminating")), true),
            (Err(error("Forbidden", "")), false),
        ] {
            let (requests, is_ok) = synced(None, answer);
            assert_eq!(is_ok, is_good);
            let [Request::Create { body, .. }] = &*requests else { panic!("{requests:?}") };
            assert_eq!(body["data"]["ca.crt"], "ca");
        }
    }
}
