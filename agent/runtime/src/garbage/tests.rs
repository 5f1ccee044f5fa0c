//! A collector with a runtime in memory, on a disk of a size that the test sets.

use std::cell::RefCell;

use pintle_agent_config::image_policy::VerificationPolicy;
use pintle_agent_config::modes::ImageVerificationPolicy;
use pintle_agent_core::image::pull_record::{PulledImage, file_name};
use pintle_api_types::rate::Rate;
use pintle_cri::fake::FakeRuntime;
use pintle_cri::{Code, Deadlines, Method};
use tokio::task::LocalSet;

use super::*;
use crate::image::pull_records::PullRecords;
use crate::image::puller::PullLimits;

const POLICY: Policy =
    Policy { high_percent: 85, low_percent: 80, min_age: Duration::ZERO, max_age: Duration::ZERO };

fn full(_: &Path) -> Option<FileSystem> {
    Some(FileSystem { capacity_bytes: 1 << 40, available_bytes: 0, ..FileSystem::default() })
}

fn roomy(_: &Path) -> Option<FileSystem> {
    Some(FileSystem { capacity_bytes: 100, available_bytes: 100, ..FileSystem::default() })
}

struct GarbageScene {
    dir: tempfile::TempDir,
    runtime: FakeRuntime,
    events: Rc<RefCell<Vec<NodeEvent>>>,
}

