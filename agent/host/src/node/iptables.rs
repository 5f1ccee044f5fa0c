//! The iptables chains that other components look for, and the rule against packets to localnet.
//!
//! Input: the programs `iptables` and `ip6tables`. Output: `KUBE-IPTABLES-HINT`, by which images
//! with an iptables of their own find out which of the two kinds the node uses; for IPv4
//! `KUBE-FIREWALL`, which drops packets from elsewhere to 127.0.0.0/8; and canaries: a missing
//! canary shows that the tables were flushed, so all is made again. A node without iptables needs
//! none of it. Owner: one task. Bounds: one program at a time, `CALL_MAX` each.
// k8s: pkg/kubelet/kubelet_network_linux.go, pkg/util/iptables/iptables.go

use std::ffi::OsStr;
use std::io;
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use tokio::process::Command;

const HINT: &str = "KUBE-IPTABLES-HINT";
const FIREWALL: &str = "KUBE-FIREWALL";
const CANARY: &str = "KUBE-KUBELET-CANARY";
/// Tables with a canary; the first one is checked.
const CANARY_TABLES: [&str; 3] = ["mangle", "nat", "filter"];
/// How often the canary is checked.
const EVERY: Duration = Duration::from_secs(60);
/// How often, and how long, the other canaries are waited for once the first is gone.
const FLUSH: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Longest run of the program; it waits up to 5 s for others itself.
const CALL_MAX: Duration = Duration::from_secs(30);
/// The program is killed for lack of a resource, or reports that: the state of chains is unknown.
const RESOURCE_PROBLEM: i32 = 4;

/// Keeps the chains of both families for ever.
pub async fn keep() {
    let (v4, v6) = (Tables::new("iptables", true), Tables::new("ip6tables", false));
    let (has_v4, has_v6) = (v4.is_there().await, v6.is_there().await);
    if !has_v4 && !has_v6 {
        return tracing::warn!(
            "no iptables on this node; the KUBE-IPTABLES-HINT chain is not made \
             (makeIPTablesUtilChains: false says that this is right)"
        );
    }
    let keep = async |tables: Tables, has: bool| {
        if has {
            tables.keep(EVERY).await;
        }
    };
    tokio::join!(keep(v4, has_v4), keep(v6, has_v6));
}

/// Why the tables could not be set up.
#[derive(Debug, thiserror::Error)]
enum TablesError {
    #[error("{program} cannot be run")]
    Run {
        program: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("{program} {arguments}: {status}: {words}")]
    Failed { program: &'static str, arguments: String, status: ExitStatus, words: String },
}

/// A wanted chain or rule.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WantedRule {
    Chain { table: &'static str, name: &'static str },
    First { table: &'static str, chain: &'static str, rule: &'static [&'static str] },
    Last { table: &'static str, chain: &'static str, rule: &'static [&'static str] },
}

/// The chains and rules, in the order of their creation.
fn wanted(is_v4: bool) -> Vec<WantedRule> {
    const JUMP: &[&str] = &["-j", FIREWALL];
    // As kube-proxy writes it, so that there is one of it.
    const DROP: &[&str] = &[
        "-m",
        "comment",
        "--comment",
        "block incoming localnet connections",
        "--dst",
        "127.0.0.0/8",
        "!",
        "--src",
        "127.0.0.0/8",
        "-m",
        "conntrack",
        "!",
        "--ctstate",
        "RELATED,ESTABLISHED,DNAT",
        "-j",
        "DROP",
    ];
    let mut all = vec![WantedRule::Chain { table: "mangle", name: HINT }];
    if is_v4 {
        all.extend([
            WantedRule::Chain { table: "filter", name: FIREWALL },
            WantedRule::First { table: "filter", chain: "OUTPUT", rule: JUMP },
            WantedRule::First { table: "filter", chain: "INPUT", rule: JUMP },
            WantedRule::Last { table: "filter", chain: FIREWALL, rule: DROP },
        ]);
    }
    all
}

/// The tables of one family.
pub struct Tables {
    program: &'static str,
    is_v4: bool,
    /// Words in front of the program, to enter another network namespace.
    before: Vec<String>,
}

impl Tables {
    /// Those that this program changes.
    pub fn new(program: &'static str, is_v4: bool) -> Self {
        Self { program, is_v4, before: Vec::new() }
    }

    /// Those that the program changes when it is started by other words.
    #[must_use]
    pub fn behind(self, before: Vec<String>) -> Self {
        Self { before, ..self }
    }

    /// True if the program works here.
    pub async fn is_there(&self) -> bool {
        self.has_chain("nat", "POSTROUTING").await.is_ok_and(|has| has)
    }

