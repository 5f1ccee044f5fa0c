//! Images of a runtime in memory with a registry that needs a password: access to present images.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_cluster::objects::KeyringError;
use pintle_agent_cluster::objects::Objects;
use pintle_agent_config::image_policy::VerificationPolicy;
use pintle_agent_config::modes::ImageVerificationPolicy;
use pintle_agent_core::image::keyring::Keyring;
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::PodUid;
use pintle_agent_metrics::Metrics;
use pintle_api_types::rate::Rate;
use pintle_cri::fake::{FakeRuntime, Lift};
use pintle_cri::{Client, Code, Deadlines, Method, v1};
use serde_json::{Value, json};

use super::{BACK_OFF_OTHER_KEYS, ImageRequest, Images, NodeKeys};
use crate::image::credentials::NodeCredentials;
use crate::image::provider::{Providers, Settings};
use crate::image::pull_queue::PullQueue;
use crate::image::pull_records::PullRecords;
use crate::image::puller::{Pull, PullLimits, Puller};

const IMAGE: &str = "reg.example/team/app:1";

struct Scene {
    dir: tempfile::TempDir,
    runtime: FakeRuntime,
    metrics: Arc<Metrics>,
}

type KeyringResult = Result<Keyring, KeyringError>;

impl Scene {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let runtime = FakeRuntime::start(&dir.path().join("c.sock")).await.expect("it starts");
        runtime.set_image_password(IMAGE, "good");
        Self { dir, runtime, metrics: Arc::new(Metrics::new("n")) }
    }

    /// The images of an agent that has just started.
    fn images(&self, policy: Option<ImageVerificationPolicy>) -> Images {
        let client = Client::connect(&self.runtime.endpoint(), Deadlines::default());
        let client = client.expect("a path");
        let metrics = Arc::clone(&self.metrics);
        let records = policy.map(|policy| {
            let policy = VerificationPolicy::new(policy, &[]).expect("a policy");
            PullRecords::open(self.dir.path(), policy, client.clone(), Arc::clone(&metrics))
                .expect("folders")
        });
        let limits = PullLimits { parallel: None, rate: Rate { per_second: 0.0, burst: 0 } };
        let accounts = Box::new(Objects::none());
        let keys = NodeKeys {
            files: NodeCredentials::new(self.dir.path()),
            providers: Providers::new(&Settings::default(), accounts, &metrics),
        };
        let puller = Puller::new(client.clone(), limits, records);
        Images::new(client, Recorder::default(), keys, puller, metrics)
    }

    /// A puller of one image at a time, and its queue.
    fn puller(&self, rate: Rate) -> (Rc<Puller>, PullQueue) {
        let client = Client::connect(&self.runtime.endpoint(), Deadlines::default());
        let (client, queue) = (client.expect("a path"), PullQueue::default());
        let puller = Puller::new(client, PullLimits { parallel: Some(1), rate }, None);
        (Rc::new(puller.queued_in(queue.clone())), queue)
    }

    fn files(&self, folder: &str) -> Vec<PathBuf> {
        let dir = self.dir.path().join("image_manager").join(folder);
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    /// The only record's part for the image.
    fn known(&self) -> Value {
        let files = self.files("pulled");
        let [file] = files.as_slice() else { panic!("{files:?}") };
        let mut record: Value = json_file(file);
        record["credentialMapping"]["reg.example/team/app"].take()
    }

    fn pulls(&self) -> usize {
        self.runtime.calls_of(Method::PullImage, "").len()
    }

    fn metric(&self, line: &str) -> bool {
        self.metrics.scraped().lines().any(|told| told == line)
    }

    /// Begins a pull and disconnects while it hangs.
    async fn leave_a_pull(&self, images: &Images, keyring: &KeyringResult) -> Lift {
        let hang = self.runtime.on(Method::PullImage).hang_after();
        tokio::select! {
            done = ensure(images, "IfNotPresent", keyring) => panic!("{done:?}"),
            _ = self.runtime.called(Method::PullImage, "", 1) => {}
        }
        hang
    }
}

