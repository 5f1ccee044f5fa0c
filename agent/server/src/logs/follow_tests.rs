//! Logs that grow, are rotated and end, read by clients that are fast, slow or gone.

use std::fs;
use std::io::Write as _;
use std::sync::Arc;

use http_body_util::BodyExt as _;
use pintle_agent_core::testing::{snapshot_of, view};
use pintle_agent_runtime::logs::log_rotate::set_aside;
use pintle_daemon::serve::body::{Body, streamed};
use serde_json::json;

use super::*;

struct FollowedLog {
    dir: tempfile::TempDir,
    views: Views,
    lines: u64,
}

impl FollowedLog {
    fn new() -> Self {
        let world =
            Self { dir: tempfile::tempdir().expect("a folder"), views: Views::default(), lines: 0 };
        world.set_running(true);
        world
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("0.log")
    }

    fn set_running(&self, runs: bool) {
        let mut pod = view(json!({"metadata": {"name": "p", "uid": "u"}}));
        let mut observed = (*pod.observed).clone();
        let container = match runs {
            true => pintle_agent_core::status::testing::container("c", "id"),
            false => pintle_agent_core::status::testing::exited("c", "id", 0),
        };
        observed.containers.push(container);
        pod.observed = Arc::new(observed);
        self.views.store(snapshot_of(vec![pod]));
    }

    /// Writes that many lines to the live file, as the runtime does.
    fn write(&mut self, count: u64) {
        let mut file =
            fs::OpenOptions::new().create(true).append(true).open(self.log()).expect("a log");
        for _ in 0..count {
            let micros = 1_000_000_000 + i64::try_from(self.lines).expect("small");
            let time = jiff::Timestamp::from_microsecond(micros).expect("a time");
            writeln!(file, "{time} stdout F {}", self.lines).expect("written");
            self.lines += 1;
        }
    }

    fn rotate(&mut self) {
        set_aside(&self.log(), jiff::Timestamp::now()).expect("renamed");
    }

    fn follow(&self, watches: &Watches, container: Option<&str>) -> Body {
        let (sink, body) = streamed();
        let follow = Follow {
            uid: "u".into(),
            path: self.log(),
            query: LogQuery::default(),
            container: container.map(str::to_owned),
            views: self.views.clone(),
            watches: watches.clone(),
        };
        tokio::spawn(async move { follow.run(&sink).await });
        body
    }

    fn all(&self) -> String {
        (0..self.lines).map(|n| format!("{n}\n")).collect()
    }
}

/// Reads until that many lines are there, or the end.
async fn lines(body: &mut Body, count: usize) -> String {
    let mut text = String::new();
    while text.lines().count() < count {
        let Some(frame) = body.frame().await else { break };
        let data = frame.expect("never fails").into_data().expect("data");
        text.push_str(std::str::from_utf8(&data).expect("text"));
    }
    text
}

#[tokio::test]
async fn a_log_that_is_not_followed_ends_with_its_file() {
    let mut world = FollowedLog::new();
    world.write(5000);
    let mut body = world.follow(&Watches::start(), None);
    assert_eq!(lines(&mut body, usize::MAX).await, world.all());
}

#[tokio::test]
async fn unterminated_last_line_is_sent() {
    let mut world = FollowedLog::new();
    world.write(1);
    let mut file = fs::OpenOptions::new().append(true).open(world.log()).expect("a log");
    write!(file, "2026-01-01T00:00:00Z stdout F hal").expect("written");
    let mut body = world.follow(&Watches::start(), None);
    assert_eq!(lines(&mut body, usize::MAX).await, "0\nhal");
}

#[test]
fn log_chunk_waiting_for_a_client_has_no_spare_capacity() {
    let mut world = FollowedLog::new();
    world.write(5000);
    let mut reader = LogReader::open(&world.log(), LogQuery::default()).expect("a log");
    let (text, step) = gather(&mut reader).expect("read");
    assert_eq!(step, ReadStep::Wrote);
    assert!(text.len() >= CHUNK_BYTES);
    assert_eq!(text.capacity(), text.len());
}

#[tokio::test]
async fn a_followed_log_ends_with_its_container() {
    let mut world = FollowedLog::new();
    world.write(2);
    let mut body = world.follow(&Watches::start(), Some("id"));
    assert_eq!(lines(&mut body, 2).await, "0\n1\n");
    world.write(1);
    assert_eq!(lines(&mut body, 1).await, "2\n");
    world.write(1);
    world.set_running(false);
    assert_eq!(lines(&mut body, usize::MAX).await, "3\n", "its last words, then the end");
}

#[tokio::test]
async fn followed_log_loses_and_repeats_no_line_across_rotations() {
    let mut world = FollowedLog::new();
    world.write(3);
    let mut body = world.follow(&Watches::start(), Some("id"));
    let mut text = lines(&mut body, 3).await;
    for _ in 0..3 {
        world.write(2);
        world.rotate();
        world.write(2);
        text.push_str(&lines(&mut body, 4).await);
    }
    world.set_running(false);
    text.push_str(&lines(&mut body, usize::MAX).await);
    assert_eq!(text, world.all());
}

#[tokio::test]
async fn client_that_stalls_over_several_rotations_misses_no_line() {
    let mut world = FollowedLog::new();
    // More than the body and the chunks hold.
    world.write(100_000);
    let mut body = world.follow(&Watches::start(), Some("id"));
    let mut text = lines(&mut body, 1).await;
    for round in 0..3 {
        world.rotate();
        world.write(10);
        if round == 1 {
            pintle_agent_runtime::logs::log_rotate::tidy(&world.log(), 10).expect("compressed");
        }
    }
    world.set_running(false);
    text.push_str(&lines(&mut body, usize::MAX).await);
    assert!(text == world.all(), "{} of {} lines", text.lines().count(), world.lines);
}

#[tokio::test]
async fn client_disconnect_ends_the_log_follow() {
    let mut world = FollowedLog::new();
    world.write(1);
    let (sink, mut body) = streamed();
    let follow = Follow {
        uid: "u".into(),
        path: world.log(),
        query: LogQuery::default(),
        container: Some("id".to_owned()),
        views: world.views.clone(),
        watches: Watches::start(),
    };
    let task = tokio::spawn(async move { follow.run(&sink).await });
    lines(&mut body, 1).await;
    drop(body);
    task.await.expect("ends by itself");
}

#[test]
fn files_set_aside_before_or_read_are_not_read_again() {
    let world = FollowedLog::new();
    let file = |name: &str| {
        let path = world.dir.path().join(name);
        fs::write(&path, "").expect("written");
        path
    };
    let (old, ours) = (file("0.log.1"), file("0.log.2"));
    let (next, last) = (file("0.log.3.gz"), file("0.log.4"));
    let before = BTreeSet::from([old.clone()]);
    let id = FileId::of(&ours).expect("an id");
    let now = [old.clone(), ours.clone(), next.clone(), last.clone()];
    assert_eq!(missed(&now, &before, id), (vec![next.clone(), last.clone()], true));
    let other = FileId::of(&old).expect("an id");
    assert_eq!(missed(&now, &before, other), (vec![ours, next, last], false));
}
