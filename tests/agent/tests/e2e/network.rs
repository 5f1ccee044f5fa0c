//! Pods on the network: ports of the host, other pods, names.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use pintle_agent_host::node::iptables::Tables;
use pintle_testbed::manifest::{With, address, condition, container, phase, pod, script};
use pintle_testbed::{LONG, TestNode, until};
use serde_json::{Value, json};
use xtask::runtime::{Runtime, Version};

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
fn hostname_hosts_file_and_resolver_match_the_manifest() {
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

/// A network namespace of its own, while it is held.
struct HeldNamespace(Child);

impl HeldNamespace {
    fn new() -> Self {
        let holder = Command::new("unshare").args(["--net", "sleep", "infinity"]).spawn();
        let holder = holder.expect("a process in a namespace");
        let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        until(LONG, "the namespace is there", || {
            ensure!(of(&holder.id().to_string()) != of("self"), "not yet");
            Ok(())
        });
        Self(holder)
    }

    /// The command prefix that runs a program in it, with the programs of the runtime.
    fn enter(&self) -> Vec<String> {
        let runtime = Version::usual().and_then(Runtime::ensure).expect("a runtime with its tools");
        let net = format!("--net=/proc/{}/ns/net", self.0.id());
        let path = format!("PATH={}", runtime.path());
        ["nsenter", &net, "env", &path].map(str::to_owned).into()
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        let enter = self.enter();
        let output = Command::new(&enter[0]).args(&enter[1..]).arg(program).args(args).output()?;
        if !output.status.success() {
            bail!("{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Drop for HeldNamespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The chains as other components look for them, in both families; flushed tables get them again.
#[test]
fn chains_of_the_node_are_made_and_made_again_when_the_tables_are_flushed() {
    let namespace = HeldNamespace::new();
    let enter = namespace.enter();
    // The thread that keeps them ends with the test.
    let (_ends, ended) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let every = Duration::from_millis(50);
            let v4 = Tables::new("iptables", true).behind(enter.clone());
            let v6 = Tables::new("ip6tables", false).behind(enter);
            assert!(v4.is_there().await && v6.is_there().await);
            let keep = async { tokio::join!(v4.keep(every), v6.keep(every)) };
            tokio::select! {
                _ = keep => {}
                _ = ended => {}
            }
        });
    });
    let is_complete = |program: &str| -> Result<()> {
        let mangle = namespace.run(program, &["-t", "mangle", "-S"])?;
        ensure!(mangle.contains("-N KUBE-IPTABLES-HINT"), "{mangle}");
        for table in ["mangle", "nat", "filter"] {
            let text = namespace.run(program, &["-t", table, "-S"])?;
            ensure!(text.contains("-N KUBE-KUBELET-CANARY"), "{table}: {text}");
        }
        Ok(())
    };
    let rules = || namespace.run("iptables", &["-t", "filter", "-S"]);
    let has_firewall = || -> Result<()> {
        let text = rules()?;
        for rule in ["-A INPUT -j KUBE-FIREWALL", "-A OUTPUT -j KUBE-FIREWALL"] {
            ensure!(text.lines().filter(|line| *line == rule).count() == 1, "{text}");
        }
        let drop = text.lines().find(|line| line.starts_with("-A KUBE-FIREWALL"));
        let drop = drop.unwrap_or_default();
        for part in ["! -s 127.0.0.0/8", "-d 127.0.0.0/8", "block incoming localnet", "-j DROP"] {
            ensure!(drop.contains(part), "{text}");
        }
        Ok(())
    };
    until(LONG, "IPv4 is complete", || is_complete("iptables").and_then(|()| has_firewall()));
    until(LONG, "IPv6 is complete", || is_complete("ip6tables"));
    let six = namespace.run("ip6tables", &["-t", "filter", "-S"]).expect("rules");
    assert!(!six.contains("KUBE-FIREWALL"), "{six}");
    for program in ["iptables", "ip6tables"] {
        for table in ["mangle", "nat", "filter"] {
            namespace.run(program, &["-t", table, "-F"]).expect("flushed");
            namespace.run(program, &["-t", table, "-X"]).expect("without chains");
        }
    }
    until(LONG, "IPv4 is complete again", || is_complete("iptables").and_then(|()| has_firewall()));
    until(LONG, "IPv6 is complete again", || is_complete("ip6tables"));
}
