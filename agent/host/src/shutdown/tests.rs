//! The watcher against a fake logind over a real socket.

use std::sync::{Arc, Mutex};

use pintle_agent_core::shutdown::STATE_FILE;
use pintle_agent_core::types::UnixNanos;
use tokio::task::LocalSet;

use super::fake::FakeLogind;
use super::*;

const SECOND: Duration = Duration::from_secs(1);
/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(30);

struct ShutdownNode {
    dir: tempfile::TempDir,
    logind: FakeLogind,
    inputs: mpsc::Receiver<PodsInput>,
    sender: mpsc::Sender<PodsInput>,
    progress: Progress,
    told: Arc<Mutex<Vec<String>>>,
}

impl ShutdownNode {
    fn new(delay: Duration) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let logind = FakeLogind::start(&dir.path().join("bus"), delay).expect("a bus");
        let (sender, inputs) = mpsc::channel(16);
        let progress = watch::Sender::new(None);
        Self { dir, logind, inputs, sender, progress, told: Arc::default() }
    }

    fn bus(&self) -> Option<String> {
        Some(format!("unix:path={}", self.dir.path().join("bus").display()))
    }

    async fn watch(&self) {
        self.watch_for(Announcer::Anybody).await;
    }

    async fn watch_for(&self, announcer: Announcer) {
        let told = Arc::clone(&self.told);
        let events: NodeEvents = Rc::new(move |event: NodeEvent| {
            told.lock().expect("no panic").push(format!("{}: {}", event.reason, event.message));
        });
        let settings = Settings {
            windows: vec![Window { priority: 0, seconds: 20 }, Window { priority: 9, seconds: 10 }],
            root_dir: self.dir.path().to_owned(),
            logind_conf: self.dir.path().join("conf"),
            announcer,
            bus: self.bus(),
        };
        start(settings, self.sender.clone(), events, &self.progress).await;
    }

    async fn input(&mut self) -> Notice {
        let input = tokio::time::timeout(PATIENCE, self.inputs.recv()).await.expect("in time");
        match input.expect("an input") {
            PodsInput::Shutdown(notice) => notice,
            other => panic!("{other:?}"),
        }
    }

    async fn held(&self, count: usize) {
        let held = async {
            while self.logind.held() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, held).await.expect("in time");
    }
}

fn run(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), work);
}

fn begins(notice: &Notice) -> Option<&ShutdownRecord> {
    match notice {
        Notice::Begins { windows, resumed } => {
            assert_eq!(windows.len(), 2);
            resumed.as_ref()
        }
        Notice::Cancelled => panic!("it goes on"),
    }
}

#[test]
fn inhibitor_lock_is_held_until_the_last_group_ended_and_retaken_on_cancellation() {
    run(async {
        let mut world = ShutdownNode::new(60 * SECOND);
        world.watch().await;
        world.held(1).await;
        let asked = world.logind.asked().expect("asked");
        let why = "Kubelet needs time to handle node shutdown";
        assert_eq!(asked, ["shutdown", "kubelet", why, "delay"]);
        assert_eq!(world.logind.hangups(), 0, "it waits long enough");
        world.logind.prepare(true).await.expect("announced");
        assert_eq!(begins(&world.input().await), None);
        let begun = ShutdownRecord { started_at: clock::now(), ..ShutdownRecord::default() };
        world.progress.send_replace(Some(begun.clone()));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(world.logind.held(), 1);
        let ended = ShutdownRecord { ended_at: Some(clock::now()), ..begun };
        world.progress.send_replace(Some(ended.clone()));
        world.held(0).await;
        let text = std::fs::read_to_string(world.dir.path().join(STATE_FILE)).expect("a file");
        assert_eq!(ShutdownRecord::of_text(&text).expect("a record"), Some(ended));
        world.logind.prepare(false).await.expect("announced");
        assert_eq!(world.input().await, Notice::Cancelled);
        world.held(1).await;
        let told = world.told.lock().expect("no panic").join("; ");
        let (begins, stays) = ("shutdown event", "shutdown cancellation");
        let say = |what| format!("Shutdown: Shutdown manager detected {what}");
        assert_eq!(told, format!("{}; {}", say(begins), say(stays)));
    });
}