fn json_file(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
}

fn run(test: impl AsyncFnOnce(Scene)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    tokio::task::LocalSet::new()
        .block_on(&runtime.expect("a runtime"), async { test(Scene::new().await).await });
}

/// A pull secret of a pod.
fn keyring(name: &str, password: &str) -> KeyringResult {
    let config = json!({"auths": {"reg.example": {"username": "u", "password": password}}});
    let data = serde_json::to_vec(&config).expect("JSON");
    let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(json!({
        "metadata": {"namespace": "ns", "name": name, "uid": format!("uid of {name}")},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": k8s_openapi::ByteString(data)},
    }))
    .expect("a secret");
    let mut keyring = Keyring::default();
    keyring.add_secret(&secret).expect("read");
    Ok(keyring)
}

fn uid_of(policy: &str, keyring: &KeyringResult) -> PodUid {
    PodUid::from(format!("{policy}-{keyring:?}").as_str())
}

async fn ensure(images: &Images, policy: &str, keyring: &KeyringResult) -> Result<(), String> {
    let (uid, pod) = (uid_of(policy, keyring), Pod::default());
    let sandbox = v1::PodSandboxConfig::default();
    let (sandbox, pod) = (&sandbox, &pod);
    let wanted =
        ImageRequest { uid: &uid, pod, container: None, image: IMAGE, policy, sandbox, keyring };
    images.ensure(&wanted).await.map(drop).map_err(|failure| failure.reason)
}

fn nobody() -> KeyringResult {
    Ok(Keyring::default())
}

const PRELOADED: Option<ImageVerificationPolicy> =
    Some(ImageVerificationPolicy::NeverVerifyPreloadedImages);

#[test]
fn image_pulled_with_a_secret_is_used_only_by_pods_with_equal_credentials() {
    run(async |scene| {
        let images = scene.images(PRELOADED);
        assert_eq!(ensure(&images, "IfNotPresent", &keyring("one", "good")).await, Ok(()));
        assert!(scene.files("pulling").is_empty());
        assert_eq!(scene.known()["kubernetesSecrets"][0]["uid"], "uid of one");
        let pulls = scene.pulls();
        assert_eq!(ensure(&images, "Never", &nobody()).await, Err("ErrImageNeverPull".into()));
        assert_eq!(scene.pulls(), pulls);
        // The registry receives the request, and refuses.
        assert_eq!(ensure(&images, "IfNotPresent", &nobody()).await, Err("ErrImagePull".into()));
        let wrong = keyring("wrong", "bad");
        assert_eq!(ensure(&images, "IfNotPresent", &wrong).await, Err("ErrImagePull".into()));
        assert_eq!(scene.pulls(), pulls + 2);
        // The same object, and another one with equal content.
        for name in ["one", "two", "two"] {
            assert_eq!(ensure(&images, "Never", &keyring(name, "good")).await, Ok(()));
        }
        assert_eq!(scene.pulls(), pulls + 2);
        assert_eq!(scene.known()["kubernetesSecrets"].as_array().map(Vec::len), Some(2));
        let broken = Err(KeyringError::new("a secret that is none"));
        assert_eq!(ensure(&images, "Never", &broken).await, Err("ErrImagePull".into()));
        // All of it holds after a restart of the agent.
        let images = scene.images(PRELOADED);
        assert_eq!(ensure(&images, "Never", &nobody()).await, Err("ErrImageNeverPull".into()));
        assert_eq!(ensure(&images, "Never", &keyring("two", "good")).await, Ok(()));
        for line in [
            "kubelet_imagemanager_ondisk_pulledrecords 1",
            "kubelet_imagemanager_ondisk_pullintents 0",
            "kubelet_imagemanager_image_mustpull_checks_total{result=\"credentialRecordFound\"} 4",
            "kubelet_imagemanager_image_mustpull_checks_total{result=\"mustAuthenticate\"} 4",
            "kubelet_imagemanager_image_mustpull_checks_total{result=\"error\"} 1",
            "kubelet_image_manager_ensure_image_requests_total{pull_policy=\"ifnotpresent\",\
             present_locally=\"false\",pull_required=\"true\"} 1",
            "kubelet_image_manager_ensure_image_requests_total{pull_policy=\"ifnotpresent\",\
             present_locally=\"true\",pull_required=\"true\"} 2",
            "kubelet_image_manager_ensure_image_requests_total{pull_policy=\"never\",\
             present_locally=\"true\",pull_required=\"unknown\"} 1",
        ] {
            assert!(scene.metric(line), "{line}");
        }
    });
}

