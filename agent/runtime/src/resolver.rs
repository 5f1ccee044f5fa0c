//! Names of hosts that probes and hooks are sent to, looked up in the node's context.
//!
//! Effects. Input: a name. Output: a connection. Neither the system's resolver nor a thread is
//! involved: a query is a datagram and a wait, which end with the probe that sent it, so a name
//! server that hangs costs no other probe anything. Simultaneous queries for one name are one
//! query. Answers are not kept: a name that moves is followed at once. As with the kubelet's
//! resolver, `/etc/hosts` comes before the servers of `/etc/resolv.conf`; other sources of names
//! are not used. Bounds: `LOOKUPS_MAX` names at a time, `ADDRESSES_MAX` addresses of one,
//! `FILE_BYTES_MAX` of either file; a query ends after the servers' time-outs.
// Go: net/dnsclient_unix.go, net/dial.go

mod files;
mod message;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, Shared, WeakShared};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout, timeout_at};

use self::files::{Config, Hosts};
use self::message::{Family, Reply};

/// Names that are looked up at a time.
const LOOKUPS_MAX: usize = 1024;
/// Longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// How long the files' content holds without another look.
// Go: net/hosts.go cacheMaxAge
const FILES_EVERY: Duration = Duration::from_secs(5);
/// Once one family's addresses are known, the other's are waited for this much longer.
// RFC 8305 section 3
const OTHER_FAMILY_WAIT: Duration = Duration::from_millis(50);
/// How long the first family's addresses have the field for themselves.
// Go: net/dial.go fallbackDelay
const FALLBACK_DELAY: Duration = Duration::from_millis(300);
/// Longest datagram.
const DATAGRAM_BYTES: usize = 4096;
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Why a name has no address; in the words of Go's resolver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The name does not exist.
    #[error("lookup {name} on {server}: no such host")]
    NoSuchHost {
        /// The name.
        name: String,
        /// The server with that answer.
        server: SocketAddr,
    },
    /// No server answered in time.
    #[error("lookup {name} on {server}: i/o timeout")]
    TimedOut {
        /// The name.
        name: String,
        /// The last server queried.
        server: SocketAddr,
    },
    /// A server could not answer.
    #[error("lookup {name} on {server}: {what}")]
    Failed {
        /// The name.
        name: String,
        /// The last server queried.
        server: SocketAddr,
        /// Its answer.
        what: String,
    },
    /// Not a valid name for a query.
    #[error("lookup {name}: no such host")]
    NoName {
        /// The given name.
        name: String,
    },
    /// Too many other names are being looked up.
    #[error("lookup {name}: {LOOKUPS_MAX} lookups are under way already")]
    Busy {
        /// The name.
        name: String,
    },
}

type Resolved = Result<Arc<[IpAddr]>, Error>;
type Lookup = BoxFuture<'static, Resolved>;

/// Looks up names; clones share lookups under way.
#[derive(Clone)]
pub struct Resolver(Arc<Inner>);

struct Inner {
    hosts: PathBuf,
    config: PathBuf,
    files: Mutex<Option<(Instant, Arc<ResolverFiles>)>>,
    under_way: Mutex<HashMap<String, WeakShared<Lookup>>>,
}

struct ResolverFiles {
    hosts: Hosts,
    config: Config,
}

impl Default for Resolver {
    /// The node's.
    fn default() -> Self {
        Self::reading("/etc/hosts".into(), "/etc/resolv.conf".into())
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("config", &self.0.config).finish_non_exhaustive()
    }
}

