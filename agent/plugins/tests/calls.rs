//! Calls to a driver behind a real socket: deadlines, lost connections, answers that are none.

mod common;

use std::path::Path;

use bytes::Bytes;
use common::{Script, ServedPlugin, patiently};
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pintle_agent_plugins::csi::Node;
use pintle_agent_plugins::error::ErrorSide;
use pintle_agent_plugins::{CallError, Code};
use tokio::net::UnixListener;
use tonic::Status;

fn driver(folder: &Path, script: Script) -> (Node, ServedPlugin) {
    let path = folder.join("csi.sock");
    let plugin = ServedPlugin::start(&path, script).expect("it starts");
    (Node::new(&path), plugin)
}

/// Answers every request with these frames, and a status at the end if there is one.
fn speak(path: &Path, data: Vec<Bytes>, status: Option<&'static str>) {
    let listener = UnixListener::bind(path).expect("a socket");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let data = data.clone();
            let answer = service_fn(move |_| {
                let trailers = status.map(|status| {
                    let mut trailers = HeaderMap::new();
                    trailers.insert("grpc-status", HeaderValue::from_static(status));
                    Frame::trailers(trailers)
                });
                let frames = data.clone().into_iter().map(Frame::data).chain(trailers);
                let frames = frames.map(Ok::<_, std::convert::Infallible>);
                let body = StreamBody::new(tokio_stream::iter(frames.collect::<Vec<_>>()));
                async move { Ok::<_, std::convert::Infallible>(Response::new(body)) }
            });
            let serve = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), answer);
            tokio::spawn(serve);
        }
    });
}

async fn stage(node: &Node) -> Result<(), CallError> {
    patiently(node.stage(&Default::default())).await
}

#[tokio::test]
async fn driver_error_keeps_its_code_and_message() {
    let temp = tempfile::tempdir().expect("a folder");
    let fails = Some(("NodeStageVolume", Status::failed_precondition("no \u{e9}lan")));
    let (node, plugin) = driver(temp.path(), Script { fails, ..Script::new("a") });
    let error = stage(&node).await.expect_err("it fails");
    assert_eq!((error.code, error.origin), (Code::FailedPrecondition, ErrorSide::Plugin));
    assert_eq!(error.message, "no \u{e9}lan");
    assert!(error.is_final());
    plugin.script(|script| script.fails = Some(("NodeStageVolume", Status::aborted("pending"))));
    assert!(!stage(&node).await.expect_err("it fails").is_final());
}

#[tokio::test(start_paused = true)]
async fn call_that_hangs_ends_at_its_deadline_and_is_uncertain() {
    let temp = tempfile::tempdir().expect("a folder");
    let hangs = Some("NodeStageVolume");
    let (node, _plugin) = driver(temp.path(), Script { hangs, ..Script::new("a") });
    let error = node.stage(&Default::default()).await.expect_err("it hangs");
    assert_eq!((error.code, error.origin), (Code::DeadlineExceeded, ErrorSide::Agent));
    assert!(!error.is_final());
}

#[tokio::test]
async fn call_that_hangs_holds_up_no_other() {
    let temp = tempfile::tempdir().expect("a folder");
    let hangs = Some("NodeStageVolume");
    let (node, plugin) = driver(temp.path(), Script { hangs, ..Script::new("a") });
    let stuck = tokio::spawn({
        let node = node.clone();
        async move { node.stage(&Default::default()).await }
    });
    plugin.until(|seen| !seen.calls.is_empty()).await;
    patiently(node.unpublish(&Default::default())).await.expect("it answers");
    assert!(!stuck.is_finished());
}

#[tokio::test]
async fn call_to_a_crashed_driver_is_uncertain_and_the_restarted_driver_is_dialled() {
    let temp = tempfile::tempdir().expect("a folder");
    let hangs = Some("NodeStageVolume");
    let (node, plugin) = driver(temp.path(), Script { hangs, ..Script::new("a") });
    let stuck = tokio::spawn({
        let node = node.clone();
        async move { node.stage(&Default::default()).await }
    });
    plugin.until(|seen| !seen.calls.is_empty()).await;
    drop(plugin);
    let error = patiently(stuck).await.expect("no panic").expect_err("it died");
    assert_eq!((error.code, error.origin), (Code::Unavailable, ErrorSide::Agent));
    assert!(!error.is_final());
    let error = stage(&node).await.expect_err("it is gone");
    assert!(error.message.contains("csi.sock"), "{error}");
    let _plugin = ServedPlugin::start(node.socket(), Script::new("a")).expect("it starts");
    stage(&node).await.expect("it is back");
}

#[tokio::test]
async fn answers_that_are_none_are_uncertain() {
    let head = |length: u32| {
        let mut bytes = vec![0];
        bytes.extend(length.to_be_bytes());
        Bytes::from(bytes)
    };
    let compressed = Bytes::from_static(&[1, 0, 0, 0, 0]);
    // Field 1 with a wire type that does not exist.
    let broken = Bytes::from_static(&[0, 0, 0, 0, 1, 0x0f]);
    let cases = [
        ("too long", vec![head(u32::MAX)], Some("0")),
        ("doubled", vec![head(0), head(0)], Some("0")),
        ("compressed", vec![compressed], Some("0")),
        ("broken", vec![broken], Some("0")),
        ("short", vec![head(7)], Some("0")),
        ("none", Vec::new(), Some("0")),
        ("without a status", vec![head(0)], None),
    ];
    let temp = tempfile::tempdir().expect("a folder");
    for (index, (name, data, status)) in cases.into_iter().enumerate() {
        let path = temp.path().join(format!("{index}.sock"));
        speak(&path, data, status);
        let error = stage(&Node::new(&path)).await.err();
        let error = error.unwrap_or_else(|| panic!("{name} is no answer"));
        assert_eq!(error.origin, ErrorSide::Agent, "{name}: {error}");
        assert!(!error.is_final(), "{name}: {error}");
    }
    let path = temp.path().join("good.sock");
    speak(&path, vec![head(0)], Some("0"));
    stage(&Node::new(&path)).await.expect("an answer");
}
