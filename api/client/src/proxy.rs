//! The proxy between us and the server: from the kubeconfig or the environment.
//!
//! `Proxy` is its address and how to ask it for a tunnel; `dial` speaks with it. Pure but for
//! `from_env`, which reads variables.
// k8s: staging/src/k8s.io/client-go/rest/transport.go, golang.org/x/net/http/httpproxy

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;

/// The protocol of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyKind {
    /// CONNECT.
    Http,
    /// CONNECT inside TLS.
    Https,
    /// SOCKS 5; the proxy looks up names.
    Socks5,
}

/// A URL of no proxy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyUrlError {
    #[error("{0}")]
    Url(http::uri::InvalidUri),
    #[error("the scheme {0:?} is not known")]
    Scheme(String),
    #[error("there is no host")]
    NoHost,
}

/// A proxy.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) kind: ProxyKind,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Name and password.
    user: Option<(String, String)>,
}

impl Proxy {
    /// From a URL.
    pub(crate) fn parse(url: &str) -> Result<Self, ProxyUrlError> {
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = full.parse().map_err(ProxyUrlError::Url)?;
        let (kind, port) = match uri.scheme_str() {
            Some("http") => (ProxyKind::Http, 80),
            Some("https") => (ProxyKind::Https, 443),
            Some("socks5" | "socks5h") => (ProxyKind::Socks5, 1080),
            other => return Err(ProxyUrlError::Scheme(other.unwrap_or("").to_owned())),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(ProxyUrlError::NoHost)?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let user = authority.rsplit_once('@').map(|(user, _)| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            (decoded(name), decoded(password))
        });
        let host = host.trim_matches(['[', ']']).to_owned();
        Ok(Self { kind, host, port: uri.port_u16().unwrap_or(port), user })
    }

    /// From `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`.
    pub(crate) fn from_env(server: &Uri) -> Option<Self> {
        let host = server.host()?.trim_matches(['[', ']']);
        let set = |name: String| std::env::var(name).ok().filter(|value| !value.is_empty());
        let variable = |name: &str| set(name.to_owned()).or_else(|| set(name.to_lowercase()));
        let (name, port) = match server.scheme_str() {
            Some("http") => ("HTTP_PROXY", 80),
            _ => ("HTTPS_PROXY", 443),
        };
        let port = server.port_u16().unwrap_or(port);
        if is_direct(host, port, &variable("NO_PROXY").unwrap_or_default()) {
            return None;
        }
        Self::parse(&variable(name)?).ok()
    }

    /// The request for a tunnel to a server.
    pub(crate) fn connect_request(&self, host: &str, port: u16) -> String {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let user = self.user.as_ref().map(|(name, password)| {
            let both = STANDARD.encode(format!("{name}:{password}"));
            format!("Proxy-Authorization: Basic {both}\r\n")
        });
        let user = user.unwrap_or_default();
        format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{user}\r\n")
    }

    /// Name and password for SOCKS.
    pub(crate) fn user(&self) -> Option<(&str, &str)> {
        self.user.as_ref().map(|(name, password)| (name.as_str(), password.as_str()))
    }
}

fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// True if no proxy is used for a server: it is loopback, or matches a list of names, addresses and
/// networks. All but networks may have a port; then only that port matches.
// k8s: golang.org/x/net/http/httpproxy/proxy.go init, useProxy
fn is_direct(host: &str, port: u16, list: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let ip: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
        return true;
    }
    let list = list.to_ascii_lowercase();
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        if let Some((net, bits)) = entry.split_once('/') {
            return ip.is_some_and(|ip| in_net(ip, net, bits));
        }
        let (name, only) = split_port(entry);
        let is_meant = match (name.parse::<IpAddr>(), ip) {
            (Ok(named), ip) => ip == Some(named),
            (Err(_), None) => is_of(&host, name),
            (Err(_), Some(_)) => false,
        };
        entry == "*" || (is_meant && (only.is_empty() || only == port.to_string()))
    })
}

/// An address of version 6 has colons of its own, and brackets where a port follows.
fn split_port(entry: &str) -> (&str, &str) {
    match entry.rsplit_once(':') {
        Some((name, port)) if name.starts_with('[') && name.ends_with(']') => {
            (name.trim_matches(['[', ']']), port)
        }
        Some((name, port)) if !name.contains(':') => (name, port),
        _ => (entry, ""),
    }
}

/// True if a host is the named one or below it; below it only, if the name begins with a dot.
fn is_of(host: &str, name: &str) -> bool {
    let name = if name.starts_with("*.") { &name[1..] } else { name };
    let below = host
        .strip_suffix(name)
        .is_some_and(|head| !name.is_empty() && (name.starts_with('.') || head.ends_with('.')));
    below || host == name
}

fn in_net(ip: IpAddr, net: &str, bits: &str) -> bool {
    let (Ok(net), Ok(bits)) = (net.parse::<IpAddr>(), bits.parse::<u32>()) else { return false };
    match (ip, net) {
        (IpAddr::V4(ip), IpAddr::V4(net)) if bits <= 32 => {
            let shift = 32 - bits;
            u64::from(ip.to_bits()) >> shift == u64::from(net.to_bits()) >> shift
        }
        (IpAddr::V6(ip), IpAddr::V6(net)) if bits <= 128 => {
            let shifted = |ip: u128| ip.checked_shr(128 - bits).unwrap_or(0);
            shifted(ip.to_bits()) == shifted(net.to_bits())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_become_proxies() {
        let proxy = Proxy::parse("http://a%40b:p%3A@proxy.test:3128").expect("a proxy");
        assert_eq!(
            (proxy.kind, proxy.host.as_str(), proxy.port),
            (ProxyKind::Http, "proxy.test", 3128)
        );
        assert_eq!(proxy.user(), Some(("a@b", "p:")));
        let asked = proxy.connect_request("2001:db8::1", 6443);
        assert!(asked.starts_with("CONNECT [2001:db8::1]:6443 HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains("Proxy-Authorization: Basic YUBiOnA6\r\n"), "{asked}");
        assert_eq!(Proxy::parse("socks5://p").expect("a proxy").port, 1080);
        assert_eq!(Proxy::parse("https://[::1]").expect("a proxy").host, "::1");
        assert!(Proxy::parse("ftp://p").is_err() && Proxy::parse("http://").is_err());
    }

    #[test]
    fn lists_of_exceptions_name_hosts_domains_and_networks() {
        for (host, list, direct) in [
            ("localhost", "", true),
            ("127.0.0.1", "", true),
            ("api.test", "", false),
            ("api.test", "x, api.test", true),
            ("api.corp.test", "corp.test", true),
            ("corp.test", ".corp.test", false),
            ("api.corp.test", "*.corp.test", true),
            ("xcorp.test", "corp.test", false),
            ("10.1.2.3", "10.0.0.0/8", true),
            ("11.1.2.3", "10.0.0.0/8", false),
            ("2001:db8::9", "2001:db8::/32", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("api.test", "*", true),
            ("10.1.2.3", "10.1.2.3:6443", true),
            ("10.1.2.3", "10.1.2.3:443", false),
            ("2001:db8::9", "[2001:db8::9]:6443", true),
            ("2001:db8::9", "2001:db8::9", true),
            ("api.corp.test", "x:6443,.corp.test:6443", true),
            ("api.corp.test", "corp.test:80", false),
            ("api.test", "API.test", true),
            ("API.test", "api.test", true),
        ] {
            assert_eq!(is_direct(host, 6443, list), direct, "{host} {list:?}");
        }
    }
}
