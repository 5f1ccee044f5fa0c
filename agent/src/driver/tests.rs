//! A panic within a call of the runtime fails that call, and nothing else.

use pintle_cri::fake::{FakeRuntime, PanicsOnce};
use pintle_cri::{Client, Deadlines};

use super::*;

/// All metrics of an agent that has no pods.
pub(super) fn exposition(metrics: &Metrics) -> String {
    metrics.render(&pintle_agent_metrics::Scrape {
        snapshot: &pintle_agent_core::view::Snapshot::default(),
        has_api: false,
        event_source: "relist",
        events_dropped: 0,
        timeline_dropped: 0,
        calls_in_flight: 0,
    })
}

#[tokio::test]
async fn panicking_read_reports_an_error_and_the_next_read_succeeds() {
    let dir = tempfile::tempdir().expect("a folder");
    let runtime = FakeRuntime::start(&dir.path().join("c.sock")).await.expect("it starts");
    let client = Client::connect(&runtime.endpoint(), Deadlines::default()).expect("a path");
    let client = client.with_observer(Arc::new(PanicsOnce::default()));
    let (back, mut queue) = mpsc::channel(4);
    let read = PodRead {
        uid: PodUid::from("u"),
        names: ("ns".to_owned(), "p".to_owned()),
        reader: PodReader::new(client),
        back,
        recorder: Recorder::default(),
        metrics: Arc::new(Metrics::new("n")),
        reads: Rc::default(),
    };
    read.reads.borrow_mut().asked(&read.uid);
    for (stamp, good) in [(1, false), (2, true)] {
        assert!(read.reads.borrow_mut().due(&read.uid, stamp), "{stamp}");
        read.make(stamp).await;
        let Some(PodsInput::Observed { stamp: of, result, .. }) = queue.recv().await else {
            panic!("a read is answered");
        };
        assert_eq!((of, result.is_ok()), (stamp, good), "{result:?}");
    }
    let text = exposition(&read.metrics);
    assert!(text.contains("pintle_task_panics_total{task=\"read\"}"), "{text}");
    assert!(text.contains("pintle_main_loop_stall_seconds_bucket{le=\"0.01\"}"), "{text}");
}
