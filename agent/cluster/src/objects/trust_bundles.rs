//! Certificates of authorities from ClusterTrustBundles, for volumes that show them.
//!
//! By name, or all bundles of a signer with matching labels: then of all bundles together, each
//! certificate once, in the order of their bytes. Bundles are few and any of them may match a
//! selector, so there is one watch of them all, opened by the first volume that asks. A change
//! notifies the pods that asked, while they are registered.
//!
//! Effects, but for `Bundles`. Owner: `Objects`. Bounds: `BUNDLES_MAX`, and the informers' for
//! each.
// k8s: pkg/kubelet/clustertrustbundle/clustertrustbundle_manager.go

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::Client;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::payload::TrustRequest;
use pintle_agent_core::worker::PodsInput;
use pintle_api_types::pruned_object;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;

use super::collection::{Collection, CollectionRecord, CollectionState};
use super::label_selector;
use super::object::ObjectFields;

/// Bundles that are kept.
const BUNDLES_MAX: usize = 4096;
/// How long a volume waits for the bundles to become known.
// k8s: pkg/kubelet/clustertrustbundle/clustertrustbundle_manager.go ensureManagerSet
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Characters of a line of PEM.
const LINE: usize = 64;

#[derive(PartialEq, Deserialize)]
pub(super) struct BundleWire {
    #[serde(default)]
    metadata: ObjectFields,
    spec: BundleSpecWire,
}

pruned_object!(BundleWire);

#[derive(PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BundleSpecWire {
    #[serde(default)]
    signer_name: String,
    trust_bundle: String,
}

struct Bundle {
    signer: String,
    labels: BTreeMap<String, String>,
    certificates: BTreeSet<Vec<u8>>,
}

/// All bundles by name.
#[derive(Default)]
pub(super) struct Bundles(BTreeMap<String, Bundle>);

impl CollectionRecord for Bundles {
    type Wire = BundleWire;
    const PATHS: &'static [&'static str] = &[
        "/apis/certificates.k8s.io/v1beta1/clustertrustbundles",
        "/apis/certificates.k8s.io/v1alpha1/clustertrustbundles",
    ];
    const NAME: &'static str = "trust bundles";

    fn put(&mut self, object: BundleWire) -> bool {
        let name = object.metadata.name;
        if self.0.len() >= BUNDLES_MAX && !self.0.contains_key(&name) {
            return false;
        }
        let found = CertificateDer::pem_slice_iter(object.spec.trust_bundle.as_bytes());
        let certificates = found.flatten().map(|der| der.as_ref().to_vec()).collect();
        let signer = object.spec.signer_name;
        let labels = object.metadata.labels;
        self.0.insert(name, Bundle { signer, labels, certificates });
        true
    }

    fn remove(&mut self, _: &str, name: &str) {
        self.0.remove(name);
    }

    fn keep(&mut self, earlier: Self, stays: &dyn Fn(&str, &str) -> bool) {
        for (name, bundle) in earlier.0.into_iter().filter(|(name, _)| stays("", name)) {
            if self.0.len() < BUNDLES_MAX {
                self.0.entry(name).or_insert(bundle);
            }
        }
    }
}

/// Reason why a volume has no trust bundle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BundleError {
    #[error(
        "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {0:?} not found"
    )]
    NotFound(String),
    #[error("ClusterTrustBundle projection requires either name or signerName to be set")]
    NoName,
    #[error("while parsing label selector: {0}")]
    Selector(String),
    #[error("combination of signerName and labelSelector matched zero ClusterTrustBundles")]
    NoMatch,
    /// The API server does not have the kind.
    // k8s: pkg/kubelet/clustertrustbundle/clustertrustbundle_manager.go NoopManager
    #[error("ClusterTrustBundle projection is not supported in static kubelet mode")]
    Unsupported,
    #[error("ClusterTrustBundle informer has not yet synced")]
    NotSynced,
}

