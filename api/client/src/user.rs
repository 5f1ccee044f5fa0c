//! The fields of a kubeconfig's user, and the credentials of requests.
//!
//! Input: a user and its cluster. Output: a certificate, a secret and the user to act as. The rules
//! are client-go's: at most one of token and password, not both a file and its data, a certificate
//! with its key; a token or certificate wins over a plugin, a key without a certificate is ignored.
//! Every error names file, field and remedy.
// k8s: staging/src/k8s.io/client-go/tools/clientcmd/validation.go validateAuthInfo,
// rest/transport.go TransportConfig, transport/round_trippers.go HTTPWrappersForConfig

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use crate::error::ConnectError;
use crate::exec::ExecPlugin;
use crate::files::{self, FileSource};
use crate::identity::{Certificate, Secret};
use crate::kubeconfig::{Data, KubeconfigCluster, User};

/// Finds faults that do not depend on the server.
pub(crate) fn validate(path: &Path, user: &User) -> Result<(), ConnectError> {
    let fail = |field, problem: &str, remedy| {
        Err(ConnectError::field(path, field, problem.to_owned(), remedy))
    };
    let has_basic = !user.username.is_empty() || !user.password.0.is_empty();
    if has_basic && !user.token.0.is_empty() {
        return fail("token", "there is also a username or password", "set one of them");
    }
    if is_given(&user.client_certificate, &user.client_certificate_data) {
        let one = "set one of them";
        if !user.client_certificate.is_empty() && !user.client_certificate_data.0.is_empty() {
            return fail("client-certificate", "there is also client-certificate-data", one);
        }
        if !user.client_key.is_empty() && !user.client_key_data.0.is_empty() {
            return fail("client-key", "there is also client-key-data", one);
        }
        if !is_given(&user.client_key, &user.client_key_data) {
            let problem = "there is a client certificate but no key";
            return fail("client-key", problem, "set client-key or client-key-data");
        }
        check_readable(path, "client-certificate", &user.client_certificate)?;
        check_readable(path, "client-key", &user.client_key)?;
    }
    if let Some(exec) = &user.exec {
        if user.auth_provider.is_some() {
            return fail("auth-provider", "there is also exec", "remove auth-provider");
        }
        crate::exec::validate(path, exec)?;
    }
    let acts =
        !user.as_uid.is_empty() || !user.as_groups.is_empty() || !user.as_user_extra.is_empty();
    match acts && user.as_user.is_empty() {
        true => fail("as", "it is not set, but what belongs to it is", "name the user"),
        false => Ok(()),
    }
}

/// Fails unless a file that is named can be opened.
pub(crate) fn check_readable(
    path: &Path,
    field: &'static str,
    file: &str,
) -> Result<(), ConnectError> {
    if file.is_empty() {
        return Ok(());
    }
    File::open(file).map(drop).map_err(|error| {
        let problem = format!("{file}: {error}");
        ConnectError::field(path, field, problem, "make the file readable")
    })
}

/// True if a file or its content is given.
fn is_given(file: &str, data: &Data) -> bool {
    !file.is_empty() || !data.0.is_empty()
}

/// Data if there is any, else the file.
pub(crate) fn source(file: &str, data: &Data) -> Option<FileSource> {
    match (data.0.is_empty(), file.is_empty()) {
        (false, _) => Some(FileSource::Inline(data.0.clone())),
        (true, false) => Some(FileSource::File(file.into())),
        (true, true) => None,
    }
}

/// The user's certificate and key.
pub(crate) fn certificate(user: &User) -> Option<Certificate> {
    let cert = source(&user.client_certificate, &user.client_certificate_data)?;
    let key = source(&user.client_key, &user.client_key_data)?;
    Some(Certificate::Given { cert, key })
}

/// Content of the authorization header of requests by TLS.
pub(crate) fn secret(
    path: &Path,
    user: &User,
    cluster: &KubeconfigCluster,
) -> Result<Secret, ConnectError> {
    if let Some(provider) = &user.auth_provider {
        let problem = format!("{:?} is gone from Kubernetes", provider.name);
        return Err(ConnectError::field(path, "auth-provider", problem, "use exec"));
    }
    // A plugin that is not used is checked nevertheless.
    let plugin = user.exec.as_ref().map(|exec| ExecPlugin::new(path, exec, cluster)).transpose()?;
    let has_token = !user.token.0.is_empty() || !user.token_file.is_empty();
    match (has_token, user.username.is_empty(), plugin) {
        (true, true, _) => token(path, user),
        (true, false, _) => {
            let problem = "there is also a username";
            Err(ConnectError::field(path, "tokenFile", problem, "set one of them"))
        }
        (false, false, _) => {
            let both = format!("{}:{}", user.username, user.password.0);
            Ok(Secret::Basic(STANDARD.encode(both)))
        }
        (false, true, Some(plugin)) if certificate(user).is_none() => {
            Ok(Secret::Plugin(Arc::new(plugin)))
        }
        (false, true, _) => Ok(Secret::None),
    }
}

