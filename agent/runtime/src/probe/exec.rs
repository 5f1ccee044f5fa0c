//! Exec probes: a command within the container, well when it exits with 0.
//!
//! The runtime gets the probe's timeout, kills the command when it is over and then answers; our
//! own limit is later by `MARGIN`, so that its answer wins. Giving the call up, because the
//! container is gone or on our own limit, cancels it at the runtime, which kills the command too:
//! nothing is left behind. No more than `OUTPUT_BYTES_MAX` of the command's output are ever held.
// k8s: pkg/probe/exec/exec.go, pkg/kubelet/kuberuntime/kuberuntime_container.go RunInContainer

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ExecAction;
use pintle_agent_core::env::expand::{TooLong, expand};
use pintle_cri::{Client, v1};

use super::attempt::AttemptVerdict;
use super::patience::patiently;
use super::target::ProbeTarget;
use super::words;

/// Longest output in an event, in bytes.
const OUTPUT_BYTES_MAX: usize = 10 * 1024;
/// Longest command, in bytes, with expanded references: Linux accepts as much with the usual stack.
/// It is expanded again at each attempt.
const COMMAND_BYTES_MAX: usize = 2 << 20;
/// Time that the runtime gets beyond the timeout to kill the command and answer.
const MARGIN: Duration = Duration::from_secs(5);

/// Runs the command once.
pub(super) async fn probe(
    client: &Client,
    target: &ProbeTarget,
    exec: &ExecAction,
    limit: Duration,
) -> AttemptVerdict {
    let cmd = match command(target, exec) {
        Ok(cmd) => cmd,
        Err(error) => return AttemptVerdict::unknown(error.to_string()),
    };
    let timeout = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX);
    let container_id = target.id.as_str().to_owned();
    let request = v1::ExecSyncRequest { container_id, cmd, timeout };
    // The call's own deadline knows nothing of a late agent: it is only a backstop.
    let within = limit.saturating_add(MARGIN);
    let backstop = within.saturating_mul(4);
    let call = client.exec_cut(request, Some(backstop), OUTPUT_BYTES_MAX);
    let timed_out = || {
        let line = command(target, exec).unwrap_or_default().join(" ");
        let limit = words::seconds(limit);
        AttemptVerdict::Failure(format!("command timed out: {line:?} timed out after {limit}"))
    };
    match patiently(within, call).await.done {
        Some(Ok(answer)) if answer.exit_code == 0 => AttemptVerdict::Success,
        Some(Ok(answer)) => AttemptVerdict::Failure(output(answer)),
        Some(Err(error)) if error.is_deadline() => timed_out(),
        Some(Err(error)) => AttemptVerdict::unknown(error.rpc_text()),
        None => timed_out(),
    }
}

/// A command that is too long with its references expanded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the command has more than {} MiB with what its references stand for",
    COMMAND_BYTES_MAX >> 20
)]
struct LongCommand;

/// The command with `$(NAME)` replaced by the container's plain environment values; others, such
/// as those of references, count as empty.
// k8s: pkg/kubelet/container/helpers.go ExpandContainerCommandOnlyStatic
fn command(target: &ProbeTarget, exec: &ExecAction) -> Result<Vec<String>, LongCommand> {
    // The last of a name counts. Not searched for each reference: both may be very many.
    let env = target.container.env.iter().flatten();
    let values: HashMap<&str, &str> = env
        .map(|variable| (&*variable.name, variable.value.as_deref().unwrap_or_default()))
        .collect();
    let mut room = COMMAND_BYTES_MAX;
    let words = exec.command.iter().flatten().map(|word| {
        let word = expand(word, room, |name| values.get(name).copied())?;
        room -= word.len();
        Ok::<_, TooLong>(word)
    });
    words.collect::<Result<_, _>>().map_err(|TooLong| LongCommand)
}

fn output(answer: v1::ExecSyncResponse) -> String {
    let mut bytes = answer.stdout;
    bytes.truncate(OUTPUT_BYTES_MAX);
    let room = OUTPUT_BYTES_MAX - bytes.len();
    bytes.extend(answer.stderr.into_iter().take(room));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing;
    use super::*;

    #[test]
    fn references_in_a_command_are_replaced_by_plain_values_only() {
        let pod = testing::pod(
            json!({"containers": [{"name": "c", "env": [
                {"name": "A", "value": "one"}, {"name": "A", "value": "two"},
                {"name": "REF", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}]}),
            json!({}),
        );
        let record = testing::observed(&pod, 1);
        let container = &pintle_api_types::pod::spec(&pod).containers[0];
        let target = ProbeTarget::new(&record.uid, container, &record.containers[0]);
        let words = ["test", "$(A)", "[$(REF)]", "$(NONE)", "$$(A)"];
        let exec = ExecAction { command: Some(words.map(str::to_owned).to_vec()) };
        let want = ["test", "two", "[]", "$(NONE)", "$(A)"].map(str::to_owned).to_vec();
        assert_eq!(command(&target, &exec), Ok(want));
    }

    #[test]
    fn command_over_2_mib_after_variable_expansion_is_rejected() {
        let value = "x".repeat(128 << 10);
        let spec = json!({"containers": [{"name": "c", "env": [{"name": "A", "value": value}]}]});
        let pod = testing::pod(spec, json!({}));
        let record = testing::observed(&pod, 1);
        let container = &pintle_api_types::pod::spec(&pod).containers[0];
        let target = ProbeTarget::new(&record.uid, container, &record.containers[0]);
        let bytes = |words: usize, each: usize| {
            let exec = ExecAction { command: Some(vec!["$(A)".repeat(each); words]) };
            command(&target, &exec).map(|words| words.concat().len())
        };
        assert_eq!(bytes(4, 4), Ok(COMMAND_BYTES_MAX));
        let long = "the command has more than 2 MiB with what its references stand for";
        assert_eq!(LongCommand.to_string(), long);
        for (words, each) in [(17, 1), (1, 17), (1000, 1000)] {
            assert_eq!(bytes(words, each), Err(LongCommand), "{words} {each}");
        }
    }

    #[test]
    fn output_is_cut_where_both_streams_together_reach_the_limit() {
        let answer = |out: usize, err: usize| v1::ExecSyncResponse {
            stdout: vec![b'o'; out],
            stderr: vec![b'e'; err],
            exit_code: 1,
        };
        for (out, err, outs, errs) in [
            (3, 2, 3, 2),
            (OUTPUT_BYTES_MAX + 1, 5, OUTPUT_BYTES_MAX, 0),
            (OUTPUT_BYTES_MAX - 1, 5, OUTPUT_BYTES_MAX - 1, 1),
        ] {
            let text = output(answer(out, err));
            let count = |c| text.chars().filter(|x| *x == c).count();
            assert_eq!((count('o'), count('e')), (outs, errs));
        }
    }
}
