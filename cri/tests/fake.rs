//! The fake runtime has the semantics of CRI that the agent relies on, as containerd shows them.

mod common;

use std::time::Duration;

use common::*;
use pintle_cri::{Code, Method, Replies, fake::*, v1::*};

/// The runtime's words about a name that exists already.
const TAKEN: &str = "is reserved for";

async fn next(events: &mut Replies<ContainerEventResponse>) -> (ContainerEventType, String) {
    let event = patiently(events.next()).await.expect("more to come").expect("an event");
    (event.container_event_type(), event.container_id)
}

#[tokio::test]
async fn a_pod_lives_from_sandbox_to_removal() {
    let world = FakeRuntimeClient::new().await;
    let sandbox = world.sandbox("a").await;
    let id = world.container(&sandbox, "a", "main").await;
    let status = world.status(&id).await;
    assert_eq!(status.state(), ContainerState::ContainerRunning);
    assert_eq!(status.log_path, "/var/log/pods/test_a/main/0.log");
    assert!(status.started_at >= status.created_at && status.finished_at == 0);
    let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), ..Default::default() };
    let reply = world.client.pod_sandbox_status(request.clone()).await.expect("a status");
    let pod = reply.status.expect("set");
    assert_eq!(pod.state(), PodSandboxState::SandboxReady);
    assert!(pod.network.expect("set").ip.starts_with("10.88."));

    let stop = StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() };
    world.client.stop_pod_sandbox(stop.clone()).await.expect("stops");
    world.client.stop_pod_sandbox(stop).await.expect("stopping again is fine");
    assert_eq!(world.status(&id).await.exit_code, EXIT_KILLED);
    let error = world.client.create_container(create(&sandbox, "a", "late")).await;
    assert_eq!(error.expect_err("the sandbox is not ready").code, Code::Unknown);

    let remove = RemovePodSandboxRequest { pod_sandbox_id: sandbox };
    world.client.remove_pod_sandbox(remove.clone()).await.expect("goes");
    world.client.remove_pod_sandbox(remove).await.expect("removing again is fine");
    assert!(world.client.pod_sandbox_status(request).await.expect_err("gone").is_not_found());
    let list = world.client.list_containers(ListContainersRequest::default()).await;
    assert!(list.expect("a list").containers.is_empty());
}

#[tokio::test]
async fn names_are_reserved_until_removal() {
    let world = FakeRuntimeClient::new().await;
    let sandbox = world.sandbox("a").await;
    let error = world.client.run_pod_sandbox(run("a")).await.expect_err("taken");
    assert!(error.code == Code::FailedPrecondition && error.message.contains(TAKEN), "{error}");
    let id = world.created(&sandbox, "a", "main").await;
    let again = world.client.create_container(create(&sandbox, "a", "main")).await;
    assert!(again.expect_err("taken").message.contains(TAKEN));
    let remove = RemoveContainerRequest { container_id: id };
    world.client.remove_container(remove).await.expect("goes");
    world.created(&sandbox, "a", "main").await;
}

#[tokio::test]
async fn containers_stop_as_their_script_defines() {
    let world = FakeRuntimeClient::new().await;
    let sandbox = world.sandbox("a").await;
    world.fake.script("a/clean", Behaviour::stops(Duration::from_millis(5), 0));
    world.fake.script("a/stubborn", Behaviour::ignores_stop());
    for (name, grace, expected) in [
        ("default", 30, (EXIT_TERMINATED, "Error")),
        ("clean", 30, (0, "Completed")),
        ("stubborn", 1, (EXIT_KILLED, "Error")),
        ("default-killed", 0, (EXIT_KILLED, "Error")),
    ] {
        let id = world.container(&sandbox, "a", name).await;
        patiently(world.client.stop_container(stop(&id, grace))).await.expect("stops");
        let status = world.status(&id).await;
        assert_eq!((status.exit_code, status.reason.as_str()), expected, "{name}");
        world.client.stop_container(stop(&id, 30)).await.expect("stopping again is fine");
    }
}

#[tokio::test]
async fn containers_exit_by_script_and_by_hand() {
    let world = FakeRuntimeClient::new().await;
    let sandbox = world.sandbox("a").await;
    world.fake.script("a/job", Behaviour::exits(Duration::from_millis(5), 3));
    let oom = Behaviour { exit_reason: Some("OOMKilled".into()), ..Behaviour::default() };
    world.fake.script("a/fat", oom);
    let job = world.container(&sandbox, "a", "job").await;
    let fat = world.container(&sandbox, "a", "fat").await;
    world.fake.exit_container(&fat, EXIT_KILLED);
    patiently(world.fake.until(|state| state.next_due().is_none())).await;
    assert_eq!(world.status(&job).await.exit_code, 3);
    let status = world.status(&fat).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (EXIT_KILLED, "OOMKilled"));
}

