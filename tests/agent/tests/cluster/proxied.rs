//! A bad way to the API server: what the agent makes of answers that are late, wrong, half or lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::ensure;
use pintle_api_types::rng::Rng;
use pintle_testbed::cluster::TestCluster;
use pintle_testbed::cluster::proxy::{Protocol, ProxiedRequest, Proxy, RequestFault};
use pintle_testbed::manifest::{condition, phase};
use pintle_testbed::{LONG, until};

use crate::secrets::{reader, secret};
use crate::work::{Bystander, PodKind, Work, seed};

/// Steps of the test of everything at once.
const STEPS: usize = 10;

/// The first `count` requests that `is_meant` meet the fault.
fn first(
    proxy: &Proxy,
    count: usize,
    fault: &RequestFault,
    is_meant: impl Fn(&ProxiedRequest) -> bool + Send + 'static,
) {
    let left = Arc::new(AtomicUsize::new(count));
    let fault = fault.clone();
    proxy.on(move |seen| {
        let is_hit = is_meant(seen)
            && left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                .is_ok();
        if is_hit { fault.clone() } else { RequestFault::None }
    });
}

fn happened(proxy: &Proxy, fault: &RequestFault, before: usize) {
    until(LONG, &format!("{fault:?} happens"), || {
        ensure!(proxy.count(fault) > before, "{:?}", proxy.counts());
        Ok(())
    });
}

#[test]
fn watches_that_break_lose_no_pod_and_no_secret() {
    let test = TestCluster::take();
    let proxy = test.use_proxy(Protocol::Http2);
    let bystander = Bystander::start(&test, "bystander");
    test.apply(&secret("0"));
    test.apply(&reader("reader"));
    let reader = test.pod_until("reader", "is ready", |p| condition(p, "Ready"));
    let file = test.volume(&reader, "secret", "s").join("word");
    let mut work = Work::new(&test, 0);
    let faults = [
        RequestFault::Gone,
        RequestFault::Refuse(410, None),
        RequestFault::Refuse(429, Some(1)),
        RequestFault::Refuse(503, None),
        RequestFault::Swallow,
        RequestFault::Truncate(1_500),
        RequestFault::End(1_500),
    ];
    for (round, fault) in faults.iter().enumerate() {
        let before = proxy.count(fault);
        // As many as there are watches: of pods, of the node, of services, of the secret.
        first(&proxy, 6, fault, ProxiedRequest::is_watch);
        proxy.cut();
        happened(&proxy, fault, before);
        work.create(&format!("w{round}"), PodKind::Stays);
        work.create(&format!("w{}", round + 20), PodKind::Fails);
        test.apply(&secret(&format!("{round} {fault:?}")));
        work.settle();
        until(LONG, &format!("the secret is new in spite of {fault:?}"), || {
            let found = std::fs::read_to_string(&file)?;
            ensure!(found == format!("{round} {fault:?}"), "{found}");
            Ok(())
        });
        work.delete(&format!("w{round}"));
        work.delete(&format!("w{}", round + 20));
    }
    work.settle();
    bystander.check(&test);
}

#[test]
fn pod_status_is_written_although_its_first_writes_fail_or_are_delayed() {
    let test = TestCluster::take();
    let proxy = test.use_proxy(Protocol::Http2);
    let faults = [
        RequestFault::Refuse(409, None),
        RequestFault::Refuse(429, Some(1)),
        RequestFault::Refuse(500, None),
        RequestFault::Refuse(503, Some(1)),
        RequestFault::Refuse(504, None),
        RequestFault::Lose,
        RequestFault::Truncate(100),
        RequestFault::Slow(Duration::from_secs(2)),
    ];
    let mut work = Work::new(&test, 0);
    for (round, fault) in faults.iter().enumerate() {
        let (before, name) = (proxy.count(fault), format!("w{round}"));
        let pod = name.clone();
        first(&proxy, 3, fault, move |seen| seen.is_status_of(&pod));
        work.create(&name, PodKind::Ends);
        test.pod_until(&name, &format!("has succeeded in spite of {fault:?}"), |p| {
            phase(p) == "Succeeded"
        });
        assert!(proxy.count(fault) > before, "{fault:?} never happened");
    }
    work.settle();
}

fn connections_that_lose_packets_are_replaced(protocol: Protocol) {
    let test = TestCluster::take();
    let proxy = test.use_proxy(protocol);
    test.heard_of();
    let mut work = Work::new(&test, 0);
    work.create("w1", PodKind::Stays);
    work.settle();
    proxy.lose_packets();
    work.create("w2", PodKind::Ends);
    work.delete("w1");
    work.settle();
    test.heard_of();
}

#[test]
fn a_connection_that_loses_packets_is_replaced() {
    connections_that_lose_packets_are_replaced(Protocol::Http2);
}

#[test]
fn http1_connections_that_lose_packets_are_replaced() {
    connections_that_lose_packets_are_replaced(Protocol::Http1);
}

/// A random fault of all kinds.
fn any_fault(rng: &mut Rng, seen: &ProxiedRequest) -> RequestFault {
    if seen.is_watch() {
        return match rng.range(0, 8) {
            0 => RequestFault::Gone,
            1 => RequestFault::Refuse(410, None),
            2 => RequestFault::Refuse(500, None),
            3 => RequestFault::Swallow,
            4 => RequestFault::Truncate(rng.range(0, 8_000) as usize),
            5 => RequestFault::End(rng.range(0, 8_000) as usize),
            _ => RequestFault::None,
        };
    }
    match rng.range(0, 14) {
        0 => RequestFault::Refuse(500, None),
        1 => RequestFault::Refuse(503, None),
        2 => RequestFault::Refuse(429, Some(1)),
        3 => RequestFault::Lose,
        4 => RequestFault::Slow(Duration::from_millis(rng.range(10, 1_500))),
        5 => RequestFault::Truncate(rng.range(0, 400) as usize),
        6 if seen.path.contains("/status") => RequestFault::Refuse(409, None),
        _ => RequestFault::None,
    }
}

fn all_faults_at_once(protocol: Protocol) {
    let test = TestCluster::take();
    test.empty_nodes();
    let proxy = test.use_proxy(protocol);
    let bystander = Bystander::start(&test, "bystander");
    let seed = seed();
    let mut work = Work::new(&test, seed);
    let mut rng = Rng::new(seed ^ 1);
    proxy.on(move |seen| any_fault(&mut rng, seen));
    for _ in 0..STEPS {
        work.step();
        if work.rng().chance(20) {
            proxy.cut();
        }
        // A pace at which the agent has something to do in the middle of.
        std::thread::sleep(Duration::from_millis(work.rng().range(100, 1_500)));
    }
    eprintln!("{:?}", proxy.counts());
    proxy.clear();
    work.settle();
    bystander.check(&test);
    work.finish();
}

#[test]
fn pods_are_created_and_deleted_over_a_faulty_http2_connection() {
    all_faults_at_once(Protocol::Http2);
}

#[test]
fn pods_are_created_and_deleted_over_faulty_http1_connections() {
    all_faults_at_once(Protocol::Http1);
}