/// The token; that of a file wins as soon as it can be read.
// k8s: staging/src/k8s.io/client-go/transport/round_trippers.go NewBearerAuthWithRefreshRoundTripper
fn token(path: &Path, user: &User) -> Result<Secret, ConnectError> {
    let token = &user.token.0;
    if user.token_file.is_empty() {
        return Ok(Secret::Token(token.clone()));
    }
    let file = PathBuf::from(&user.token_file);
    let fallback = (!token.is_empty()).then(|| token.clone());
    if fallback.is_none() {
        let problem = match files::read(&file) {
            Err(error) => Some(error.to_string()),
            Ok(bytes) if bytes.is_empty() => Some("it is empty".to_owned()),
            Ok(_) => None,
        };
        if let Some(problem) = problem {
            let problem = format!("{}: {problem}", file.display());
            return Err(ConnectError::field(path, "tokenFile", problem, "make the file readable"));
        }
    }
    Ok(Secret::File { path: file, fallback })
}

/// Headers that name the user, the groups and the rest for which requests are made.
// k8s: staging/src/k8s.io/client-go/transport/round_trippers.go impersonatingRoundTripper.RoundTrip
pub(crate) fn impersonation(path: &Path, user: &User) -> Result<HeaderMap, ConnectError> {
    let mut headers = HeaderMap::new();
    if user.as_user.is_empty() {
        return Ok(headers);
    }
    let mut add = |name: &str, value: &str| {
        let broken = || {
            let problem = format!("{name} is no header with this value");
            ConnectError::field(path, "as", problem, "use letters, digits and punctuation")
        };
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| broken())?;
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| broken())?;
        headers.append(name, value);
        Ok(())
    };
    add("impersonate-user", &user.as_user)?;
    if !user.as_uid.is_empty() {
        add("impersonate-uid", &user.as_uid)?;
    }
    for group in &user.as_groups {
        add("impersonate-group", group)?;
    }
    for (key, values) in &user.as_user_extra {
        for value in values {
            add(&format!("impersonate-extra-{}", escaped_key(key)), value)?;
        }
    }
    Ok(headers)
}

/// The user in those headers.
pub(crate) fn impersonated(headers: &HeaderMap) -> Value {
    let of = |name: &str| -> Vec<String> {
        let values = headers.get_all(name).iter();
        values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    };
    let mut extra: Vec<String> = headers
        .keys()
        .filter(|name| name.as_str().starts_with("impersonate-extra-"))
        .flat_map(|name| of(name.as_str()))
        .collect();
    extra.sort();
    let first = |name: &str| of(name).into_iter().next();
    json!({"user": first("impersonate-user"), "uid": first("impersonate-uid"),
        "groups": of("impersonate-group"), "extra": extra})
}

/// A key as a header has it: characters that no token may have are escaped.
// k8s: round_trippers.go headerKeyEscape
fn escaped_key(key: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
    let escaped = key.bytes().map(|byte| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impersonation_names_user_groups_and_escaped_extra_keys() {
        let user = User {
            as_user: "jane".to_owned(),
            as_groups: vec!["a".to_owned(), "b".to_owned()],
            as_user_extra: [("example.com/x".to_owned(), vec!["1".to_owned()])].into(),
            ..User::default()
        };
        let headers = impersonation(Path::new("k"), &user).expect("headers");
        let of = |name: &str| -> Vec<&str> {
            headers.get_all(name).iter().map(|value| value.to_str().expect("text")).collect()
        };
        assert_eq!(of("impersonate-user"), ["jane"]);
        assert_eq!(of("impersonate-group"), ["a", "b"]);
        assert_eq!(of("impersonate-extra-example.com%2Fx"), ["1"]);
        let nobody = impersonation(Path::new("k"), &User::default()).expect("headers");
        assert!(nobody.is_empty());
    }
}