#[tokio::test]
async fn failed_start_leaves_an_exited_container_with_a_start_error() {
    let world = FakeRuntimeClient::new().await;
    let sandbox = world.sandbox("a").await;
    world.fake.script("a/main", Behaviour::start_error("exec: \"nope\": not found"));
    let id = world.created(&sandbox, "a", "main").await;
    let error = world.client.start_container(start(&id)).await.expect_err("cannot start");
    assert!(error.code == Code::Unknown && error.message.contains("nope"), "{error}");
    let status = world.status(&id).await;
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_eq!((status.exit_code, status.reason.as_str()), (EXIT_START_ERROR, "StartError"));
    assert!(world.client.start_container(start(&id)).await.is_err(), "not a second time");
}

#[tokio::test]
async fn commands_answer_by_script_and_time_out() {
    let world = FakeRuntimeClient::new().await;
    let sandbox = world.sandbox("a").await;
    let id = world.container(&sandbox, "a", "main").await;
    world.fake.script_exec("a/main", "check", ExecAnswer::exit(2, "not yet"));
    world.fake.script_exec("a/main", "sleep", ExecAnswer::takes(PATIENCE));
    world.fake.script_exec("a/main", "nope", ExecAnswer::error("no such file"));
    let reply = world.client.exec_sync(exec(&id, "check it", 1)).await.expect("answers");
    assert_eq!((reply.exit_code, reply.stdout.as_slice()), (2, b"not yet".as_slice()));
    let error = world.client.exec_sync(exec(&id, "sleep", 1)).await.expect_err("too slow");
    assert!(error.is_deadline(), "{error}");
    let error = world.client.exec_sync(exec(&id, "nope", 1)).await.expect_err("cannot run");
    assert_eq!(error.code, Code::Unknown);
    world.fake.exit_container(&id, 0);
    assert!(world.client.exec_sync(exec(&id, "check", 1)).await.is_err(), "it does not run");
}

#[tokio::test]
async fn events_cover_the_life_of_a_pod_and_the_first_subscriber_gets_the_history() {
    let world = FakeRuntimeClient::new().await;
    let sandbox = world.sandbox("a").await;
    let id = world.container(&sandbox, "a", "main").await;
    let mut events = world.client.get_container_events(GetEventsRequest {}).expect("opens");
    use ContainerEventType::*;
    assert_eq!(next(&mut events).await, (ContainerCreatedEvent, sandbox.clone()));
    assert_eq!(next(&mut events).await, (ContainerStartedEvent, sandbox.clone()));
    assert_eq!(next(&mut events).await, (ContainerCreatedEvent, id.clone()));
    assert_eq!(next(&mut events).await, (ContainerStartedEvent, id.clone()));
    world.fake.exit_container(&id, 7);
    let event = patiently(events.next()).await.expect("more").expect("an event");
    assert_eq!(event.container_event_type(), ContainerStoppedEvent);
    assert_eq!(event.containers_statuses[0].exit_code, 7);
    world.fake.kill_sandbox(&sandbox);
    assert_eq!(next(&mut events).await, (ContainerStoppedEvent, sandbox));
}

#[tokio::test]
async fn events_can_be_lost_reordered_and_broken_off() {
    let world = FakeRuntimeClient::new().await;
    let mut events = world.client.get_container_events(GetEventsRequest {}).expect("opens");
    let sandbox = world.sandbox("a").await;
    assert_eq!(next(&mut events).await.1, sandbox);
    assert_eq!(next(&mut events).await.1, sandbox);
    world.fake.lose_events(true);
    world.sandbox("lost").await;
    world.fake.lose_events(false);
    world.fake.hold_events();
    let held = world.sandbox("held").await;
    world.fake.release_events_reversed();
    assert_eq!(next(&mut events).await, (ContainerEventType::ContainerStartedEvent, held.clone()));
    assert_eq!(next(&mut events).await, (ContainerEventType::ContainerCreatedEvent, held));
    world.fake.break_event_streams();
    let error = patiently(events.next()).await.expect("the end").expect_err("broken");
    assert_eq!(error.code, Code::Unavailable, "{error}");
}

#[tokio::test]
async fn a_restart_keeps_the_state_and_loses_exits_that_happened_meanwhile() {
    let mut world = FakeRuntimeClient::new().await;
    let sandbox = world.sandbox("a").await;
    let stays = world.container(&sandbox, "a", "stays").await;
    let ends = world.container(&sandbox, "a", "ends").await;
    world.fake.stop();
    world.fake.exit_container(&ends, 3);
    world.fake.start_again().expect("starts again");
    patiently(world.client.ready()).await;
    assert_eq!(world.status(&stays).await.state(), ContainerState::ContainerRunning);
    let status = world.status(&ends).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (EXIT_UNSEEN, "Unknown"));
}