impl Bundles {
    /// The certificates for a volume, as PEM; or why there are none.
    fn find(&self, request: &TrustRequest) -> Result<Vec<u8>, BundleError> {
        let found: Vec<&Bundle> = match (&request.name, &request.signer) {
            (Some(name), _) => match self.0.get(name) {
                Some(bundle) => vec![bundle],
                None if request.optional => Vec::new(),
                None => return Err(BundleError::NotFound(name.clone())),
            },
            (None, Some(signer)) => self.of_signer(signer, request)?,
            (None, None) => return Err(BundleError::NoName),
        };
        let all: BTreeSet<&Vec<u8>> = found.iter().flat_map(|b| &b.certificates).collect();
        Ok(all.into_iter().flat_map(|der| pem("CERTIFICATE", der)).collect())
    }

    fn of_signer(&self, signer: &str, request: &TrustRequest) -> Result<Vec<&Bundle>, BundleError> {
        let mut found = Vec::new();
        for bundle in self.0.values() {
            let matches = label_selector::matches(request.labels.as_ref(), &bundle.labels)
                .map_err(|error| BundleError::Selector(error.to_string()))?;
            if bundle.signer == signer && matches {
                found.push(bundle);
            }
        }
        if found.is_empty() && !request.optional {
            return Err(BundleError::NoMatch);
        }
        Ok(found)
    }
}

/// Certificates as Go writes them, without text around them.
// k8s: pkg/kubelet/podcertificate/podcertificatemanager.go cleanCertificateChain
pub(super) fn clean_pem(text: &str) -> String {
    let found = CertificateDer::pem_slice_iter(text.as_bytes()).flatten();
    let clean = found.flat_map(|der| pem("CERTIFICATE", &der)).collect();
    String::from_utf8(clean).unwrap_or_default()
}

/// PEM as Go writes it.
pub(super) fn pem(label: &str, der: &[u8]) -> Vec<u8> {
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n").into_bytes();
    for line in text.as_bytes().chunks(LINE) {
        pem.extend_from_slice(line);
        pem.push(b'\n');
    }
    pem.extend_from_slice(format!("-----END {label}-----\n").as_bytes());
    pem
}

/// The bundles, and the pods that show them.
pub(super) struct TrustBundles {
    client: Client,
    inputs: mpsc::Sender<PodsInput>,
    all: Collection<Bundles>,
    shown_by: Rc<RefCell<BTreeSet<PodUid>>>,
    teller: RefCell<Option<JoinHandle<()>>>,
}

impl Drop for TrustBundles {
    fn drop(&mut self) {
        if let Some(teller) = self.teller.borrow_mut().take() {
            teller.abort();
        }
    }
}

impl TrustBundles {
    pub(super) fn new(client: Client, inputs: mpsc::Sender<PodsInput>) -> Self {
        Self {
            client,
            inputs,
            all: Collection::default(),
            shown_by: Rc::default(),
            teller: RefCell::default(),
        }
    }

    /// The certificates for a pod's volume; a possible change is sent to the pod's worker.
    pub(super) async fn get(
        &self,
        uid: &PodUid,
        request: &TrustRequest,
    ) -> Result<Vec<u8>, BundleError> {
        self.shown_by.borrow_mut().insert(uid.clone());
        self.all.open(&self.client);
        self.teller.borrow_mut().get_or_insert_with(|| {
            let (mut changes, inputs) = (self.all.changes(), self.inputs.clone());
            let shown_by = Rc::clone(&self.shown_by);
            pintle_daemon::tasks::singleton("trust bundles", async move {
                while changes.changed().await.is_ok() {
                    let pods = shown_by.borrow().clone();
                    for uid in pods {
                        // Without a driver the queue has no receiver.
                        let _ = inputs.send(PodsInput::Content { uid, files: true }).await;
                    }
                }
            })
        });
        match self.all.known(WAIT_MAX).await {
            CollectionState::All => self.all.kept().find(request),
            CollectionState::NoKind => Err(BundleError::Unsupported),
            CollectionState::Nothing => Err(BundleError::NotSynced),
        }
    }

