//! The resolver against name servers of the test's own on the loopback interface.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::TcpListener;

use super::*;

/// Far beyond anything a test waits for; only there so that a broken one ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// A name server's reaction to a question for a name.
#[derive(Clone, Copy)]
enum NameServer {
    Says(&'static str, [u8; 4]),
    SaysNo,
    Fails,
    Hangs,
    /// By datagram only that the answer is too long.
    Truncates([u8; 4]),
}

struct Served {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
}

async fn serve(server: NameServer) -> Served {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port is free");
    let address = socket.local_addr().expect("it has an address");
    let asked = Arc::new(AtomicUsize::new(0));
    let heard = Arc::clone(&asked);
    if let NameServer::Truncates(ip) = server {
        let listener = TcpListener::bind(address).await.expect("the same port is free for TCP");
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("it is asked");
            let mut question = vec![0; usize::from(stream.read_u16().await.expect("a length"))];
            stream.read_exact(&mut question).await.expect("a question");
            let answer = message::answer(&question, 0, &[ip.into()]);
            let length = u16::try_from(answer.len()).expect("it is short").to_be_bytes();
            stream.write_all(&[&length, &*answer].concat()).await.expect("it is taken");
        });
    }
    tokio::spawn(async move {
        let mut question = [0; 512];
        loop {
            let (length, from) = socket.recv_from(&mut question).await.expect("the socket lives");
            let question = &question[..length];
            heard.fetch_add(1, Ordering::SeqCst);
            let is_v4 = question[length - 3] == 1;
            let answer = match server {
                NameServer::Says(name, ip) => {
                    let label = [&[name.len() as u8][..], name.as_bytes()].concat();
                    match question[12..].starts_with(&label) {
                        true if is_v4 => message::answer(question, 0, &[ip.into()]),
                        true => message::answer(question, 0, &[]),
                        false => message::answer(question, 3, &[]),
                    }
                }
                NameServer::SaysNo => message::answer(question, 3, &[]),
                NameServer::Fails => message::answer(question, 2, &[]),
                NameServer::Hangs => continue,
                NameServer::Truncates(_) if is_v4 => {
                    let mut answer = message::answer(question, 0, &[]);
                    answer[2] |= 2;
                    answer
                }
                NameServer::Truncates(_) => message::answer(question, 0, &[]),
            };
            socket.send_to(&answer, from).await.expect("it is taken");
        }
    });
    Served { address, asked }
}

/// A resolver that queries these servers, with the hosts of `hosts`.
fn asking(servers: &[&Served], hosts: &str) -> Resolver {
    let resolver = Resolver::reading(PathBuf::new(), PathBuf::new());
    let mut config = Config::parse("search first.example second.example\noptions timeout:1");
    config.servers = servers.iter().map(|served| served.address).collect();
    config.timeout = Duration::from_millis(200);
    let files = Arc::new(ResolverFiles { hosts: Hosts::parse(hosts), config });
    // A day on: the test's own are never read again.
    let read_at = Instant::now() + Duration::from_secs(86_400);
    *resolver.0.files.lock().expect("no thread panicked") = Some((read_at, files));
    resolver
}

async fn ips(resolver: &Resolver, name: &str) -> Result<Vec<String>, String> {
    let found = timeout(PATIENCE, resolver.lookup(name)).await.expect("a lookup ends");
    let found = found.map_err(|error| error.to_string())?;
    Ok(found.iter().map(ToString::to_string).collect())
}

#[tokio::test]
async fn a_name_is_that_of_the_hosts_file_or_of_the_first_server_that_answers() {
    let (hangs, says) =
        (serve(NameServer::Hangs).await, serve(NameServer::Says("web", [10, 0, 0, 9])).await);
    let resolver = asking(&[&hangs, &says], "10.1.1.1 Known\n");
    assert_eq!(ips(&resolver, "known").await, Ok(vec!["10.1.1.1".to_owned()]));
    assert_eq!(says.asked.load(Ordering::SeqCst), 0);
    assert_eq!(ips(&resolver, "web").await, Ok(vec!["10.0.0.9".to_owned()]));
}