#[tokio::test]
async fn faults_fail_before_or_after_the_effect() {
    let world = FakeRuntimeClient::new().await;
    world.fake.on(Method::RunPodSandbox).times(1).fail(Code::Unknown, "no network");
    assert!(world.client.run_pod_sandbox(run("a")).await.is_err());
    assert!(world.fake.state().list_pod_sandbox(None).is_empty());
    world.fake.on(Method::RunPodSandbox).times(1).fail_after(Code::Unavailable, "lost");
    assert!(world.client.run_pod_sandbox(run("a")).await.is_err());
    assert_eq!(world.fake.state().list_pod_sandbox(None).len(), 1);
}

#[tokio::test]
async fn calls_are_recorded_in_order_with_request_and_outcome() {
    let world = FakeRuntimeClient::new().await;
    let sandbox = world.sandbox("a").await;
    let id = world.container(&sandbox, "a", "main").await;
    let calls = world.fake.calls();
    let methods: Vec<_> = calls.iter().map(|call| call.method).collect();
    assert_eq!(methods, [Method::RunPodSandbox, Method::CreateContainer, Method::StartContainer]);
    assert_eq!(calls[2].subject, "test/a/main");
    assert_eq!(calls[2].request::<StartContainerRequest>(), Some(start(&id)));
    assert_eq!(calls[2].request::<StopContainerRequest>(), None);
    assert_eq!(calls[0].request(), Some(run("a")));
    assert_eq!(calls[2].ended.map(|(_, code)| code), Some(Code::Ok));
    world.fake.clear_calls();
    assert!(world.fake.calls().is_empty());
}

#[tokio::test]
async fn images_are_pulled_found_and_removed() {
    let world = FakeRuntimeClient::new().await;
    let spec = |image: &str| Some(ImageSpec { image: image.into(), ..Default::default() });
    let pull = |image: &str| PullImageRequest { image: spec(image), ..Default::default() };
    let status = |image: &str| ImageStatusRequest { image: spec(image), verbose: false };
    let client = &world.client;
    assert!(client.image_status(status("nginx")).await.expect("answers").image.is_none());
    let image_ref = client.pull_image(pull("nginx")).await.expect("pulls").image_ref;
    let found = client.image_status(status(&image_ref)).await.expect("answers").image;
    assert_eq!(found.expect("present").repo_tags, ["docker.io/library/nginx:latest"]);
    world.fake.set_image_missing("nothing");
    assert!(client.pull_image(pull("nothing")).await.expect_err("missing").is_not_found());
    client.remove_image(RemoveImageRequest { image: spec("nginx") }).await.expect("goes");
    client.remove_image(RemoveImageRequest { image: spec("nginx") }).await.expect("again");
    let list = client.list_images(ListImagesRequest::default()).await.expect("a list");
    assert_eq!(list.images.len(), 1, "busybox is left");
}

#[tokio::test]
async fn lists_filter_by_state_labels_and_sandbox() {
    let world = FakeRuntimeClient::new().await;
    let (a, b) = (world.sandbox("a").await, world.sandbox("b").await);
    world.container(&a, "a", "one").await;
    let two = world.container(&b, "b", "two").await;
    world.fake.exit_container(&two, 0);
    let filter = |filter: ContainerFilter| ListContainersRequest { filter: Some(filter) };
    let exited = ContainerStateValue { state: ContainerState::ContainerExited.into() };
    for (wanted, count) in [
        (ContainerFilter::default(), 2),
        (ContainerFilter { state: Some(exited), ..Default::default() }, 1),
        (ContainerFilter { pod_sandbox_id: a.clone(), ..Default::default() }, 1),
        (ContainerFilter { id: "none".into(), ..Default::default() }, 0),
    ] {
        let reply = world.client.list_containers(filter(wanted)).await.expect("a list");
        assert_eq!(reply.containers.len(), count);
    }
    let labelled = PodSandboxFilter {
        label_selector: [("pod".to_owned(), "b".to_owned())].into(),
        ..Default::default()
    };
    let request = ListPodSandboxRequest { filter: Some(labelled) };
    let items = world.client.list_pod_sandbox(request).await.expect("a list").items;
    assert_eq!(items.iter().map(|item| &item.id).collect::<Vec<_>>(), [&b]);
}

#[tokio::test]
async fn flavors_differ_where_containerd_versions_do() {
    for (flavor, config) in
        [(Flavor::Containerd17, Some(Code::Unimplemented)), (Flavor::Containerd21, None)]
    {
        let world = FakeRuntimeClient::of(flavor).await;
        world.client.stop_container(stop("none", 1)).await.expect("an unknown one is stopped");
        let answer = world.client.runtime_config(RuntimeConfigRequest {}).await;
        assert_eq!(answer.err().map(|error| error.code), config, "{flavor:?}");
    }
}
