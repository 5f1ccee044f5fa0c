//! `/etc/resolv.conf` and `/etc/hosts`: the name servers, and names that need no question.
//!
//! Pure. Bounds: `SERVERS_MAX` servers as everywhere, the resolver's own bounds of other numbers.
// Go: net/dnsconfig_unix.go dnsReadConfig, net/hosts.go

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Servers that are queried.
const SERVERS_MAX: usize = 3;
/// The port of name servers.
const PORT: u16 = 53;
/// Longest name, in bytes, with its last dot.
const NAME_BYTES_MAX: usize = 254;

/// The content of `/etc/resolv.conf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) servers: Vec<SocketAddr>,
    search: Vec<String>,
    ndots: usize,
    /// Of one question to one server.
    pub(super) timeout: Duration,
    /// Rounds over all servers.
    pub(super) attempts: usize,
}

impl Config {
    /// Reads a file's text; missing settings are as in the resolver's manual.
    pub(super) fn parse(text: &str) -> Self {
        let mut config = Self {
            servers: Vec::new(),
            search: Vec::new(),
            ndots: 1,
            timeout: Duration::from_secs(5),
            attempts: 2,
        };
        for line in text.lines().filter(|line| !line.starts_with(['#', ';'])) {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") if config.servers.len() < SERVERS_MAX => {
                    let server = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                    config.servers.extend(server.map(|ip| SocketAddr::new(ip, PORT)));
                }
                Some("domain") => config.search = words.next().map(rooted).into_iter().collect(),
                Some("search") => config.search = words.map(rooted).collect(),
                Some("options") => words.for_each(|word| config.option(word)),
                _ => {}
            }
        }
        config.search.retain(|domain| domain != ".");
        if config.servers.is_empty() {
            config.servers.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT));
        }
        config
    }

    fn option(&mut self, word: &str) {
        let Some((name, value)) = word.split_once(':') else { return };
        let number = value.parse().unwrap_or(0_usize);
        match name {
            "ndots" => self.ndots = number.min(15),
            "timeout" => self.timeout = Duration::from_secs(number.clamp(1, 30) as u64),
            "attempts" => self.attempts = number.clamp(1, 5),
            _ => {}
        }
    }

    /// The names to query, in order, each with its last dot.
    // Go: net/dnsclient_unix.go nameList
    pub(super) fn names(&self, name: &str) -> Vec<String> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Vec::new();
        }
        if name.ends_with('.') {
            return vec![name.to_owned()];
        }
        let itself = rooted(name);
        let below = self.search.iter().map(|domain| format!("{itself}{domain}"));
        let mut names: Vec<_> = below.filter(|name| name.len() <= NAME_BYTES_MAX).collect();
        let dots = name.bytes().filter(|byte| *byte == b'.').count();
        let at = if dots >= self.ndots { 0 } else { names.len() };
        names.insert(at, itself);
        names
    }
}

fn rooted(name: &str) -> String {
    if name.ends_with('.') { name.to_owned() } else { format!("{name}.") }
}

/// The content of `/etc/hosts`: addresses by name in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hosts(BTreeMap<String, Vec<IpAddr>>);

impl Hosts {
    /// Reads a file's text.
    pub(super) fn parse(text: &str) -> Self {
        let mut hosts = BTreeMap::<String, Vec<IpAddr>>::new();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            let Some(ip) = words.next().and_then(|word| word.parse().ok()) else { continue };
            for name in words {
                let ips = hosts.entry(name.trim_end_matches('.').to_ascii_lowercase()).or_default();
                if !ips.contains(&ip) {
                    ips.push(ip);
                }
            }
        }
        Self(hosts)
    }

    /// The addresses of a name; those of `localhost` are always known.
    pub(super) fn get(&self, name: &str) -> Vec<IpAddr> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        match self.0.get(&name) {
            Some(ips) => ips.clone(),
            None if name == "localhost" => vec![Ipv4Addr::LOCALHOST.into()],
            None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_servers_search_and_options_are_parsed_within_their_limits() {
        let config = Config::parse(
            "# c\ndomain a.example\nnameserver 10.0.0.1\nnameserver nope\nnameserver fd00::1\n\
             nameserver 10.0.0.3\nnameserver 10.0.0.4\nsearch b.example c.example. .\n\
             options ndots:99 timeout:0 attempts:3 rotate edns0\n",
        );
        let ips: Vec<_> = config.servers.iter().map(|server| server.ip().to_string()).collect();
        assert_eq!(ips, ["10.0.0.1", "fd00::1", "10.0.0.3"]);
        assert_eq!(config.search, ["b.example.", "c.example."]);
        assert_eq!((config.ndots, config.timeout.as_secs(), config.attempts), (15, 1, 3));
        let none = Config::parse("");
        assert_eq!(none.servers, ["127.0.0.1:53".parse().expect("an address")]);
        assert_eq!((none.ndots, none.timeout.as_secs(), none.attempts), (1, 5, 2));
    }

    #[test]
    fn names_with_ndots_dots_are_queried_verbatim_before_the_search_list() {
        let config = Config::parse("search ns.svc example\noptions ndots:2\n");
        for (name, names) in [
            ("web", &["web.ns.svc.", "web.example.", "web."][..]),
            ("a.b.c", &["a.b.c.", "a.b.c.ns.svc.", "a.b.c.example."]),
            ("a.b.c.", &["a.b.c."]),
            ("", &[]),
        ] {
            assert_eq!(config.names(name), names, "{name}");
        }
        assert!(config.names(&"x".repeat(300)).is_empty());
    }

    #[test]
    fn hosts_file_lookup_is_case_insensitive() {
        let hosts =
            Hosts::parse("10.0.0.1 Web.example web # a\nbad x\nfd00::1 web\n10.0.0.1 web\n");
        let ips = |name| hosts.get(name).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(ips("WEB"), ["10.0.0.1", "fd00::1"]);
        assert_eq!(ips("web.example."), ["10.0.0.1"]);
        assert_eq!(ips("x"), [""; 0]);
        assert_eq!(ips("localhost"), ["127.0.0.1"]);
    }
}