#[test]
fn unreadable_credentials_fail_the_pull_without_a_request_or_backoff() {
    run(async |scene| {
        let images = scene.images(PRELOADED);
        let (uid, pod) = (PodUid::from("u"), Pod::default());
        let sandbox = v1::PodSandboxConfig::default();
        let pull = async |keyring: &KeyringResult| {
            let (uid, pod, sandbox) = (&uid, &pod, &sandbox);
            let (container, policy) = (None, "Always");
            let wanted =
                ImageRequest { uid, pod, container, image: IMAGE, policy, sandbox, keyring };
            images.ensure(&wanted).await.map(drop)
        };
        let told = || {
            let entries = images.recorder.entries(&uid).into_iter();
            entries.map(|entry| entry.what).collect::<Vec<_>>()
        };
        for _ in 0..2 {
            let refused =
                pull(&Err(KeyringError::new("a secret that is none"))).await.expect_err("refused");
            assert_eq!(
                (&*refused.reason, &*refused.message),
                ("ErrImagePull", "a secret that is none")
            );
            assert_eq!(refused.retry_after, None);
        }
        assert_eq!((scene.pulls(), told()), (0, Vec::new()));
        assert_eq!(pull(&keyring("one", "good")).await, Ok(()));
        assert_eq!((scene.pulls(), told()), (1, vec!["Pulling".to_owned(), "Pulled".to_owned()]));
    });
}

#[test]
fn another_pull_secret_ends_the_wait_after_a_failed_pull() {
    run(async |scene| {
        let images = scene.images(None);
        let (bad, good) = (keyring("one", "bad"), keyring("one", "good"));
        let backs_off = Err("ImagePullBackOff".to_owned());
        assert_eq!(ensure(&images, "Always", &bad).await, Err("ErrImagePull".into()));
        assert_eq!(ensure(&images, "Always", &bad).await, backs_off);
        while ensure(&images, "Always", &good).await != Ok(()) {
            assert_eq!(scene.pulls(), 1);
            tokio::time::sleep(BACK_OFF_OTHER_KEYS / 10).await;
        }
        assert_eq!(scene.pulls(), 2);
        // Its own wait is far from over.
        assert_eq!(ensure(&images, "Always", &bad).await, backs_off);
    });
}

#[test]
fn retry_request_skips_one_pull_backoff_and_the_next_backoff_is_longer() {
    run(async |scene| {
        let images = scene.images(None);
        let bad = keyring("one", "bad");
        let wait = || {
            let table = images.back_off.borrow();
            table.values().map(|entry| entry.wait.as_secs()).collect::<Vec<_>>()
        };
        assert_eq!(ensure(&images, "Always", &bad).await, Err("ErrImagePull".into()));
        images.retry(&"another".into());
        assert_eq!(ensure(&images, "Always", &bad).await, Err("ImagePullBackOff".into()));
        assert_eq!((scene.pulls(), wait()), (1, vec![10]));
        images.retry(&uid_of("Always", &bad));
        assert_eq!(ensure(&images, "Always", &bad).await, Err("ErrImagePull".into()));
        assert_eq!((scene.pulls(), wait()), (2, vec![20]));
        assert_eq!(ensure(&images, "Always", &bad).await, Err("ImagePullBackOff".into()));
        assert_eq!(scene.pulls(), 2);
    });
}

fn anonymous(image: &str) -> Pull {
    Pull {
        name: image.to_owned(),
        image: image.to_owned(),
        sandbox: v1::PodSandboxConfig::default(),
        credentials: Vec::new(),
    }
}

