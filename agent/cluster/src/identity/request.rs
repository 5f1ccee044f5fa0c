//! Asks the cluster for a certificate: a CertificateSigningRequest and its answer.
//!
//! Input: the names of the certificate, a key. Output: the certificate in PEM. The key never leaves
//! the node. Bounds: the caller's time limit.
// k8s: staging/src/k8s.io/client-go/util/certificate/csr/csr.go,
//      pkg/kubelet/certificate/bootstrap/bootstrap.go requestNodeCertificate

use std::collections::BTreeSet;
use std::future::{Future, ready};
use std::net::IpAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use kube::api::{Api, PostParams};
use pintle_api::informer::{FirstList, FollowSpec, ObjectSink, follow};
use pintle_api_types::object::UnreadableObject;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _, SanType};
use ring::digest::{Context, SHA512_256};
use tokio::sync::oneshot;

/// First and longest pause before a request is watched again.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Path of the requests.
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// The group of all nodes.
pub const ORGANIZATION: &str = "system:nodes";
/// Signs certificates by which nodes speak to the API server.
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signs certificates that nodes show to others.
pub const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";

/// The names of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// The node.
    pub node: String,
    /// Host names; for serving.
    pub names: BTreeSet<String>,
    /// Addresses; for serving.
    pub addresses: BTreeSet<IpAddr>,
}

impl CertificateNames {
    /// The node's name as a user of the cluster.
    pub fn common_name(&self) -> String {
        format!("system:node:{}", self.node)
    }
}

/// Reason why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The request cannot be made.
    #[error("certificate request: {0}")]
    Make(#[from] rcgen::Error),
    /// The API server does not take it.
    #[error("certificate request: {0}")]
    Send(#[from] Box<kube::Error>),
    /// The request was denied or failed.
    #[error("certificate request {name} was refused: {why}")]
    Refused {
        /// Its name.
        name: String,
        /// The condition's message.
        why: String,
    },
    /// It was not signed in time.
    #[error(
        "certificate request {name} was not signed within {} s; \
         approve it with `kubectl certificate approve {name}`",
        limit.as_secs()
    )]
    Unsigned {
        /// Its name.
        name: String,
        /// The timeout.
        limit: Duration,
    },
}

impl RequestError {
    /// True if the API server answered at all.
    pub fn is_answer(&self) -> bool {
        match self {
            Self::Send(error) => matches!(**error, kube::Error::Api(_)),
            Self::Make(_) => false,
            Self::Refused { .. } | Self::Unsigned { .. } => true,
        }
    }

    /// True if a healthy API server refuses requests with these credentials.
    // k8s: staging/src/k8s.io/client-go/util/certificate/certificate_manager.go updateServerError
    pub fn is_refusal(&self) -> bool {
        let Self::Send(error) = self else { return false };
        let kube::Error::Api(status) = &**error else { return false };
        status.code == 401 || matches!(&*status.reason, "Forbidden" | "NotFound")
    }
}

/// The content of a certificate request.
#[derive(Clone, Copy)]
pub struct WantedCertificate<'a> {
    /// The signer's name.
    pub signer: &'a str,
    /// The names in the certificate.
    pub names: &'a CertificateNames,
    /// The key that the certificate is for.
    pub key: &'a KeyPair,
    /// The request's name stands for its content, so that a restart finds its earlier request
    /// again.
    pub digested: bool,
}

/// Requests a certificate and waits for it.
pub async fn certificate(
    client: kube::Client,
    wanted: WantedCertificate<'_>,
    limit: Duration,
) -> Result<String, RequestError> {
    let WantedCertificate { signer, names, key, digested } = wanted;
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let request = request(signer, names, key, digested)?;
    let name = send(&api, request).await?;
    tracing::info!(request = name, "waiting for the certificate to be signed");
    // The watch continues over broken connections, because the request may just be approved.
    let mut spec = FollowSpec::new("certificate requests", REQUESTS);
    spec.source.field_selector = format!("metadata.name={name}");
    spec.first_list = FirstList::Newest;
    spec.retry = RETRY;
    let (settled, answered) = oneshot::channel();
    let waited = async {
        tokio::select! {
            () = follow(client, spec, Answered(Some(settled))) => None,
            answered = answered => answered.ok(),
        }
    };
    match tokio::time::timeout(limit, waited).await {
        Ok(Some(Ok(certificate))) => Ok(certificate),
        Ok(Some(Err(why))) => Err(RequestError::Refused { name, why: why.to_string() }),
        Ok(None) | Err(_) => Err(RequestError::Unsigned { name, limit }),
    }
}

