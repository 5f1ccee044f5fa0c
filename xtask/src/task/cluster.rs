//! `cargo xtask cluster`: a real cluster on this machine, started, looked into and removed.
//!
//! Clusters have names (`--name`, else `PINTLE_CLUSTER`, else `dev`), and those of different names
//! share nothing but the machine. A cluster stays until `down`, whatever happens to the terminal.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::cluster::{Agent, Cluster};
use crate::shell::say;

/// Names the cluster when no flag does.
const NAME: &str = "PINTLE_CLUSTER";
const USAGE: &str = "\
usage: cargo xtask cluster [--name NAME] COMMAND
  up [--agent A] [--n1 A] [--n2 A] [--nodes N]
                        start what does not run; A is pintle (built now), kubelet, or a program's path
  down                  end and remove everything
  status                the processes and their logs, the nodes
  kubectl ARGS..        kubectl as the administrator
  node NODE CMD..       a command inside a node, such as `ctr -n k8s.io c ls`; alone: a shell
  agent NODE [A]        restart a node's agent, as another program if one is named
  start|stop|kill PART  one process by its name in `status`, such as apiserver or n1-agent";

/// Runs the command named by the arguments.
pub(super) fn run(args: &[&str]) -> Result<ExitCode> {
    let (name, args) = name(args)?;
    let cluster = Cluster::named(&name)?;
    match args {
        ["up", flags @ ..] => up(cluster, flags)?,
        ["down"] => cluster.down()?,
        ["status"] => status(&cluster),
        ["kubectl", rest @ ..] => return show(cluster.kubectl_command()?.args(rest)),
        ["node", node] => return show(&mut cluster.node_command(node, "bash".as_ref())?),
        ["node", node, program, rest @ ..] => {
            return show(cluster.node_command(node, program.as_ref())?.args(rest));
        }
        ["agent", node, agent @ ..] => restart(&cluster, node, agent)?,
        ["start", part] => cluster.start(part)?,
        ["stop", part] => cluster.stop(part)?,
        ["kill", part] => cluster.kill(part)?,
        ["help" | "--help" | "-h"] => println!("{USAGE}"),
        _ => {
            eprintln!("{USAGE}");
            return Ok(ExitCode::from(64));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes `--name NAME` from the front.
pub(super) fn name<'a>(args: &'a [&'a str]) -> Result<(String, &'a [&'a str])> {
    Ok(match args {
        ["--name", name, rest @ ..] => ((*name).to_owned(), rest),
        ["--name"] => bail!("--name needs a name"),
        _ => (std::env::var(NAME).unwrap_or_else(|_| "dev".to_owned()), args),
    })
}

/// Starts the cluster with the agents that the flags name; `--n2 A` wins over `--agent A`.
fn up(cluster: Cluster, flags: &[&str]) -> Result<()> {
    let mut chosen: Vec<(&str, Agent)> = Vec::new();
    let mut count = cluster.nodes().len();
    for pair in flags.chunks(2) {
        let [flag, value] = pair else { bail!("{} needs a value", pair[0]) };
        match flag.strip_prefix("--") {
            Some("nodes") => count = value.parse().context("--nodes takes a number")?,
            Some("agent" | "agent-binary") => chosen.push(("", Agent::parse(value)?)),
            Some(node) if node.starts_with('n') => chosen.push((node, Agent::parse(value)?)),
            _ => bail!("cluster up has no flag {flag}"),
        }
    }
    let cluster = cluster.with_nodes(count)?;
    for node in cluster.nodes() {
        let named = chosen.iter().filter(|(n, _)| n == node || n.is_empty());
        let agent = named.max_by_key(|(n, _)| n.len()).map(|(_, agent)| agent.clone());
        match agent {
            Some(agent) => cluster.choose_agent(node, &agent)?,
            None if cluster.is_up() => {}
            None => cluster.choose_agent(node, &Agent::Pintle(None))?,
        }
    }
    if let Some((node, _)) = chosen.iter().find(|(n, _)| !n.is_empty() && !has(&cluster, n)) {
        bail!("there is no node {node}");
    }
    cluster.up()?;
    print!("{}", cluster.kubectl(&["get", "nodes", "-o", "wide"])?);
    Ok(())
}

fn has(cluster: &Cluster, node: &str) -> bool {
    cluster.nodes().iter().any(|n| n == node)
}

fn status(cluster: &Cluster) {
    for line in cluster.status() {
        println!("{line}");
    }
    if cluster.is_up() {
        match cluster.kubectl(&["get", "nodes", "-o", "wide"]) {
            Ok(nodes) => print!("{nodes}"),
            Err(error) => say("failed", &format!("{error:#}")),
        }
    }
}

fn restart(cluster: &Cluster, node: &str, agent: &[&str]) -> Result<()> {
    match agent {
        [] => {}
        [agent] => cluster.choose_agent(node, &Agent::parse(agent)?)?,
        _ => bail!("one agent per node"),
    }
    let part = format!("{node}-agent");
    cluster.stop(&part)?;
    cluster.start(&part)
}

/// Runs a command on this terminal and ends as it does.
fn show(cmd: &mut Command) -> Result<ExitCode> {
    let status = cmd.status().context("start the command")?;
    let code = status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_named_by_the_flag() {
        let (name, rest) = name(&["--name", "x", "up"]).expect("good");
        assert_eq!((name.as_str(), rest), ("x", &["up"][..]));
        assert!(super::name(&["--name"]).is_err());
    }

    #[test]
    fn a_flag_that_does_not_exist_is_refused_before_anything_starts() {
        let cluster = Cluster::named("unstarted").expect("a name");
        assert!(up(cluster.clone(), &["--colour", "red"]).is_err());
        assert!(up(cluster, &["--nodes"]).is_err());
    }
}