impl GarbageScene {
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
        let mut past = ImageHistory::new(self.dir.path());
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
            steps: Steps::default(),
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
fn full_disk_frees_unused_images_but_not_held_images() {
    locally(async {
        let scene = GarbageScene::new(&["reg.example/a:1", "reg.example/b:1"]).await;
        let mut collector = scene.collector(POLICY, full).await;
        let ids = scene.left(&collector).await;
        assert_eq!(ids.len(), 2);
        let hold = collector.holds.hold(&ids[0]);
        for _ in 0..2 {
            let result = collector.turn().await;
            assert!(result.is_err(), "the disk stays full");
            collector.report_result(result);
        }
        assert_eq!(scene.left(&collector).await, ids[..1], "the held one stays");
        let reasons: Vec<_> = scene.events.borrow().iter().map(|event| event.reason).collect();
        let expected = ["FreeDiskSpaceFailed", "FreeDiskSpaceFailed", "ImageGCFailed"];
        assert_eq!(reasons, expected, "the second failure in a row is reported");
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
fn expired_images_are_removed_although_disk_usage_cannot_be_read() {
    locally(async {
        let scene = GarbageScene::new(&["reg.example/a:1"]).await;
        let policy = Policy { max_age: Duration::from_nanos(1), ..POLICY };
        let mut collector = scene.collector(policy, |_| None).await;
        let error = collector.turn().await.expect_err("people have to know");
        assert!(error.to_string().ends_with("cannot be read"), "{error}");
        assert_eq!(scene.left(&collector).await, Vec::<String>::new());
    });
}

#[test]
fn disk_with_room_removes_no_image_and_lists_images_only_after_a_change() {
    locally(async {
        let scene = GarbageScene::new(&["reg.example/a:1"]).await;
        let mut collector = scene.collector(POLICY, roomy).await;
        collector.turn().await.expect("room");
        scene.runtime.add_image("reg.example/b:1");
        collector.turn().await.expect("room");
        assert_eq!(collector.found.len(), 1, "images are not listed without a change");
        collector.holds.changed();
        collector.turn().await.expect("room");
        assert_eq!((collector.found.len(), scene.left(&collector).await.len()), (2, 2));
        assert!(scene.events.borrow().is_empty());
    });
}

#[test]
fn image_usage_history_survives_a_restart_and_a_corrupt_file_only_resets_it() {
    locally(async {
        let scene = GarbageScene::new(&["reg.example/a:1"]).await;
        let mut first = scene.collector(POLICY, roomy).await;
        first.turn().await.expect("room");
        let second = scene.collector(POLICY, roomy).await;
        assert_eq!(second.past.uses().0.len(), 1);
        assert_eq!(second.past.uses(), first.past.uses());
        std::fs::write(scene.dir.path().join("pintle/images.json"), "{").expect("written");
        let mut third = scene.collector(POLICY, roomy).await;
        assert!(third.past.uses().0.is_empty());
        third.turn().await.expect("room");
        assert_eq!(third.past.uses().0.len(), 1, "counted again");
    });
}

#[test]
fn disabled_collector_reports_no_failures_but_frees_images_on_request() {
    locally(async {
        let scene = GarbageScene::new(&["reg.example/a:1"]).await;
        let mut collector = scene.collector(Policy { high_percent: 100, ..POLICY }, full).await;
        let down = scene.runtime.on(Method::ListImages).fail(Code::Unavailable, "not now");
        for _ in 0..2 {
            let result = collector.turn().await;
            collector.report_result(result);
        }
        assert!(scene.events.borrow().is_empty(), "{:?}", scene.events.borrow());
        down.lift();
        let steps = collector.steps();
        assert_eq!(collector.free_unused_images().await.images, 1, "on request it does");
        assert_eq!(*steps.borrow(), 2, "the list and the removal");
    });
}

#[test]
fn collector_turn_counts_a_step_for_the_list_and_each_removal() {
    locally(async {
        let scene = GarbageScene::new(&["reg.example/a:1", "reg.example/b:1"]).await;
        let mut collector = scene.collector(POLICY, full).await;
        let steps = collector.steps();
        collector.turn().await.expect_err("the disk stays full");
        assert_eq!(*steps.borrow(), 3, "the list and both removals");
    });
}

#[test]
fn image_below_min_age_survives_a_request_to_free_unused_images() {
    locally(async {
        let scene = GarbageScene::new(&["reg.example/a:1"]).await;
        let policy = Policy { min_age: Duration::from_secs(120), ..POLICY };
        let mut collector = scene.collector(policy, full).await;
        assert_eq!(collector.free_unused_images().await, Freed::default());
        assert_eq!(scene.left(&collector).await.len(), 1);
    });
}

/// A collector with records of pulls, written by hand: image and when.
async fn with_records(scene: &GarbageScene, records: &[(&str, &str)]) -> Collector {
    let mut collector = scene.collector(POLICY, roomy).await;
    let policy = ImageVerificationPolicy::NeverVerifyPreloadedImages;
    let policy = VerificationPolicy::new(policy, &[]).expect("a policy");
    let (client, metrics) = (collector.client.clone(), Arc::clone(&collector.metrics));
    let opened = PullRecords::open(scene.dir.path(), policy, client.clone(), metrics);
    let limits = PullLimits { parallel: None, rate: Rate { per_second: 0.0, burst: 0 } };
    collector.puller = Rc::new(Puller::new(client, limits, Some(opened.expect("folders"))));
    for (image, at) in records {
        std::fs::write(record(scene, image), PulledImage::new(image, at).text()).expect("written");
    }
    collector
}

fn record(scene: &GarbageScene, image: &str) -> PathBuf {
    scene.dir.path().join("image_manager/pulled").join(file_name(image))
}

#[test]
fn pull_record_of_an_externally_removed_image_is_deleted() {
    locally(async {
        let scene = GarbageScene::new(&["reg.example/a:1"]).await;
        let there = {
            let of = scene.collector(POLICY, roomy).await;
            scene.left(&of).await.remove(0)
        };
        let (old, later) = ("2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z");
        let records = [(&*there, old), ("gone", old), ("pulled-since", later), ("held", old)];
        let mut collector = with_records(&scene, &records).await;
        let hold = collector.holds.hold("held");
        collector.turn().await.expect("room");
        let left = |image: &str| record(&scene, image).exists();
        assert!(left(&there) && !left("gone"), "only what is gone is forgotten");
        assert!(left("pulled-since"), "the list is older than the image");
        assert!(left("held"), "a pod is about to use it");
        drop(hold);
        collector.holds.changed();
        collector.turn().await.expect("room");
        assert!(!left("held"));
    });
}

#[test]
fn record_of_a_pull_that_raced_with_an_image_removal_is_kept() {
    locally(async {
        let scene = GarbageScene::new(&["reg.example/a:1", "reg.example/b:1"]).await;
        let of = scene.collector(POLICY, roomy).await;
        let ids = scene.left(&of).await;
        let records = [(&*ids[0], "2020-01-01T00:00:00Z"), (&*ids[1], "2999-01-01T00:00:00Z")];
        let mut collector = with_records(&scene, &records).await;
        assert_eq!(collector.free_unused_images().await.images, 2);
        let left = |image: &str| record(&scene, image).exists();
        assert!(!left(&ids[0]), "of the image that was removed");
        assert!(left(&ids[1]), "without a record any pod may use the image");
    });
}

#[test]
fn report_gives_a_verdict_for_each_image_and_removes_none() {
    locally(async {
        let scene = GarbageScene::new(&["reg.example/a:1", "reg.example/b:1"]).await;
        let mut collector = scene.collector(POLICY, full).await;
        let report = collector.report().await;
        assert_eq!(report.used_percent, Some(100));
        let shown: Vec<_> = report.images.iter().map(|(name, j)| (&**name, j.verdict)).collect();
        let mut sorted = shown.clone();
        sorted.sort_unstable();
        assert_eq!(
            sorted,
            [("reg.example/a:1", ImageVerdict::Spare), ("reg.example/b:1", ImageVerdict::Spare)]
        );
        assert_eq!(scene.left(&collector).await.len(), 2, "nothing is removed for it");
    });
}