impl Resolver {
    fn reading(hosts: PathBuf, config: PathBuf) -> Self {
        let (files, under_way) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { hosts, config, files, under_way }))
    }

    /// Connects to an address or a name.
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return TcpStream::connect((ip, port)).await;
        }
        let ips = self.lookup(host).await.map_err(io::Error::other)?;
        let of = |v4: bool| {
            let ips = ips.iter().filter(move |ip| ip.is_ipv4() == v4);
            ips.map(|ip| SocketAddr::new(*ip, port)).collect::<Vec<_>>()
        };
        let v4_first = ips.first().is_some_and(IpAddr::is_ipv4);
        let (first, second) = (of(v4_first), of(!v4_first));
        if second.is_empty() {
            return TcpStream::connect(&*first).await;
        }
        race(&first, &second).await
    }

    /// The addresses of a name, at least one, in the order in which they are to be tried.
    async fn lookup(&self, name: &str) -> Resolved {
        let files = self.files();
        let known = files.hosts.get(name);
        if !known.is_empty() {
            return Ok(in_order(known));
        }
        match self.join(name, files) {
            Some(lookup) => lookup.await,
            None => Err(Error::Busy { name: name.to_owned() }),
        }
    }

    /// The lookup of that name that is under way, or a new one.
    fn join(&self, name: &str, files: Arc<ResolverFiles>) -> Option<Shared<Lookup>> {
        let mut under_way = self.0.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lookup) = under_way.get(name).and_then(WeakShared::upgrade)
            && lookup.peek().is_none()
        {
            return Some(lookup);
        }
        let is_over = |lookup: &WeakShared<Lookup>| {
            lookup.upgrade().is_none_or(|lookup| lookup.peek().is_some())
        };
        under_way.retain(|_, lookup| !is_over(lookup));
        if under_way.len() >= LOOKUPS_MAX {
            return None;
        }
        let asked = name.to_owned();
        let lookup = async move { ask(&files.config, &asked).await }.boxed().shared();
        under_way.insert(name.to_owned(), lookup.downgrade()?);
        Some(lookup)
    }

    /// The content of the files, no older than `FILES_EVERY`.
    fn files(&self) -> Arc<ResolverFiles> {
        let mut files = self.0.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read_at, files)) = &*files
            && read_at.elapsed() < FILES_EVERY
        {
            return Arc::clone(files);
        }
        let hosts = Hosts::parse(&text_of(&self.0.hosts));
        let config = Config::parse(&text_of(&self.0.config));
        let new = Arc::new(ResolverFiles { hosts, config });
        *files = Some((Instant::now(), Arc::clone(&new)));
        new
    }
}

/// A file's text; none when it cannot be read.
fn text_of(path: &Path) -> String {
    let mut text = Vec::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut text));
    match read {
        Ok(_) => String::from_utf8_lossy(&text).into_owned(),
        Err(_) => String::new(),
    }
}

/// Connects to the first family's addresses, and after a while to the second's as well.
// Go: net/dial.go dialParallel
async fn race(first: &[SocketAddr], second: &[SocketAddr]) -> io::Result<TcpStream> {
    let first = TcpStream::connect(first);
    tokio::pin!(first);
    let early = timeout(FALLBACK_DELAY, &mut first).await;
    if let Ok(Ok(stream)) = early {
        return Ok(stream);
    }
    let second = TcpStream::connect(second);
    if let Ok(Err(error)) = early {
        return second.await.map_err(|_| error);
    }
    tokio::pin!(second);
    tokio::select! {
        done = &mut first => match done {
            Ok(stream) => Ok(stream),
            Err(error) => second.await.map_err(|_| error),
        },
        done = &mut second => match done {
            Ok(stream) => Ok(stream),
            Err(_) => first.await,
        },
    }
}

/// Queries each name that the given one may stand for, until one has addresses.
async fn ask(config: &Config, name: &str) -> Resolved {
    let mut failed = None;
    for full in config.names(name) {
        match ask_servers(config, &full).await {
            Ok(ips) => return Ok(ips),
            // The absence of a longer name says less than the other results.
            Err(Error::NoName { .. }) => {}
            Err(error @ Error::NoSuchHost { .. }) => drop(failed.get_or_insert(error)),
            Err(error) => failed = Some(error),
        }
    }
    let failed = failed.unwrap_or_else(|| Error::NoName { name: String::new() });
    Err(called(failed, name))
}

/// The error, with the queried name.
fn called(error: Error, asked: &str) -> Error {
    let name = asked.to_owned();
    match error {
        Error::NoSuchHost { server, .. } => Error::NoSuchHost { name, server },
        Error::TimedOut { server, .. } => Error::TimedOut { name, server },
        Error::Failed { server, what, .. } => Error::Failed { name, server, what },
        Error::NoName { .. } => Error::NoName { name },
        Error::Busy { .. } => Error::Busy { name },
    }
}