    /// Forgets a pod; without any the bundles are not followed any more.
    pub(super) fn forget(&self, uid: &PodUid) {
        let mut pods = self.shown_by.borrow_mut();
        pods.remove(uid);
        if pods.is_empty() {
            self.all.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A bundle of these certificates.
    fn bundle(name: &str, signer: &str, label: &str, all: &[&str]) -> BundleWire {
        let text: Vec<u8> =
            all.iter().flat_map(|bytes| pem("CERTIFICATE", bytes.as_bytes())).collect();
        let text = format!("comment\n{}", String::from_utf8(text).expect("text"));
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"l": label}},
            "spec": {"signerName": signer, "trustBundle": text},
        }))
        .expect("a bundle")
    }

    fn bundles() -> Bundles {
        let mut all = Bundles::default();
        all.put(bundle("plain", "", "x", &["b", "a", "b"]));
        all.put(bundle("s1", "sig.example/s", "x", &["c", "d"]));
        all.put(bundle("s2", "sig.example/s", "y", &["d", "e"]));
        all
    }

    fn request(name: Option<&str>, signer: Option<&str>, labels: &str) -> TrustRequest {
        TrustRequest {
            path: "ca.pem".to_owned(),
            name: name.map(str::to_owned),
            signer: signer.map(str::to_owned),
            labels: serde_json::from_str(labels).expect("a selector"),
            optional: false,
        }
    }

    fn shown(pem: &[u8]) -> Vec<String> {
        let found = CertificateDer::pem_slice_iter(pem);
        found.flatten().map(|der| String::from_utf8_lossy(&der).into_owned()).collect()
    }

    #[test]
    fn a_volume_shows_a_bundle_or_all_of_a_signer_that_match_each_certificate_once() {
        let all = bundles();
        let signer = Some("sig.example/s");
        let table = [
            (request(Some("plain"), None, "null"), vec!["a", "b"]),
            (request(None, signer, "{}"), vec!["c", "d", "e"]),
            (request(None, signer, r#"{"matchLabels": {"l": "y"}}"#), vec!["d", "e"]),
        ];
        for (request, want) in table {
            assert_eq!(shown(&all.find(&request).expect("found")), want, "{request:?}");
        }
    }

    // k8s: pkg/kubelet/clustertrustbundle/clustertrustbundle_manager_test.go
    #[test]
    fn missing_trust_bundle_is_an_error_unless_it_is_optional() {
        let all = bundles();
        let signer = Some("sig.example/s");
        let zero = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
        let table = [
            (request(Some("gone"), None, "null"), "while getting ClusterTrustBundle: "),
            (request(None, signer, "null"), zero),
            (request(None, signer, r#"{"matchLabels": {"l": "z"}}"#), zero),
            (request(None, Some("other/s"), "{}"), zero),
        ];
        for (mut request, want) in table {
            let error = all.find(&request).expect_err(want).to_string();
            assert!(error.starts_with(want), "{error}");
            request.optional = true;
            assert_eq!(all.find(&request), Ok(Vec::new()), "{request:?}");
        }
        let neither = all.find(&request(None, None, "null")).expect_err("neither").to_string();
        assert!(neither.ends_with("requires either name or signerName to be set"), "{neither}");
        let wrong = r#"{"matchExpressions": [{"key": "l", "operator": "Near"}]}"#;
        let error = all.find(&request(None, signer, wrong)).expect_err("no operator").to_string();
        assert!(error.starts_with("while parsing label selector: "), "{error}");
    }

    #[test]
    fn certificates_are_written_as_go_writes_them() {
        let der = vec![0_u8; 60];
        let text = String::from_utf8(pem("CERTIFICATE", &der)).expect("text");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(
            (lines[0], lines[3]),
            ("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----")
        );
        assert_eq!((lines[1].len(), lines[2].len()), (64, 16));
    }
}
