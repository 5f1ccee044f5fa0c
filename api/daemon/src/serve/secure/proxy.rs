//! Users that a trusted proxy names in headers: a proxy is trusted if its certificate was signed by
//! these authorities.
//!
//! Input: a connection's certificates, a request's headers. Output: the user, or why the proxy is
//! not trusted. Owner: the authenticator. Bounds: those of a request's head.
// k8s: staging/src/k8s.io/apiserver/pkg/authentication/request/headerrequest/requestheader.go

use std::collections::BTreeMap;
use std::path::PathBuf;

use hyper::header::HeaderMap;
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::super::query::decode_path;
use super::AccessError;
use super::client_ca::{ClientCa, ClientCaError};
use super::subject::subject;
use super::user::User;

/// Trusted proxies, and the headers in which they name users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Names of proxies; none for all that have a certificate.
    pub allowed_names: Vec<String>,
    /// Headers with the user's name: the first that is there counts.
    pub usernames: Vec<String>,
    /// Headers with the user's uid: the first that is there counts.
    pub uids: Vec<String>,
    /// Headers with groups: all count.
    pub groups: Vec<String>,
    /// Prefixes of headers with extra fields.
    pub extra_prefixes: Vec<String>,
}

/// The settings of proxies that a daemon has of its own.
#[derive(Clone, Debug)]
pub struct Proxies {
    /// Their authorities: the setting, and the file it names.
    pub client_ca: (&'static str, PathBuf),
    /// The rest.
    pub headers: Headers,
}

/// Proxies with their authorities.
pub(super) struct RequestProxy {
    pub(super) ca: ClientCa,
    pub(super) headers: Headers,
}

impl RequestProxy {
    pub(super) fn open(of: &Proxies) -> Result<Self, AccessError> {
        let (field, path) = of.client_ca.clone();
        Ok(Self { ca: ClientCa::open(field, path)?, headers: of.headers.clone() })
    }

    /// The user of a request; `None` where the proxy names none.
    pub(super) fn user(
        &self,
        headers: &HeaderMap,
        certificates: &[CertificateDer<'static>],
    ) -> Result<Option<User>, ClientCaError> {
        let Some((leaf, chain)) = certificates.split_first() else { return Ok(None) };
        self.ca.generation();
        self.ca.verify(leaf, chain)?;
        let name = subject(leaf).map(|subject| subject.name).unwrap_or_default();
        let allowed = &self.headers.allowed_names;
        if !allowed.is_empty() && !allowed.contains(&name) {
            return Err(ClientCaError::NotAllowed(name));
        }
        Ok(self.headers.user(headers))
    }
}

impl Headers {
    fn user(&self, headers: &HeaderMap) -> Option<User> {
        let all = |names: &[String]| -> Vec<String> {
            let values = names.iter().flat_map(|name| headers.get_all(name.as_str()));
            values.filter_map(|value| Some(value.to_str().ok()?.to_owned())).collect()
        };
        let first = |names: &[String]| all(names).into_iter().find(|value| !value.is_empty());
        let name = first(&self.usernames)?;
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for prefix in &self.extra_prefixes {
            let prefix = prefix.to_ascii_lowercase();
            for (header, value) in headers {
                let Some(key) = header.as_str().strip_prefix(&prefix) else { continue };
                let Ok(value) = value.to_str() else { continue };
                let key = decode_path(key).unwrap_or_else(|| key.to_owned());
                extra.entry(key).or_default().push(value.to_owned());
            }
        }
        let uid = first(&self.uids).unwrap_or_default();
        Some(User { name, uid, groups: all(&self.groups), extra })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderName, HeaderValue};
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };

    fn user(given: &[(&str, &str)]) -> Option<User> {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
        let headers = Headers {
            allowed_names: Vec::new(),
            usernames: texts(&["X-Remote-User", "X-Other-User"]),
            uids: texts(&["X-Remote-Uid"]),
            groups: texts(&["X-Remote-Group", "X-Team"]),
            extra_prefixes: texts(&["X-Remote-Extra-"]),
        };
        let mut map = HeaderMap::new();
        for (name, value) in given {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            map.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        headers.user(&map)
    }

    #[test]
    fn request_headers_yield_user_uid_groups_and_extra() {
        let found = user(&[
            ("x-remote-user", ""),
            ("x-other-user", "jane"),
            ("x-remote-uid", "7"),
            ("x-team", "c"),
            ("x-remote-group", "a"),
            ("x-remote-group", "b"),
            ("x-remote-extra-example.com%2fscope", "one"),
            ("x-remote-extra-example.com%2fscope", "two"),
        ]);
        let found = found.expect("a user");
        assert_eq!((&*found.name, &*found.uid), ("jane", "7"));
        assert_eq!(found.groups, ["a", "b", "c"]);
        assert_eq!(found.extra["example.com/scope"], ["one", "two"]);
    }

    #[test]
    fn request_headers_without_a_user_name_yield_no_user() {
        assert_eq!(user(&[("x-remote-group", "system:masters"), ("x-remote-uid", "7")]), None);
    }

    fn named(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    #[test]
    fn proxy_certificate_name_must_be_allowed_where_names_are_listed() {
        let (mut ca, key) = (named("proxies"), KeyPair::generate().expect("a key"));
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let file = tempfile::NamedTempFile::new().expect("a file");
        let pem = ca.self_signed(&key).expect("a certificate").pem();
        std::fs::write(file.path(), pem).expect("written");
        let ca = Issuer::new(ca, key);
        let of = |name: &str| {
            let mut leaf = named(name);
            leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate().expect("a key");
            vec![leaf.signed_by(&key, &ca).expect("a certificate").der().clone()]
        };
        let said = |allowed: &[&str], name: &str| {
            let headers = Headers {
                allowed_names: allowed.iter().map(|name| (*name).to_owned()).collect(),
                usernames: vec!["X-Remote-User".to_owned()],
                ..Headers::default()
            };
            let client_ca = ("--requestheader-client-ca-file", file.path().to_owned());
            let proxy = RequestProxy::open(&Proxies { client_ca, headers }).expect("authorities");
            let head = [("x-remote-user", "jane")].map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            let found = proxy.user(&head.into_iter().collect(), &of(name));
            found.map(|user| user.map(|user| user.name))
        };
        let jane = Ok(Some("jane".to_owned()));
        assert_eq!(said(&["other", "front"], "front"), jane);
        assert_eq!(said(&[], "anybody"), jane, "none is listed");
        let refused = |name: &str| Err(ClientCaError::NotAllowed(name.to_owned()));
        assert_eq!(said(&["front"], "other"), refused("other"));
        assert_eq!(said(&["front"], "front "), refused("front "), "the name as a whole");
    }
}
