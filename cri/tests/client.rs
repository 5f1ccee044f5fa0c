//! The client against the fake runtime: deadlines, reconnecting, its memory and its reports.

mod common;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use common::*;
use pintle_cri::{Client, Code, Deadlines, Error, Method, Observer, error::Origin, fake::*, v1::*};

fn version() -> VersionRequest {
    VersionRequest::default()
}

#[tokio::test]
async fn unanswered_call_ends_at_its_deadline_and_is_cancelled_at_the_runtime() {
    let world = FakeRuntimeClient::new().await;
    world.fake.on(Method::Version).hang();
    let deadlines = Deadlines { call: Duration::from_millis(50), ..Deadlines::default() };
    let client = world.client.with_deadlines(deadlines);
    let error = patiently(client.version(version())).await.expect_err("it hangs");
    assert!(error.is_deadline() && error.origin == Origin::Client, "{error:?}");
    patiently(async {
        loop {
            let calls = world.fake.called(Method::Version, "", 1).await;
            if calls[0].ended.is_some() {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_hanging_call_hurts_no_other_call() {
    let world = FakeRuntimeClient::new().await;
    let sandbox = world.sandbox("a").await;
    world.fake.on(Method::StartContainer).matching("a/stuck").hang();
    let stuck = world.created(&sandbox, "a", "stuck").await;
    let fine = world.created(&sandbox, "a", "fine").await;
    let client = world.client.clone();
    let hanging = tokio::spawn(async move { client.start_container(start(&stuck)).await });
    patiently(world.fake.called(Method::StartContainer, "stuck", 1)).await;
    patiently(world.client.start_container(start(&fine))).await.expect("starts");
    assert!(!hanging.is_finished());
    world.fake.lift_all();
    patiently(hanging).await.expect("no panic").expect("goes on once the fault is lifted");
}

#[tokio::test]
async fn in_flight_calls_are_listed_with_their_subject_until_they_end() {
    let world = FakeRuntimeClient::new().await;
    let lift = world.fake.on(Method::RunPodSandbox).hang();
    let client = world.client.clone();
    let running = tokio::spawn(async move { client.run_pod_sandbox(run("slow")).await });
    patiently(world.fake.called(Method::RunPodSandbox, "", 1)).await;
    let calls = world.client.in_flight();
    assert_eq!(calls.len(), 1);
    assert_eq!((calls[0].method, calls[0].subject.as_str()), (Method::RunPodSandbox, "test/slow"));
    assert_eq!(calls[0].deadline, Some(Duration::from_secs(240)));
    lift.lift();
    patiently(running).await.expect("no panic").expect("the sandbox starts");
    assert!(world.client.in_flight().is_empty());
}

#[tokio::test]
async fn times_that_no_clock_can_hold_are_deadlines_of_a_year() {
    let world = FakeRuntimeClient::new().await;
    for timeout in [i64::from(i32::MAX), 400_000_000_000, i64::MAX] {
        let stop = StopContainerRequest { container_id: "gone".to_owned(), timeout };
        world.client.stop_container(stop).await.expect("a stop of what is gone is no error");
        let container_id = "gone".to_owned();
        let exec = ExecSyncRequest { container_id, cmd: vec!["true".to_owned()], timeout };
        assert!(world.client.exec_sync(exec).await.is_err());
    }
    let version = world.client.call_within(version(), Some(Duration::MAX)).await;
    assert_eq!(version.expect("it answers").runtime_api_version, "v1");
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_and_leaves_the_list() {
    let world = FakeRuntimeClient::new().await;
    world.fake.on(Method::PullImage).hang();
    let image = Some(ImageSpec { image: "huge".into(), ..Default::default() });
    let client = world.client.clone();
    let pulling = tokio::spawn(async move {
        client.pull_image(PullImageRequest { image, ..Default::default() }).await
    });
    patiently(world.fake.called(Method::PullImage, "huge", 1)).await;
    pulling.abort();
    _ = pulling.await;
    assert!(world.client.in_flight().is_empty());
}

#[tokio::test]
async fn a_call_that_the_runtime_lacks_is_made_once_per_connection() {
    let mut world = FakeRuntimeClient::of(Flavor::Containerd17).await;
    let config = RuntimeConfigRequest {};
    for _ in 0..3 {
        let error = world.client.runtime_config(config).await.expect_err("1.7 lacks it");
        assert!(error.is_unimplemented(), "{error}");
    }
    assert_eq!(world.fake.calls_of(Method::RuntimeConfig, "").len(), 1);
    let before = world.client.connection();
    world.fake.restart().expect("restarts");
    patiently(world.client.ready()).await;
    assert!(world.client.connection() > before);
    assert!(world.client.runtime_config(config).await.is_err());
    assert_eq!(world.fake.calls_of(Method::RuntimeConfig, "").len(), 2);
}

#[tokio::test]
async fn an_event_stream_that_the_runtime_lacks_ends_with_unimplemented() {
    let world = FakeRuntimeClient::new().await;
    world.fake.on(Method::GetContainerEvents).fail(Code::Unimplemented, "no events");
    let mut events = world.client.get_container_events(GetEventsRequest {}).expect("opens");
    let error = patiently(events.next()).await.expect("an item").expect_err("unimplemented");
    assert!(error.is_unimplemented(), "{error}");
    assert!(patiently(events.next()).await.is_none());
    assert!(world.client.get_container_events(GetEventsRequest {}).is_err(), "remembered");
}

#[tokio::test]
async fn calls_fail_at_once_while_the_runtime_is_down_and_succeed_after_its_restart() {
    let mut world = FakeRuntimeClient::new().await;
    world.client.version(version()).await.expect("it runs");
    world.fake.stop();
    let mut failures = Vec::new();
    for _ in 0..5 {
        failures.push(patiently(world.client.version(version())).await.expect_err("it is away"));
    }
    assert!(failures.iter().all(|error| error.code == Code::Unavailable), "{failures:?}");
    assert!(failures.iter().all(|error| error.origin == Origin::Connection), "{failures:?}");
    let waits = failures.iter().filter(|error| error.message.contains("next attempt")).count();
    assert!(waits > 0, "later calls do not try again at once: {failures:?}");
    world.fake.start_again().expect("starts again");
    assert_eq!(patiently(world.client.ready()).await.runtime_name, "containerd");
    world.client.version(version()).await.expect("it is back");
}

#[tokio::test]
async fn client_may_be_created_before_its_runtime_starts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("cri.sock");
    let endpoint = format!("unix://{}", path.display());
    let client = Client::connect(&endpoint, Deadlines::default()).expect("valid");
    let error = client.version(version()).await.expect_err("no runtime listens");
    assert!(error.code == Code::Unavailable && error.message.contains("cri.sock"), "{error}");
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let told_of = move |error: &Error| drop(tell.send(error.to_string()));
    let waiting = tokio::spawn(async move { client.ready_telling(told_of).await });
    while let Some(why) = patiently(told.recv()).await
        && !why.contains("cri.sock: No such file")
    {}
    let _fake = FakeRuntime::start(&path).await.expect("the fake starts");
    assert_eq!(patiently(waiting).await.expect("no panic").runtime_api_version, "v1");
}

#[tokio::test]
async fn a_call_in_the_middle_of_a_restart_fails_as_unavailable_and_may_have_happened() {
    let mut world = FakeRuntimeClient::new().await;
    world.fake.on(Method::RunPodSandbox).hang_after();
    let client = world.client.clone();
    let running = tokio::spawn(async move { client.run_pod_sandbox(run("a")).await });
    patiently(world.fake.until(|state| !state.list_pod_sandbox(None).is_empty())).await;
    world.fake.restart().expect("restarts");
    let error = patiently(running).await.expect("no panic").expect_err("the runtime died");
    assert_eq!((error.code, error.origin), (Code::Unavailable, Origin::Connection), "{error:?}");
    patiently(world.client.ready()).await;
    world.fake.lift_all();
    let error = world.client.run_pod_sandbox(run("a")).await.expect_err("it did happen");
    assert!(error.message.contains("is reserved for"), "{error}");
}

#[tokio::test]
async fn an_answer_beyond_16_mib_is_an_error_and_the_connection_survives() {
    let world = FakeRuntimeClient::new().await;
    let sandbox = world.sandbox("a").await;
    let id = world.container(&sandbox, "a", "main").await;
    let answer = |bytes| ExecAnswer { stdout: vec![b'x'; bytes], ..ExecAnswer::default() };
    world.fake.script_exec("main", "fits", answer(15 << 20));
    world.fake.script_exec("main", "too much", answer(17 << 20));
    let reply = world.client.exec_sync(exec(&id, "fits", 30)).await.expect("fits");
    assert_eq!(reply.stdout.len(), 15 << 20);
    let error = world.client.exec_sync(exec(&id, "too much", 30)).await.expect_err("too large");
    assert_eq!(error.code, Code::OutOfRange, "{error:?}");
    world.client.version(version()).await.expect("still connected");
}

#[tokio::test]
async fn a_streamed_list_is_gathered_whole_or_not_at_all() {
    let world = FakeRuntimeClient::of(Flavor::Complete).await;
    for pod in ["a", "b", "c", "d", "e"] {
        world.sandbox(pod).await;
    }
    let client = &world.client;
    let stream = || client.stream_pod_sandboxes(StreamPodSandboxesRequest::default());
    let pieces = patiently(stream().expect("opens").collect(PATIENCE)).await.expect("whole");
    assert!(pieces.len() > 1, "several messages");
    assert_eq!(pieces.iter().map(|piece| piece.pod_sandboxes.len()).sum::<usize>(), 5);
    world.fake.on(Method::StreamPodSandboxes).hang();
    let late = stream().expect("opens").collect(Duration::from_millis(50));
    assert!(patiently(late).await.expect_err("hangs").is_deadline());
}

#[derive(Default)]
struct Seen(Mutex<Vec<(Method, Option<Code>)>>);

impl Observer for Seen {
    fn call_ended(&self, method: Method, outcome: Option<Code>, _took: Duration) {
        self.0.lock().expect("not poisoned").push((method, outcome));
    }
}

#[tokio::test]
async fn the_observer_sees_each_call_with_its_outcome() {
    let world = FakeRuntimeClient::new().await;
    let seen = Arc::new(Seen::default());
    let client = world.client.clone().with_observer(seen.clone());
    client.version(version()).await.expect("answers");
    let missing = ContainerStatusRequest { container_id: "none".into(), verbose: false };
    assert!(client.container_status(missing).await.expect_err("missing").is_not_found());
    assert_eq!(
        *seen.0.lock().expect("not poisoned"),
        [(Method::Version, Some(Code::Ok)), (Method::ContainerStatus, Some(Code::NotFound))]
    );
}

#[tokio::test]
async fn a_garbled_answer_is_an_error_not_a_panic() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("cri.sock");
    let listener = tokio::net::UnixListener::bind(&path).expect("binds");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await; // not HTTP/2
            _ = stream.read(&mut [0; 64]).await;
        }
    });
    let endpoint = format!("unix://{}", path.display());
    let client = Client::connect(&endpoint, Deadlines::default()).expect("valid");
    for _ in 0..3 {
        let error = patiently(client.version(version())).await.expect_err("garbled");
        assert_eq!(error.code, Code::Unavailable, "{error:?}");
    }
}