#[test]
fn shutdown_cancelled_while_its_end_is_recorded_keeps_the_inhibitor_lock() {
    run(async {
        for is_given_up in [false, true] {
            let dir = tempfile::tempdir().expect("a folder");
            let lock = Rc::<DelayLock>::default();
            let held = std::fs::File::open(dir.path()).expect("a descriptor");
            *lock.held.borrow_mut() = Some(held.into());
            lock.preparing.set(true);
            let progress = watch::Sender::new(None);
            let keeping =
                state::keep(dir.path().to_owned(), progress.subscribe(), Rc::clone(&lock));
            let ended =
                ShutdownRecord { ended_at: Some(clock::now()), ..ShutdownRecord::default() };
            progress.send_replace(Some(ended.clone()));
            let keeping = tokio::task::spawn_local(keeping);
            tokio::task::yield_now().await;
            lock.preparing.set(!is_given_up);
            drop(progress);
            keeping.await.expect("it ends");
            assert_eq!(last(dir.path()), Some(ended));
            assert_eq!(lock.held.borrow().is_some(), is_given_up);
        }
    });
}

#[test]
fn shutdown_signal_of_any_sender_is_observed_unless_it_is_restricted_to_logind() {
    run(async {
        let cases = [(Announcer::Anybody, false), (Announcer::Logind, true)];
        for (announcer, names_sender) in cases {
            let world = ShutdownNode::new(60 * SECOND);
            world.watch_for(announcer).await;
            world.held(1).await;
            let heard = |rule: &&String| rule.contains("member='PrepareForShutdown'");
            let rules = world.logind.rules();
            let rule = rules.iter().find(heard).expect("it listens");
            let sender = rule.contains("sender='org.freedesktop.login1'");
            assert_eq!(sender, names_sender, "{announcer:?}: {rule}");
        }
    });
}

#[test]
fn a_delay_that_is_too_short_is_raised_by_the_kubelets_file() {
    run(async {
        let world = ShutdownNode::new(5 * SECOND);
        world.logind.delay_after_reload(30 * SECOND);
        world.watch().await;
        world.held(1).await;
        assert_eq!(world.logind.hangups(), 1);
        let file = world.dir.path().join("conf/99-kubelet.conf");
        let text = std::fs::read_to_string(file).expect("a file");
        assert_eq!(text, "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=30\n");
    });
}

#[test]
fn logind_with_too_short_an_inhibit_delay_is_reconfigured() {
    run(async {
        let world = ShutdownNode::new(5 * SECOND);
        world.watch().await;
        world.held(1).await;
        assert_eq!(world.logind.hangups(), 1);
    });
}

#[test]
fn lost_logind_connection_is_reopened_and_missed_signals_are_reported() {
    run(async {
        let mut world = ShutdownNode::new(60 * SECOND);
        world.watch().await;
        world.held(1).await;
        world.logind.prepare_silently(true);
        world.logind.hang_up().await;
        assert_eq!(begins(&world.input().await), None);
        assert_eq!(world.logind.held(), 1, "the lock outlasts the connection");
        world.logind.prepare_silently(false);
        world.logind.hang_up().await;
        assert_eq!(world.input().await, Notice::Cancelled);
    });
}

#[test]
fn start_during_a_shutdown_reports_it_first_with_the_progress_recorded_in_this_boot() {
    run(async {
        for (name, left, goes_on) in [
            (
                "of this boot",
                Some(ShutdownRecord { started_at: clock::now(), ..ShutdownRecord::default() }),
                true,
            ),
            (
                "of an earlier one",
                Some(ShutdownRecord { started_at: UnixNanos(9), ..ShutdownRecord::default() }),
                false,
            ),
            ("none", None, false),
        ] {
            let mut world = ShutdownNode::new(60 * SECOND);
            world.logind.prepare_silently(true);
            world.logind.refuse(true);
            if let Some(left) = &left {
                std::fs::write(world.dir.path().join(STATE_FILE), left.text()).expect("written");
            }
            world.watch().await;
            // It is there when the start continues, before any pod is.
            let Ok(PodsInput::Shutdown(notice)) = world.inputs.try_recv() else { panic!("{name}") };
            assert_eq!(begins(&notice).is_some(), goes_on, "{name}");
            world.logind.prepare(false).await.expect("announced");
            assert_eq!(world.input().await, Notice::Cancelled, "{name}");
        }
    });
}

#[test]
fn shutdown_manager_without_grace_periods_does_not_connect() {
    run(async {
        let world = ShutdownNode::new(SECOND);
        let settings = Settings {
            windows: Vec::new(),
            root_dir: world.dir.path().to_owned(),
            logind_conf: world.dir.path().to_owned(),
            announcer: Announcer::Anybody,
            bus: world.bus(),
        };
        start(settings, world.sender.clone(), Rc::new(|_| {}), &world.progress).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(world.logind.clients(), 0);
    });
}