/// Waits for the answer to the one request that its watch delivers. A deleted request has none.
struct Answered(Option<oneshot::Sender<Result<String, NoCertificate>>>);

impl Answered {
    fn look(&mut self, request: &CertificateSigningRequest) {
        if let Some(answer) = answer(request)
            && let Some(settled) = self.0.take()
        {
            // The waiting caller may have given up.
            let _ = settled.send(answer);
        }
    }
}

impl ObjectSink<CertificateSigningRequest> for Answered {
    fn begin(&mut self) {}

    fn listed(&mut self, request: CertificateSigningRequest) {
        self.look(&request);
    }

    fn listed_unreadable(&mut self, _: Option<UnreadableObject>) {}

    fn complete(&mut self) -> impl Future<Output = ()> {
        ready(())
    }

    fn applied(&mut self, request: CertificateSigningRequest) -> impl Future<Output = ()> {
        self.look(&request);
        ready(())
    }

    fn deleted(&mut self, _: CertificateSigningRequest) -> impl Future<Output = ()> {
        ready(())
    }

    fn deleted_unreadable(&mut self, _: UnreadableObject) -> impl Future<Output = ()> {
        ready(())
    }
}

async fn send(
    api: &Api<CertificateSigningRequest>,
    request: CertificateSigningRequest,
) -> Result<String, RequestError> {
    match api.create(&PostParams::default(), &request).await {
        Ok(made) => Ok(made.metadata.name.unwrap_or_default()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            Ok(request.metadata.name.unwrap_or_default())
        }
        Err(error) => Err(Box::new(error).into()),
    }
}

fn request(
    signer: &str,
    wanted: &CertificateNames,
    key: &KeyPair,
    digested: bool,
) -> Result<CertificateSigningRequest, RequestError> {
    let role = if signer == SERVING_SIGNER { "server auth" } else { "client auth" };
    let usages = ["digital signature", role];
    let mut request = CertificateSigningRequest {
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem(wanted, key)?.into_bytes()),
            signer_name: signer.to_owned(),
            usages: Some(usages.map(str::to_owned).into()),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    match digested {
        true => request.metadata.name = Some(name(wanted, key, &usages)),
        false => request.metadata.generate_name = Some("csr-".to_owned()),
    }
    Ok(request)
}

fn pem(wanted: &CertificateNames, key: &KeyPair) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, ORGANIZATION);
    params.distinguished_name.push(DnType::CommonName, wanted.common_name());
    for name in &wanted.names {
        params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
    }
    params.subject_alt_names.extend(wanted.addresses.iter().map(|ip| SanType::IpAddress(*ip)));
    params.serialize_request(key)?.pem()
}

/// A name that stands for key, subject and usages.
// k8s: pkg/kubelet/certificate/bootstrap/bootstrap.go digestedName
fn name(wanted: &CertificateNames, key: &KeyPair, usages: &[&str]) -> String {
    let mut digest = Context::new(&SHA512_256);
    let (public, user) = (key.subject_public_key_info(), wanted.common_name());
    let parts = [public.as_slice(), user.as_bytes(), ORGANIZATION.as_bytes()];
    let usages = usages.iter().map(|usage| usage.as_bytes());
    for part in parts.into_iter().chain(usages) {
        digest.update(URL_SAFE_NO_PAD.encode(part).as_bytes());
        digest.update(b"|");
    }
    format!("node-csr-{}", URL_SAFE_NO_PAD.encode(digest.finish()))
}

/// Reason why a settled request has no certificate.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum NoCertificate {
    /// It was denied, or its signer failed.
    #[error("{condition}: {words}")]
    Refused { condition: String, words: String },
    #[error(transparent)]
    NoText(#[from] std::string::FromUtf8Error),
}

/// The certificate, or why there will be none; nothing while it is undecided.
fn answer(request: &CertificateSigningRequest) -> Option<Result<String, NoCertificate>> {
    let status = request.status.as_ref()?;
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let bad = conditions.iter().find(|condition| matches!(&*condition.type_, "Denied" | "Failed"));
    if let Some(condition) = bad {
        let words = [condition.reason.as_deref(), condition.message.as_deref()];
        let words: Vec<&str> = words.into_iter().flatten().collect();
        let (condition, words) = (condition.type_.clone(), words.join(": "));
        return Some(Err(NoCertificate::Refused { condition, words }));
    }
    let approved = conditions.iter().any(|condition| condition.type_ == "Approved");
    let certificate = status.certificate.as_ref().filter(|bytes| !bytes.0.is_empty())?;
    approved.then(|| String::from_utf8(certificate.0.clone()).map_err(NoCertificate::from))
}

