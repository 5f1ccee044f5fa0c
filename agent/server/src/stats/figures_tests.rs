//! Figures of volumes: of their file systems, of their drivers, and while a driver hangs.

use std::sync::atomic::{AtomicUsize, Ordering};

use pintle_agent_core::types::PodUid;
use pintle_agent_plugins::csi::VolumeHealth;
use serde_json::{Value, json};

use super::super::claimed::tests::world;
use super::super::volumes::PvcRef;
use super::*;

/// Longer than any test takes.
const PERIOD: Duration = Duration::from_secs(3600);

/// Drivers under a test's control: by their names they hang, fail, or say how a volume is.
#[derive(Default)]
struct FakeDrivers {
    calls: AtomicUsize,
}

impl FakeDrivers {
    fn asked(self: &Arc<Self>) -> AskDriver {
        let this = Arc::clone(self);
        Arc::new(move |question| {
            let this = Arc::clone(&this);
            Box::pin(async move {
                this.calls.fetch_add(1, Ordering::Relaxed);
                let health = |is_abnormal| {
                    Some(VolumeHealth {
                        is_abnormal,
                        message: format!("{} is told", question.handle),
                    })
                };
                let health = match question.driver.as_str() {
                    "hangs" => std::future::pending().await,
                    "fails" => return Err(NoFigures::NoUsage),
                    "sick" => health(true),
                    "well" => health(false),
                    _ => None,
                };
                let usage = FileUsage { bytes: 7, inodes: 1 };
                let fs = FileSystem { capacity_bytes: 9, ..FileSystem::default() };
                Ok(DriverFigures { usage, fs, health })
            })
        })
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

fn figures(claims: ClaimViews, drivers: &Arc<FakeDrivers>) -> VolumeFigures {
    let (recorder, metrics) = (Recorder::default(), Arc::new(Metrics::new("n")));
    VolumeFigures::new(claims, PERIOD, drivers.asked(), recorder, metrics)
}

fn of_driver(driver: &str) -> Value {
    json!({"csi": {"driver": driver, "volumeHandle": format!("h-{driver}")}})
}

async fn read(figures: &VolumeFigures, snapshot: &Snapshot, root: &Path) -> Vec<CountedVolume> {
    let volumes = figures.add_to(Arc::default(), snapshot, root).await;
    volumes.get(&PodUid::from("u")).cloned().unwrap_or_default()
}

fn names(of_pod: &[CountedVolume]) -> Vec<&str> {
    of_pod.iter().map(|volume| volume.name.as_str()).collect()
}

#[tokio::test]
async fn figures_of_a_local_claim_are_those_of_its_file_system_and_name_the_claim() {
    let root = tempfile::tempdir().expect("a folder");
    let share = json!([{"name": "share", "nfs": {"server": "s", "path": "/e"}}]);
    let (snapshot, claims) = world(&share, &[("disk", json!({"local": {"path": "/x"}}))]);
    let folder = root.path().join("pods/u/volumes/kubernetes.io~local-volume/pv-disk");
    std::fs::create_dir_all(&folder).expect("made");
    let figures = figures(claims, &Arc::default());
    let of_pod = read(&figures, &snapshot, root.path()).await;
    assert_eq!(names(&of_pod), ["disk"], "what is not mounted has no figures");
    let fs = file_system(root.path()).expect("there");
    assert_eq!(of_pod[0].fs.capacity_bytes, fs.capacity_bytes);
    assert!(of_pod[0].usage.bytes <= fs.capacity_bytes && of_pod[0].usage.bytes > 0);
    let claim = PvcRef { name: "claim-disk".to_owned(), namespace: "ns".to_owned() };
    assert_eq!(of_pod[0].claim, Some(claim));
    std::fs::remove_dir(&folder).expect("removed");
    let again = read(&figures, &snapshot, root.path()).await;
    assert_eq!(again, of_pod, "within a period nothing is read");
}

#[tokio::test]
async fn figures_of_a_device_are_its_size_alone() {
    let root = tempfile::tempdir().expect("a folder");
    let raw = json!({"local": {"path": "/dev/x"}, "volumeMode": "Block"});
    let (snapshot, claims) = world(&json!([]), &[("raw", raw)]);
    let map = root.path().join("plugins/kubernetes.io~local-volume/volumeDevices/pv-raw");
    std::fs::create_dir_all(&map).expect("made");
    std::fs::write(map.join("u"), [0; 4096]).expect("written");
    let of_pod = read(&figures(claims, &Arc::default()), &snapshot, root.path()).await;
    assert_eq!(names(&of_pod), ["raw"]);
    let capacity_bytes = 4096;
    let fs = FileSystem { capacity_bytes, free_bytes: capacity_bytes, ..FileSystem::default() };
    assert_eq!((of_pod[0].fs, of_pod[0].usage), (fs, FileUsage::default()));
}

#[tokio::test]
async fn driver_is_queried_once_a_period_and_a_failing_driver_has_no_figures() {
    let bound = [("a", of_driver("good")), ("b", of_driver("fails"))];
    let (snapshot, claims) = world(&json!([]), &bound);
    let drivers = Arc::<FakeDrivers>::default();
    let figures = figures(claims, &drivers);
    for _ in 0..2 {
        let of_pod = read(&figures, &snapshot, Path::new("/r")).await;
        assert_eq!(names(&of_pod), ["a"]);
        assert_eq!((of_pod[0].usage.bytes, of_pod[0].is_abnormal), (7, None));
        assert_eq!(drivers.calls(), 2);
    }
}

#[tokio::test]
async fn abnormal_volume_is_an_event_of_its_pod_with_the_message_of_the_driver() {
    let bound = [("a", of_driver("sick")), ("b", of_driver("well"))];
    let (snapshot, claims) = world(&json!([]), &bound);
    let figures = figures(claims, &Arc::default());
    let of_pod = read(&figures, &snapshot, Path::new("/r")).await;
    let health: Vec<_> = of_pod.iter().map(|volume| volume.is_abnormal).collect();
    assert_eq!(health, [Some(true), Some(false)]);
    let entries = figures.recorder.entries(&"u".into());
    let texts: Vec<_> = entries.iter().map(|entry| (&*entry.what, &*entry.text)).collect();
    assert_eq!(texts, [("VolumeConditionAbnormal", "Volume a: h-sick is told")]);
}

#[tokio::test]
async fn hung_driver_uses_only_its_share_of_calls_and_delays_no_other_driver() {
    let names_of_hanging: Vec<String> = (0..2 * CALLS_MAX).map(|at| format!("z{at:02}")).collect();
    let mut bound = vec![("a", of_driver("good"))];
    bound.extend(names_of_hanging.iter().map(|name| (name.as_str(), of_driver("hangs"))));
    let (snapshot, claims) = world(&json!([]), &bound);
    let drivers = Arc::<FakeDrivers>::default();
    let figures = figures(claims, &drivers);
    for _ in 0..2 {
        // The hanging calls never end: that this does is what is tested.
        let of_pod = read(&figures, &snapshot, Path::new("/r")).await;
        assert_eq!(names(&of_pod), ["a"]);
        assert_eq!(drivers.calls(), 1 + CALLS_MAX, "no driver is called twice");
    }
    let (snapshot, _) = world(&json!([]), &[]);
    let empty = Snapshot { pods: Default::default(), ..snapshot };
    assert_eq!(read(&figures, &empty, Path::new("/r")).await, []);
    assert!(figures.lock().last.is_empty(), "what is gone is forgotten");
}
