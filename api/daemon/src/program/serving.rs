//! Settings of the HTTPS port: address, certificate, authentication and authorization.
//!
//! Input: the given flags. Output: [`Serving`], or one sentence for the first mistake. Pure.
// k8s: staging/src/k8s.io/apiserver/pkg/server/options/{serving,authentication,authorization}.go

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use pintle_api_types::duration::GoDuration;
use pintle_config::error::ConfigError;
use pintle_config::given::GivenFlags;
use serde_json::Value;

use crate::serve::secure::{Headers, Proxies, tls};
use crate::serve::zpages::Encodings;

/// How a start continues when the cluster's authorities cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerates {
    /// The start continues, and uses them as soon as they can be read.
    Failure,
    /// The start fails.
    Nothing,
}

/// Defaults that differ between components.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// The port.
    pub port: u16,
    /// How a start continues when the cluster's authorities cannot be read.
    pub tolerates: Tolerates,
}

/// Address and rules of a component's HTTPS port.
#[derive(Clone, Debug)]
pub struct Serving {
    /// `None` serves nothing.
    pub address: Option<SocketAddr>,
    /// Certificate and key.
    pub files: Option<(PathBuf, PathBuf)>,
    /// Folder for those that are made; without one they are in memory only.
    pub cert_dir: Option<PathBuf>,
    /// Cipher suites to offer; none names the library's.
    pub suites: Vec<String>,
    /// `VersionTLS12`, `VersionTLS13`.
    pub min_version: String,
    /// Authorities of client certificates.
    pub client_ca: Option<PathBuf>,
    /// Proxies that are trusted to authenticate their clients.
    pub proxies: Option<Proxies>,
    /// `None` does not look up the cluster's authorities; otherwise how a start continues without
    /// them.
    pub lookup: Option<Tolerates>,
    /// Credentials for token reviews.
    pub authentication: Option<PathBuf>,
    /// Credentials for access reviews.
    pub authorization: Option<PathBuf>,
    /// Cache TTLs of token reviews, of permissions and of refusals.
    pub ttls: [Duration; 3],
    /// Paths that are served without credentials.
    pub open_paths: Vec<String>,
    /// Encodings of `/statusz` and `/flagz`.
    pub encodings: Encodings,
}

impl Serving {
    /// Reads the flags.
    ///
    /// # Errors
    /// When a value cannot be used.
    pub fn of_flags(given: &GivenFlags, defaults: Defaults) -> Result<Self, ConfigError> {
        serving(given, defaults)
    }
}

fn wrong(flag: &str, value: &str, problem: &str, remedy: &str) -> ConfigError {
    ConfigError::new(flag, format!("{value:?}"), problem, remedy)
}

fn texts(given: &GivenFlags, name: &str) -> Option<Vec<String>> {
    let all = given.value(name)?.as_array()?;
    Some(all.iter().filter_map(|text| Some(text.as_str()?.to_owned())).collect())
}

fn duration(given: &GivenFlags, name: &str) -> Option<Duration> {
    let read = given.text(name)?.parse::<GoDuration>().ok()?;
    Some(read.to_std())
}

fn serving(given: &GivenFlags, defaults: Defaults) -> Result<Serving, ConfigError> {
    let path = |name: &str| given.text(name).filter(|text| !text.is_empty()).map(PathBuf::from);
    let port = given.value("secure-port").and_then(Value::as_i64).unwrap_or(defaults.port.into());
    let port = u16::try_from(port).map_err(|_| {
        wrong("--secure-port", &port.to_string(), "it is no port", "choose 0 to 65535")
    })?;
    let address = match given.text("bind-address") {
        None => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Some(text) => text.parse().map_err(|_| {
            wrong("--bind-address", text, "it is no IP address", "give one, or 0.0.0.0")
        })?,
    };
    let files = match (path("tls-cert-file"), path("tls-private-key-file")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (one, other) => {
            let shown = one.or(other).unwrap_or_default().display().to_string();
            let problem = "a certificate and its key belong together";
            return Err(wrong(
                "--tls-cert-file",
                &shown,
                problem,
                "give --tls-private-key-file too",
            ));
        }
    };
    let suites = texts(given, "tls-cipher-suites").unwrap_or_default();
    let min_version = given.text("tls-min-version").unwrap_or_default().to_owned();
    if port != 0 {
        check_tls(&min_version, &suites)?;
    }
    let ttl = |name: &str| duration(given, name).unwrap_or(Duration::from_secs(10));
    let open = ["/healthz", "/readyz", "/livez"].map(str::to_owned).to_vec();
    Ok(Serving {
        address: (port != 0).then(|| SocketAddr::new(address, port)),
        files,
        cert_dir: path("cert-dir"),
        suites,
        min_version,
        client_ca: path("client-ca-file"),
        proxies: path("requestheader-client-ca-file").map(|file| proxies(given, file)),
        lookup: (!given.is_true("authentication-skip-lookup")).then(|| {
            match given.value("authentication-tolerate-lookup-failure") {
                Some(Value::Bool(false)) => Tolerates::Nothing,
                Some(Value::Bool(true)) => Tolerates::Failure,
                _ => defaults.tolerates,
            }
        }),
        authentication: path("authentication-kubeconfig"),
        authorization: path("authorization-kubeconfig"),
        ttls: [
            ttl("authentication-token-webhook-cache-ttl"),
            ttl("authorization-webhook-cache-authorized-ttl"),
            ttl("authorization-webhook-cache-unauthorized-ttl"),
        ],
        open_paths: texts(given, "authorization-always-allow-paths").unwrap_or(open),
        encodings: Encodings::Usual,
    })
}

/// Refuses names that TLS does not know: a slip would leave weaker connections than were asked for.
// k8s: staging/src/k8s.io/apiserver/pkg/server/options/serving.go ApplyTo
fn check_tls(min_version: &str, suites: &[String]) -> Result<(), ConfigError> {
    let versions = ["", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];
    if !versions.contains(&min_version) {
        let problem = "there is no such version of TLS";
        let remedy = "use VersionTLS12 or VersionTLS13";
        return Err(wrong("--tls-min-version", min_version, problem, remedy));
    }
    match tls::unknown_suite(suites) {
        Some(name) => {
            let problem = "there is no such cipher suite";
            Err(wrong("--tls-cipher-suites", name, problem, "correct its name, or remove it"))
        }
        None => Ok(()),
    }
}

/// Proxies with certificates of the authorities in a file.
// k8s: staging/src/k8s.io/apiserver/pkg/server/options/authentication.go RequestHeaderAuthenticationOptions
fn proxies(given: &GivenFlags, file: PathBuf) -> Proxies {
    let all = |name: &str, usual: Option<&str>| {
        let usual = || usual.map(str::to_owned).into_iter().collect();
        texts(given, name).unwrap_or_else(usual)
    };
    let headers = Headers {
        allowed_names: all("requestheader-allowed-names", None),
        usernames: all("requestheader-username-headers", Some("x-remote-user")),
        uids: all("requestheader-uid-headers", None),
        groups: all("requestheader-group-headers", Some("x-remote-group")),
        extra_prefixes: all("requestheader-extra-headers-prefix", Some("x-remote-extra-")),
    };
    Proxies { client_ca: ("--requestheader-client-ca-file", file), headers }
}