#[test]
fn waiting_pulls_are_listed_in_the_queue_until_they_start() {
    run(async |scene| {
        let (puller, queue) = scene.puller(Rate { per_second: 0.0, burst: 0 });
        let waiting = || queue.waiting().into_iter().map(|(image, _)| image).collect::<Vec<_>>();
        let begin = |image: &'static str| {
            let puller = Rc::clone(&puller);
            pintle_daemon::tasks::spawn("pull", async move {
                puller.pull(anonymous(image)).await.map(drop)
            })
        };
        let hang = scene.runtime.on(Method::PullImage).hang_after();
        let first = begin("a");
        scene.runtime.called(Method::PullImage, "", 1).await;
        assert!(waiting().is_empty(), "the runtime has been asked");
        let others = [begin("b"), begin("c")];
        while waiting().len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(waiting(), ["b", "c"]);
        hang.lift();
        for task in [first].into_iter().chain(others) {
            assert_eq!(task.await.expect("it ends"), Ok(()));
        }
        assert!(waiting().is_empty());
    });
}

#[test]
fn queued_pull_consumes_the_pull_rate_limit_only_when_it_starts() {
    run(async |scene| {
        // Two may start; the third is one too many for days.
        let rate = Rate { per_second: 1e-6, burst: 2 };
        let (puller, _) = scene.puller(rate);
        let ends = Rc::new(RefCell::new(Vec::new()));
        let begin = |name: &'static str| {
            let (puller, ends) = (Rc::clone(&puller), Rc::clone(&ends));
            pintle_daemon::tasks::spawn("pull", async move {
                let ended = puller.pull(anonymous(name)).await.map(|pulled| pulled.id);
                ends.borrow_mut().push((name, ended.err()));
            })
        };
        let hang = scene.runtime.on(Method::PullImage).hang_after();
        let first = begin("a");
        scene.runtime.called(Method::PullImage, "", 1).await;
        let others = [begin("b"), begin("c")];
        tokio::task::yield_now().await;
        hang.lift();
        for task in [first].into_iter().chain(others) {
            task.await.expect("it ends");
        }
        let exceeded = Some("pull QPS exceeded".to_owned());
        assert_eq!(ends.take(), [("a", None), ("b", None), ("c", exceeded)]);
    });
}

#[test]
fn image_without_a_pull_record_is_for_all_pods_unless_the_policy_verifies_it() {
    run(async |scene| {
        scene.runtime.add_image(IMAGE);
        let table = [
            (None, Ok(())),
            (PRELOADED, Ok(())),
            (Some(ImageVerificationPolicy::NeverVerify), Ok(())),
            (Some(ImageVerificationPolicy::AlwaysVerify), Err("ErrImageNeverPull".to_owned())),
            (
                Some(ImageVerificationPolicy::NeverVerifyAllowlistedImages),
                Err("ErrImageNeverPull".to_owned()),
            ),
        ];
        for (policy, want) in table {
            let images = scene.images(policy);
            assert_eq!(ensure(&images, "Never", &nobody()).await, want, "{policy:?}");
        }
        // Pulled with a password, but by an agent that keeps no records or never looks.
        let good = keyring("one", "good");
        for policy in [None, Some(ImageVerificationPolicy::NeverVerify)] {
            let images = scene.images(policy);
            assert_eq!(ensure(&images, "Always", &good).await, Ok(()));
            assert_eq!(ensure(&images, "Never", &nobody()).await, Ok(()));
        }
    });
}

#[test]
fn a_pull_without_credentials_or_with_the_nodes_is_for_all() {
    run(async |scene| {
        let config = json!({"auths": {"reg.example": {"username": "u", "password": "good"}}});
        std::fs::write(scene.dir.path().join("config.json"), config.to_string()).expect("written");
        let images = scene.images(PRELOADED);
        assert_eq!(ensure(&images, "IfNotPresent", &nobody()).await, Ok(()));
        assert_eq!(scene.known(), json!({"nodePodsAccessible": true}));
        let strict = scene.images(Some(ImageVerificationPolicy::AlwaysVerify));
        assert_eq!(ensure(&strict, "Never", &nobody()).await, Ok(()));
    });
}