#[tokio::test]
async fn missing_failing_and_hung_lookups_are_reported_in_upstreams_wording() {
    for (server, end, questions) in [
        (NameServer::SaysNo, "no such host", 6),
        (NameServer::Fails, "server misbehaving", 12),
        (NameServer::Hangs, "i/o timeout", 12),
    ] {
        let served = serve(server).await;
        let resolver = asking(&[&served], "");
        let text = format!("lookup web on {}: {end}", served.address);
        assert_eq!(ips(&resolver, "web").await, Err(text));
        assert_eq!(served.asked.load(Ordering::SeqCst), questions, "{end}");
    }
    let resolver = asking(&[], "");
    assert_eq!(ips(&resolver, "a..b.").await, Err("lookup a..b.: no such host".to_owned()));
}

#[tokio::test]
async fn a_long_answer_is_fetched_by_tcp() {
    let served = serve(NameServer::Truncates([10, 0, 0, 3])).await;
    let resolver = asking(&[&served], "");
    assert_eq!(ips(&resolver, "web.").await, Ok(vec!["10.0.0.3".to_owned()]));
}

#[tokio::test]
async fn concurrent_lookups_of_a_name_share_queries_that_end_with_the_last_caller() {
    let served = serve(NameServer::Hangs).await;
    let resolver = asking(&[&served], "");
    let asking = || async { timeout(Duration::from_millis(100), resolver.lookup("web.")).await };
    let all = futures_util::future::join_all((0..272).map(|_| asking())).await;
    assert!(all.iter().all(Result::is_err), "none of them got an answer");
    assert_eq!(served.asked.load(Ordering::SeqCst), 2, "one for each family");
    let under_way = || {
        let under_way = resolver.0.under_way.lock().expect("no thread panicked");
        under_way.values().filter(|lookup| lookup.upgrade().is_some()).count()
    };
    assert_eq!(under_way(), 0, "nothing is left of it");
    assert!(asking().await.is_err());
    assert_eq!(served.asked.load(Ordering::SeqCst), 4, "a later lookup queries again");
}

#[tokio::test]
async fn names_that_hang_hold_up_no_other_and_take_no_thread() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    let served = serve(NameServer::Says("web", [127, 0, 0, 1])).await;
    let hangs = serve(NameServer::Hangs).await;
    let (good, bad) = (asking(&[&served], ""), asking(&[&hangs], ""));
    let shared = Resolver(Arc::clone(&good.0));
    let files = bad.files();
    let names: Vec<_> = (0..LOOKUPS_MAX / 4).map(|n| format!("hang-{n}.")).collect();
    let hanging: Vec<_> =
        names.iter().map(|name| shared.join(name, Arc::clone(&files)).expect("room")).collect();
    let polled = futures_util::future::join_all(hanging);
    let threads = || std::fs::read_dir("/proc/self/task").expect("it is Linux").count();
    let before = threads();
    let work = async {
        while hangs.asked.load(Ordering::SeqCst) < names.len() {
            tokio::task::yield_now().await;
        }
        assert!(threads() <= before, "no thread waits for a name");
        timeout(PATIENCE, good.connect("web", port)).await.expect("it ends").expect("connected")
    };
    tokio::select! {
        _ = polled => panic!("what hangs has no answer before it is given up"),
        stream = work => assert_eq!(stream.peer_addr().expect("it has a peer").port(), port),
    }
}

#[tokio::test]
async fn there_is_a_bound_of_names_at_a_time() {
    let hangs = serve(NameServer::Hangs).await;
    let resolver = asking(&[&hangs], "");
    let files = resolver.files();
    let lookups: Vec<_> =
        (0..LOOKUPS_MAX).map(|n| resolver.join(&format!("n{n}"), Arc::clone(&files))).collect();
    assert!(lookups.iter().all(Option::is_some));
    let text = format!("lookup more: {LOOKUPS_MAX} lookups are under way already");
    assert_eq!(ips(&resolver, "more").await, Err(text));
    drop(lookups);
    assert!(resolver.join("more", files).is_some());
}

#[tokio::test]
async fn the_second_family_is_tried_when_the_first_refuses() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    let resolver = asking(&[], "::1 both\n127.0.0.1 both\n");
    let stream = timeout(PATIENCE, resolver.connect("both", port)).await.expect("it ends");
    assert_eq!(stream.expect("connected").peer_addr().expect("a peer").port(), port);
    let closed = { TcpListener::bind("127.0.0.1:0").await.expect("free").local_addr() };
    let port = closed.expect("it had an address").port();
    assert!(resolver.connect("both", port).await.is_err());
}
