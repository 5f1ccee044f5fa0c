//! A collector beside a runtime in memory, on a disk whose size the test tells.

use std::cell::RefCell;

use pintle_api_types::rate::Rate;
use pintle_cri::Deadlines;
use pintle_cri::fake::FakeRuntime;
use tokio::task::LocalSet;

use super::*;
use crate::puller::PullLimits;

const POLICY: Policy =
    Policy { high_percent: 85, low_percent: 80, min_age: Duration::ZERO, max_age: Duration::ZERO };

fn full(_: &Path) -> Option<FileSystem> {
    Some(FileSystem { capacity_bytes: 1 << 40, available_bytes: 0, ..FileSystem::default() })
}

fn roomy(_: &Path) -> Option<FileSystem> {
    Some(FileSystem { capacity_bytes: 100, available_bytes: 100, ..FileSystem::default() })
}

struct Scene {
    dir: tempfile::TempDir,
    runtime: FakeRuntime,
    events: Rc<RefCell<Vec<NodeEvent>>>,
}

impl Scene {
    async fn new(images: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let runtime = FakeRuntime::start(&dir.path().join("c.sock")).await.expect("it starts");
        for image in images {
            runtime.add_image(image);
        }
        Self { dir, runtime, events: Rc::default() }
    }

    async fn collector(&self, policy: Policy, disk: fn(&Path) -> Option<FileSystem>) -> Collector {
        let client = Client::connect(&self.runtime.endpoint(), Deadlines::default());
        let client = client.expect("a path");
        let limits = PullLimits { parallel: None, rate: Rate { per_second: 0.0, burst: 0 } };
        let events = Rc::clone(&self.events);
        let mut past = Past::new(self.dir.path());
        past.load().await;
        Collector {
            puller: Rc::new(Puller::new(client.clone(), limits, None)),
            client,
            holds: Holds::default(),
            metrics: Arc::new(Metrics::new("n")),
            node_events: Rc::new(move |event| events.borrow_mut().push(event)),
            policy,
            past,
            found: Vec::new(),
            looked_at: None,
            began: Instant::now(),
            failed_before: false,
            disk,
        }
    }

    async fn left(&self, of: &Collector) -> Vec<String> {
        let list = of.client.list_images(v1::ListImagesRequest::default()).await.expect("a list");
        list.images.into_iter().map(|image| image.id).collect()
    }
}

fn locally(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), test);
}

#[test]
fn a_full_disk_loses_its_unused_images_but_not_those_that_are_held() {
    locally(async {
        let scene = Scene::new(&["reg.example/a:1", "reg.example/b:1"]).await;
        let mut collector = scene.collector(POLICY, full).await;
        let ids = scene.left(&collector).await;
        assert_eq!(ids.len(), 2);
        let hold = collector.holds.hold(&ids[0]);
        for _ in 0..2 {
            let result = collector.turn().await;
            assert!(result.is_err(), "the disk stays full");
            collector.tell(result);
        }
        assert_eq!(scene.left(&collector).await, ids[..1], "the held one stays");
        let reasons: Vec<_> = scene.events.borrow().iter().map(|event| event.reason).collect();
        let expected = ["FreeDiskSpaceFailed", "FreeDiskSpaceFailed", "ImageGCFailed"];
        assert_eq!(reasons, expected, "the second failure in a row is told");
        drop(hold);
        let freed = collector.free_unused_images().await;
        assert_eq!((freed.images, freed.error), (1, None));
        assert_eq!(scene.left(&collector).await, Vec::<String>::new());
        let text = collector.metrics.scraped();
        assert!(
            text.contains("kubelet_image_garbage_collected_total{reason=\"space\"} 2"),
            "{text}"
        );
    });
}

#[test]
fn a_disk_with_room_costs_one_look_and_no_image() {
    locally(async {
        let scene = Scene::new(&["reg.example/a:1"]).await;
        let mut collector = scene.collector(POLICY, roomy).await;
        collector.turn().await.expect("room");
        scene.runtime.add_image("reg.example/b:1");
        collector.turn().await.expect("room");
        assert_eq!(collector.found.len(), 1, "nobody told of a change: the runtime is not asked");
        collector.holds.changed();
        collector.turn().await.expect("room");
        assert_eq!((collector.found.len(), scene.left(&collector).await.len()), (2, 2));
        assert!(scene.events.borrow().is_empty());
    });
}

#[test]
fn the_past_survives_a_restart_and_a_broken_file_costs_nothing_else() {
    locally(async {
        let scene = Scene::new(&["reg.example/a:1"]).await;
        let mut first = scene.collector(POLICY, roomy).await;
        first.turn().await.expect("room");
        let second = scene.collector(POLICY, roomy).await;
        assert_eq!(second.past.uses().0.len(), 1);
        assert_eq!(second.past.uses(), first.past.uses());
        std::fs::write(scene.dir.path().join("pintle/images.json"), "{").expect("written");
        let mut third = scene.collector(POLICY, roomy).await;
        assert!(third.past.uses().0.is_empty());
        third.turn().await.expect("room");
        assert_eq!(third.past.uses().0.len(), 1, "counted anew");
    });
}

#[test]
fn a_young_image_stays_whoever_asks() {
    locally(async {
        let scene = Scene::new(&["reg.example/a:1"]).await;
        let policy = Policy { min_age: Duration::from_secs(120), ..POLICY };
        let mut collector = scene.collector(policy, full).await;
        assert_eq!(collector.free_unused_images().await, Freed::default());
        assert_eq!(scene.left(&collector).await.len(), 1);
    });
}