#[test]
fn pull_abandoned_by_its_pod_is_still_recorded() {
    run(async |scene| {
        let images = scene.images(PRELOADED);
        let good = keyring("one", "good");
        let hang = scene.leave_a_pull(&images, &good).await;
        let intents = scene.files("pulling");
        assert_eq!(json_file(&intents[0])["image"], IMAGE);
        hang.lift();
        let written = async {
            while scene.files("pulled").is_empty() || !scene.files("pulling").is_empty() {
                tokio::task::yield_now().await;
            }
        };
        let written = tokio::time::timeout(std::time::Duration::from_secs(30), written).await;
        assert!(written.is_ok(), "{:?} {:?}", scene.files("pulling"), scene.files("pulled"));
        assert_eq!(scene.known()["kubernetesSecrets"][0]["name"], "one");
    });
}

#[test]
fn image_of_a_pull_interrupted_by_a_crash_requires_credentials() {
    run(async |scene| {
        let images = scene.images(PRELOADED);
        let good = keyring("one", "good");
        let hang = scene.leave_a_pull(&images, &good).await;
        let left: Vec<_> = scene.files("pulling");
        let left: Vec<_> = left.iter().map(|path| (path, std::fs::read(path).ok())).collect();
        // The runtime has the image, and the agent that requested it is no more.
        scene.runtime.add_image(IMAGE);
        hang.lift();
        drop(images);
        let fresh = Scene {
            dir: tempfile::tempdir().expect("a folder"),
            runtime: scene.runtime,
            metrics: scene.metrics,
        };
        let pulling = fresh.dir.path().join("image_manager/pulling");
        std::fs::create_dir_all(&pulling).expect("made");
        for (path, text) in left {
            let name = path.file_name().expect("a name");
            std::fs::write(pulling.join(name), text.expect("a file")).expect("written");
        }
        let images = fresh.images(PRELOADED);
        assert_eq!(ensure(&images, "Never", &nobody()).await, Err("ErrImageNeverPull".into()));
        assert!(fresh.files("pulling").is_empty());
        assert_eq!(fresh.known(), Value::Null);
        assert_eq!(ensure(&images, "IfNotPresent", &good).await, Ok(()));
        assert_eq!(fresh.known()["kubernetesSecrets"][0]["name"], "one");
    });
}

#[test]
fn unreadable_pull_record_forces_a_registry_check_that_rewrites_the_record() {
    run(async |scene| {
        let images = scene.images(PRELOADED);
        let good = keyring("one", "good");
        assert_eq!(ensure(&images, "IfNotPresent", &good).await, Ok(()));
        std::fs::write(&scene.files("pulled")[0], "{").expect("written");
        assert_eq!(ensure(&images, "Never", &good).await, Err("ErrImageNeverPull".into()));
        assert_eq!(ensure(&images, "IfNotPresent", &good).await, Ok(()));
        assert_eq!(scene.known()["kubernetesSecrets"][0]["name"], "one");
    });
}

#[test]
fn failed_image_inspection_is_reported_with_the_runtimes_error() {
    run(async |scene| {
        let images = scene.images(None);
        let refuses = scene.runtime.on(Method::ImageStatus);
        let _lift = refuses.fail(Code::Unavailable, "away");
        let (uid, pod, keyring) = (PodUid::from("u"), Pod::default(), nobody());
        let sandbox = v1::PodSandboxConfig::default();
        let (sandbox, pod, keyring, policy) = (&sandbox, &pod, &keyring, "IfNotPresent");
        let wanted = ImageRequest {
            uid: &uid,
            pod,
            container: None,
            image: IMAGE,
            policy,
            sandbox,
            keyring,
        };
        let failure = images.ensure(&wanted).await.expect_err("it is refused");
        let why = "Failed to inspect image \"\": rpc error: code = Unavailable desc = away";
        assert_eq!((&*failure.reason, &*failure.message), ("ImageInspectError", why));
    });
}
