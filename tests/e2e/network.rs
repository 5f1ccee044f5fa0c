//! Pods on the network: ports of the host, other pods, names.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::ensure;
use pintle_tests::manifest::{With, address, condition, container, phase, pod, script};
use pintle_tests::{LONG, TestNode, until};
use serde_json::{Value, json};

use crate::support::{ended, log, log_until, remove_all};

/// The bridge that all pods of a node are on.
const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 88, 0, 1));

fn answers(node: &TestNode, at: SocketAddr) {
    until(LONG, &format!("{at} answers"), || {
        let answer = node.get_from(at, "/")?;
        ensure!(answer.body == "healthy", "{answer:?}");
        Ok(())
    });
}

#[test]
fn pods_reach_each_other_and_are_reached_at_a_port_of_the_host() {
    let node = TestNode::usual();
    let server = container("c", &["/box", "serve", "http=8080"])
        .with("ports", json!([{"containerPort": 8080, "hostPort": 18080}]));
    node.put("server.json", &pod("server", &[server]));
    let server = node.pod_until("server", "is ready", |p| condition(p, "Ready"));
    answers(&node, SocketAddr::from((GATEWAY, 18080)));
    answers(&node, SocketAddr::from((address(&server), 8080)));

    let ask = format!("/box get {}:8080/ && echo asked $(hostname)", address(&server));
    let client = pod("client", &[script("c", &ask)]).with_spec("restartPolicy", json!("Never"));
    node.put("client.json", &client);
    let client =
        node.pod_until("client", "has ended", |p| ended(p, "c").is_some() && phase(p) != "Running");
    assert_eq!(phase(&client), "Succeeded", "{}", log(&node, "client", "c"));
    log_until(&node, "client", "c", "asked client-node");

    let by_host = container("c", &["/box", "serve", "http=8088"]);
    let by_host = pod("host", &[by_host]).with_spec("hostNetwork", json!(true));
    node.put("host.json", &by_host);
    node.pod_until("host", "is ready", |p| condition(p, "Ready"));
    answers(&node, SocketAddr::from((Ipv4Addr::LOCALHOST, 8088)));
    remove_all(&node);
    node.connect(SocketAddr::from((GATEWAY, 18080))).expect_err("the host's port is free again");
}

#[test]
fn hostname_hosts_and_resolver_are_what_the_manifest_says() {
    let node = TestNode::usual();
    let show =
        "hostname; echo fqdn $(hostname -f); cat /etc/hosts /etc/resolv.conf; exec /box pause";
    let put = |name: &str, with: &dyn Fn(Value) -> Value| {
        node.put(&format!("{name}.json"), &with(pod(name, &[script("c", show)])));
    };
    put("plain", &|p| p.with_spec("dnsPolicy", json!("Default")));
    put("named", &|p| {
        p.with_spec("hostname", json!("alice"))
            .with_spec("dnsPolicy", json!("None"))
            .with_spec(
                "dnsConfig",
                json!({"nameservers": ["192.0.2.7"], "searches": ["a.example"],
                "options": [{"name": "ndots", "value": "3"}]}),
            )
            .with_spec("hostAliases", json!([{"ip": "192.0.2.8", "hostnames": ["one", "two"]}]))
    });
    put("host", &|p| p.with_spec("hostNetwork", json!(true)));
    for (name, wanted) in [
        (
            "plain",
            &[
                "plain-node\n",
                "nameserver 192.0.2.53",
                "search test.example",
                "127.0.0.1\tlocalhost",
            ][..],
        ),
        (
            "named",
            &[
                "alice\n",
                "nameserver 192.0.2.7",
                "search a.example",
                "options ndots:3",
                "192.0.2.8\tone\ttwo",
            ],
        ),
        ("host", &["nameserver 192.0.2.53", "localhost"]),
    ] {
        let it = node.pod_until(name, "is ready", |p| condition(p, "Ready"));
        let log = log_until(&node, name, "c", "nameserver");
        for part in wanted {
            assert!(log.contains(part), "{name} lacks {part:?}:\n{log}");
        }
        if name != "host" {
            let own = format!("{}\t", address(&it));
            assert!(log.lines().any(|l| l.starts_with(&own)), "{name} has its own line:\n{log}");
        }
    }
    remove_all(&node);
}
