//! `/run` and `/checkpoint`: one call of the runtime, its answer in the body.
// k8s: pkg/kubelet/server/server.go getRun, checkpoint

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use pintle_api_types::pod;
use pintle_cri::v1;
use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::query::Query;

use super::api::Api;
use super::route::PathWords;
use super::select;
use super::stream::running;

/// Longest time for a checkpoint, in seconds: beyond it deadlines cannot be computed.
const CHECKPOINT_MAX: i64 = 365 * 24 * 3600;

/// Runs a command to its end, without a time limit, as the kubelet does.
pub(super) async fn run(api: &Api, words: &PathWords, query: &Query) -> HttpAnswer {
    let snapshot = api.views().load();
    let Some(view) = select::by_name(&snapshot, &words.namespace, &words.pod) else {
        return HttpAnswer::text(404, "pod does not exist");
    };
    let same = words.uid.is_empty() || words.uid == select::uid(view);
    let Some(container) = Some(view).filter(|_| same).and_then(|v| running(v, &words.container))
    else {
        return HttpAnswer::text(500, format!("container not found ({:?})", words.container));
    };
    let container_id = container.id.as_str().to_owned();
    drop(snapshot);
    let cmd: Vec<String> =
        query.first("cmd").unwrap_or_default().split(' ').map(str::to_owned).collect();
    let line = cmd.join(" ");
    let request = v1::ExecSyncRequest { container_id, cmd, timeout: 0 };
    match api.runtime().exec_sync(request).await {
        Ok(done) if done.exit_code == 0 => {
            let mut output = done.stdout;
            output.extend_from_slice(&done.stderr);
            HttpAnswer::json_bytes(output)
        }
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr);
            let text = format!("command '{line}' exited with {}: {said}", done.exit_code);
            HttpAnswer::text(500, text)
        }
        Err(error) => HttpAnswer::text(500, error.rpc_text()),
    }
}

/// Has the runtime write a checkpoint of a container to a file.
pub(super) async fn checkpoint(api: &Api, words: &PathWords, query: &Query) -> HttpAnswer {
    let snapshot = api.views().load();
    let Some(view) = select::by_name(&snapshot, &words.namespace, &words.pod) else {
        return HttpAnswer::text(404, "pod does not exist");
    };
    let name = &words.container;
    if !select::has_container(view, name) {
        return HttpAnswer::text(404, format!("container {name} does not exist"));
    }
    let timeout = match query.all("timeout").last().map(str::parse::<i64>).transpose() {
        Ok(timeout) => timeout.unwrap_or(0),
        Err(_) => return HttpAnswer::text(404, "cannot parse value of timeout parameter"),
    };
    let usual = api.parts().config.kubelet.runtime_request_timeout.to_std().as_secs();
    let failed = |error: String| {
        let (namespace, pod) = (&words.namespace, &words.pod);
        HttpAnswer::text(500, format!("checkpointing of {namespace}/{pod}/{name} failed ({error})"))
    };
    let Some(container) = running(view, name) else {
        return failed(format!("container {name} not found"));
    };
    let Some(timeout) = patience(timeout, usual) else {
        return failed("CheckpointContainer requires the timeout value to be > 0".to_owned());
    };
    let dir = api.parts().config.flags.root_dir.join("checkpoints");
    let location = location(&dir, &pod::full_name(&view.pod), name, &jiff::Zoned::now());
    let container_id = container.id.as_str().to_owned();
    drop(snapshot);
    // The runtime writes into the folder, which only its owner may read.
    if let Err(error) = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir) {
        return failed(format!("{}: {error}", dir.display()));
    }
    let request =
        v1::CheckpointContainerRequest { container_id, location: location.clone(), timeout };
    match api.runtime().checkpoint_container(request).await {
        Ok(_) => HttpAnswer::json(&serde_json::json!({"items": [location]})),
        Err(error) => failed(error.rpc_text()),
    }
}

/// Seconds that the runtime may take: those of the request, but no less than for any other call.
/// `None` for a request that goes back in time.
// k8s: staging/src/k8s.io/cri-client/pkg/remote_runtime.go CheckpointContainer
fn patience(asked: i64, usual: u64) -> Option<i64> {
    (asked >= 0).then(|| asked.max(i64::try_from(usual).unwrap_or(i64::MAX)).min(CHECKPOINT_MAX))
}

// k8s: pkg/kubelet/kubelet.go CheckpointContainer
fn location(dir: &Path, pod: &str, container: &str, now: &jiff::Zoned) -> String {
    // As Go prints a time: UTC has a letter of its own.
    let zone =
        if now.offset().is_zero() { "Z".to_owned() } else { now.strftime("%:z").to_string() };
    let now = now.strftime("%Y-%m-%dT%H:%M:%S");
    let name = format!("checkpoint-{pod}-{container}-{now}{zone}.tar");
    dir.join(name).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_has_at_least_the_usual_time() {
        let table = [
            (0, Some(120)),
            (60, Some(120)),
            (300, Some(300)),
            (-1, None),
            (i64::MAX, Some(CHECKPOINT_MAX)),
        ];
        for (asked, want) in table {
            assert_eq!(patience(asked, 120), want, "{asked}");
        }
    }

    #[test]
    fn the_file_is_named_after_pod_container_and_local_time() {
        for (time, want) in [
            ("2026-01-02T03:04:05.6+00:00[+00:00]", "2026-01-02T03:04:05Z"),
            ("2026-01-02T03:04:05+05:30[+05:30]", "2026-01-02T03:04:05+05:30"),
        ] {
            let time: jiff::Zoned = time.parse().expect("a time");
            let at = location(Path::new("/k/checkpoints"), "web_ns", "c", &time);
            assert_eq!(at, format!("/k/checkpoints/checkpoint-web_ns-c-{want}.tar"));
        }
    }
}