async fn ask_servers(config: &Config, name: &str) -> Resolved {
    let mut last = Error::NoName { name: name.to_owned() };
    for _ in 0..config.attempts {
        for server in &config.servers {
            let name = name.to_owned();
            let server = *server;
            last = match ask_server(server, &name, config.timeout).await {
                Ok(Some(ips)) if ips.is_empty() => return Err(Error::NoSuchHost { name, server }),
                Ok(Some(ips)) => return Ok(in_order(ips)),
                Ok(None) => Error::TimedOut { name, server },
                Err(error) => match error.get_ref().is_some_and(|e| e.is::<NotAName>()) {
                    true => return Err(Error::NoName { name }),
                    false => Error::Failed { name, server, what: error.to_string() },
                },
            };
        }
    }
    Err(last)
}

#[derive(Debug, thiserror::Error)]
#[error("not a name")]
struct NotAName;

/// Queries one server for both families; `None` when it did not answer in time.
async fn ask_server(
    server: SocketAddr,
    name: &str,
    limit: Duration,
) -> io::Result<Option<Vec<IpAddr>>> {
    let id = RandomState::new().build_hasher().finish();
    let ids = [id as u16, (id as u16) ^ 1];
    let mut questions = Vec::new();
    for (family, id) in FAMILIES.into_iter().zip(ids) {
        let question = message::question(id, name, family);
        questions.push((family, question.ok_or_else(|| io::Error::other(NotAName))?));
    }
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    for (_, question) in &questions {
        socket.send(question).await?;
    }
    let mut until = Instant::now() + limit;
    let mut found = Vec::new();
    let mut failed = false;
    while !questions.is_empty() {
        let Ok(reply) = timeout_at(until, next_reply(&socket, &mut questions)).await else { break };
        let (question, family, reply) = reply?;
        let reply = match reply {
            Reply::Truncated => match timeout_at(until, by_tcp(server, &question, family)).await {
                Ok(reply) => reply?,
                Err(_) => break,
            },
            reply => reply,
        };
        match reply {
            Reply::Addresses(ips) => found.extend(ips),
            Reply::NoName => {}
            Reply::Truncated | Reply::Failed => failed = true,
        }
        if !found.is_empty() {
            until = until.min(Instant::now() + OTHER_FAMILY_WAIT);
        }
    }
    match (found.is_empty(), failed) {
        (false, _) => Ok(Some(found)),
        (true, true) => Err(io::Error::other("server misbehaving")),
        (true, false) => Ok(questions.is_empty().then_some(found)),
    }
}

/// The next answer to one of the questions, which it takes off the list.
async fn next_reply(
    socket: &UdpSocket,
    questions: &mut Vec<(Family, Vec<u8>)>,
) -> io::Result<(Vec<u8>, Family, Reply)> {
    let mut datagram = vec![0; DATAGRAM_BYTES];
    loop {
        let length = socket.recv(&mut datagram).await?;
        let reply = |(family, question): &(Family, Vec<u8>)| {
            message::reply(&datagram[..length], question, *family)
        };
        let found = questions.iter().enumerate().find_map(|(at, q)| Some((at, reply(q)?)));
        if let Some((at, reply)) = found {
            let (family, question) = questions.swap_remove(at);
            return Ok((question, family, reply));
        }
    }
}

async fn by_tcp(server: SocketAddr, question: &[u8], family: Family) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), question].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(message::reply(&answer, question, family).unwrap_or(Reply::Failed))
}

/// Addresses that can be reached first; among these IPv6 first, as RFC 6724 has it.
fn in_order(mut ips: Vec<IpAddr>) -> Arc<[IpAddr]> {
    let is_reachable = |ip: &IpAddr| {
        let any: IpAddr = match ip {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // Reads the routing table; nothing is sent.
        std::net::UdpSocket::bind((any, 0)).is_ok_and(|socket| socket.connect((*ip, 9)).is_ok())
    };
    if ips.iter().any(IpAddr::is_ipv4) && ips.iter().any(IpAddr::is_ipv6) {
        ips.sort_by_cached_key(|ip| (!is_reachable(ip), ip.is_ipv4()));
    }
    ips.into()
}

#[cfg(test)]
#[path = "resolver_tests.rs"]
mod tests;