    /// Creates everything; again whenever the tables were flushed, which is checked this often.
    pub async fn keep(&self, every: Duration) {
        match self.make().await {
            Ok(()) => tracing::info!(program = self.program, "created the node's iptables chains"),
            // As the kubelet: a failure at the start is not retried.
            Err(error) => return tracing::warn!(%error, "cannot create the node's iptables chains"),
        }
        loop {
            while let Err(error) = self.put_canaries().await {
                tracing::warn!(%error, "cannot create the canary chain");
                tokio::time::sleep(every).await;
            }
            tokio::time::sleep(every).await;
            while !matches!(self.has_chain(CANARY_TABLES[0], CANARY).await, Ok(false)) {
                tokio::time::sleep(every).await;
            }
            self.wait_for_flush().await;
            match self.make().await {
                Ok(()) => tracing::info!(
                    program = self.program,
                    "created iptables chains again that were flushed"
                ),
                Err(error) => {
                    tracing::warn!(%error, "cannot create iptables chains again that were flushed")
                }
            }
        }
    }

    async fn make(&self) -> Result<(), TablesError> {
        for wanted in wanted(self.is_v4) {
            match wanted {
                WantedRule::Chain { table, name } => self.add_chain(table, name).await?,
                WantedRule::First { table, chain, rule } => {
                    self.add("-I", table, chain, rule).await?
                }
                WantedRule::Last { table, chain, rule } => {
                    self.add("-A", table, chain, rule).await?
                }
            }
        }
        Ok(())
    }

    async fn put_canaries(&self) -> Result<(), TablesError> {
        for table in CANARY_TABLES {
            self.add_chain(table, CANARY).await?;
        }
        Ok(())
    }

    /// Waits for the end of a flush, which goes table by table: chains made too early would be
    /// flushed again.
    async fn wait_for_flush(&self) {
        let flushed = async {
            for table in &CANARY_TABLES[1..] {
                while !matches!(self.has_chain(table, CANARY).await, Ok(false)) {
                    tokio::time::sleep(FLUSH.0).await;
                }
            }
        };
        if tokio::time::timeout(FLUSH.1, flushed).await.is_err() {
            tracing::info!(program = self.program, "one table was flushed, and others were not");
        }
    }

    async fn add_chain(&self, table: &str, name: &str) -> Result<(), TablesError> {
        let arguments = ["-N", name, "-t", table];
        let output = self.run(&arguments).await?;
        // 1 means that it is there already.
        match output.status.code() {
            Some(0 | 1) => Ok(()),
            _ => Err(self.failed(&arguments, &output)),
        }
    }

    async fn add(
        &self,
        how: &str,
        table: &str,
        chain: &str,
        rule: &[&str],
    ) -> Result<(), TablesError> {
        let arguments = |how| [&[how, chain, "-t", table], rule].concat();
        let check = arguments("-C");
        let output = self.run(&check).await?;
        match output.status.code() {
            Some(0) => return Ok(()),
            Some(1) => {}
            _ => return Err(self.failed(&check, &output)),
        }
        let arguments = arguments(how);
        let output = self.run(&arguments).await?;
        match output.status.success() {
            true => Ok(()),
            false => Err(self.failed(&arguments, &output)),
        }
    }

    /// True if there is such a chain; an error when that is unknown.
    async fn has_chain(&self, table: &str, name: &str) -> Result<bool, TablesError> {
        let arguments = ["-S", name, "1", "-t", table];
        let output = self.run(&arguments).await?;
        match output.status.code() {
            Some(0) => Ok(true),
            Some(RESOURCE_PROBLEM) | None => Err(self.failed(&arguments, &output)),
            Some(_) => Ok(false),
        }
    }

    async fn run(&self, arguments: &[&str]) -> Result<Output, TablesError> {
        let mut words = self.before.iter().map(String::as_str).chain([self.program, "-w", "5"]);
        let mut command = Command::new(words.next().unwrap_or(self.program));
        command.args(words.map(OsStr::new)).args(arguments).stdin(Stdio::null());
        let output = command.kill_on_drop(true).output();
        let output = match tokio::time::timeout(CALL_MAX, output).await {
            Ok(output) => output,
            Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        };
        output.map_err(|source| TablesError::Run { program: self.program, source })
    }

    fn failed(&self, arguments: &[&str], output: &Output) -> TablesError {
        TablesError::Failed {
            program: self.program,
            arguments: arguments.join(" "),
            status: output.status,
            words: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ipv4_has_a_firewall_and_both_have_the_hint() {
        assert_eq!(wanted(false), [WantedRule::Chain { table: "mangle", name: HINT }]);
        let v4 = wanted(true);
        assert_eq!(v4[0], wanted(false)[0]);
        let WantedRule::Last { chain, rule, .. } = &v4[4] else { panic!("{v4:?}") };
        assert_eq!(
            (*chain, rule.join(" ").as_str()),
            (
                FIREWALL,
                "-m comment --comment block \
            incoming localnet connections --dst 127.0.0.0/8 ! --src 127.0.0.0/8 -m conntrack \
            ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
            )
        );
    }

    #[tokio::test]
    async fn missing_iptables_program_is_detected_and_an_error_when_run() {
        let tables =
            Tables { before: vec!["/nowhere/at-all".to_owned()], ..Tables::new("iptables", true) };
        assert!(!tables.is_there().await);
        assert!(matches!(tables.make().await, Err(TablesError::Run { .. })));
    }
}