#[cfg(test)]
mod tests {
    use pintle_api_types::kind::Kind;
    use pintle_api_types::request::ApiError;
    use pintle_memory_api::{Refusal, Verb};
    use pintle_memory_http::SharedServer;
    use serde_json::json;

    use super::*;

    fn wanted() -> CertificateNames {
        CertificateNames {
            node: "n".to_owned(),
            names: ["n".to_owned()].into(),
            addresses: ["192.0.2.1".parse().expect("an address")].into(),
        }
    }

    #[test]
    fn requests_of_the_same_key_and_subject_have_the_same_name() {
        let key = KeyPair::generate().expect("a key");
        let of = |wanted: &CertificateNames, key: &KeyPair| {
            let request = request(CLIENT_SIGNER, wanted, key, true).expect("a request");
            request.metadata.name.expect("a name")
        };
        let first = of(&wanted(), &key);
        assert!(first.starts_with("node-csr-") && first.len() == 9 + 43, "{first}");
        assert_eq!(first, of(&wanted(), &key));
        assert_ne!(first, of(&wanted(), &KeyPair::generate().expect("a key")));
        assert_ne!(first, of(&CertificateNames { node: "m".to_owned(), ..wanted() }, &key));
    }

    #[test]
    fn serving_csr_has_the_usages_and_the_generated_name_the_signer_expects() {
        let key = KeyPair::generate().expect("a key");
        let made = request(SERVING_SIGNER, &wanted(), &key, false).expect("a request");
        let text = serde_json::to_value(&made).expect("JSON");
        assert_eq!(text["spec"]["usages"], json!(["digital signature", "server auth"]));
        assert_eq!(text["metadata"]["generateName"], "csr-");
        let pem = String::from_utf8(made.spec.request.0).expect("text");
        assert!(pem.starts_with("-----BEGIN CERTIFICATE REQUEST-----"), "{pem}");
    }

    #[test]
    fn an_answer_is_a_certificate_or_a_refusal() {
        let of = |status| {
            let request = json!({"metadata": {}, "status": status,
                "spec": {"request": "", "signerName": "s"}});
            answer(&serde_json::from_value(request).expect("a request"))
        };
        let approved = json!([{"type": "Approved", "status": "True"}]);
        assert_eq!(of(json!({})), None);
        assert_eq!(of(json!({"conditions": approved})), None);
        assert_eq!(of(json!({"certificate": "aGk="})), None, "not approved");
        let both = json!({"conditions": approved, "certificate": "aGk="});
        assert_eq!(of(both), Some(Ok("hi".to_owned())));
        let denied = json!({"conditions": [
            {"type": "Denied", "status": "True", "reason": "No", "message": "never"}]});
        assert_eq!(
            of(denied),
            Some(Err(NoCertificate::Refused {
                condition: "Denied".to_owned(),
                words: "No: never".to_owned(),
            }))
        );
    }

    #[tokio::test]
    async fn a_request_outlives_a_watch_that_breaks() {
        let kind = Kind::interned(
            "certificates.k8s.io",
            "v1",
            "certificatesigningrequests",
            "CertificateSigningRequest",
            false,
        );
        let server = SharedServer::new(1);
        let error = ApiError { code: 500, ..ApiError::default() };
        let (verb, times) = (Some(Verb::List), Some(3));
        server.act(|server, _| {
            server.refuse(Refusal { verb, times, error, ..Refusal::default() });
        });
        let sign = async {
            while server.count("GET") < 4 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            server.act(|server, now| {
                let (name, request) = server.objects(kind, "").next().expect("it was created");
                let (name, mut signed) = (name.clone(), serde_json::Value::clone(request));
                let approved = json!([{"type": "Approved", "status": "True"}]);
                signed["status"] = json!({"conditions": approved, "certificate": "aGk="});
                server.put(kind, &name, signed, now);
            });
        };
        let key = KeyPair::generate().expect("a key");
        let (signer, names) = (SERVING_SIGNER, &wanted());
        let wanted = WantedCertificate { signer, names, key: &key, digested: false };
        let asked = certificate(server.client(), wanted, Duration::from_secs(60));
        let (got, ()) = tokio::join!(asked, sign);
        assert_eq!(got.expect("a certificate"), "hi");
        let asked = server.requests();
        assert_eq!(server.count("POST"), 1, "one request, however often it is read: {asked:?}");
        assert!(asked.len() > 4, "{asked:?}");
    }
}
