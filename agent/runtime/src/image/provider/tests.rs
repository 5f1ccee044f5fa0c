//! Plugins that are shell scripts: configuration, requests, answers, caching.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use k8s_openapi::api::core::v1::Pod;
use pintle_agent_cluster::objects::{AccountError, Accounts, ServiceAccountFields};
use pintle_agent_core::image::pull_credential::CredentialSource;
use pintle_agent_metrics::Metrics;
use serde_json::{Value, json};

use super::config::SettingsError;
use super::{Providers, Settings, read};

const V1: &str = "credentialprovider.kubelet.k8s.io/v1";
const IMAGE: &str = "reg.example/team/app:1";

/// A folder with programs and configuration.
struct ProviderFolder {
    dir: tempfile::TempDir,
    metrics: Arc<Metrics>,
}

/// Accounts with a token that changes with each `issue`.
#[derive(Clone, Default)]
struct FakeAccounts(Rc<RefCell<(u32, Option<String>)>>);

impl Accounts for FakeAccounts {
    fn account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> LocalBoxFuture<'a, Result<ServiceAccountFields, AccountError>> {
        async move {
            if let Some(error) = &self.0.borrow().1 {
                return Err(AccountError::Read(error.clone()));
            }
            let annotations = [("here", "yes"), ("also", "so")];
            let annotations = annotations.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
            Ok(ServiceAccountFields { uid: format!("uid of {namespace}/{name}"), annotations })
        }
        .boxed_local()
    }

    fn token<'a>(
        &'a self,
        pod: &'a Pod,
        audience: &'a str,
        account_uid: &'a str,
    ) -> LocalBoxFuture<'a, Result<Rc<str>, AccountError>> {
        let name = pintle_api_types::pod::name(pod);
        let text = format!("{audience}|{account_uid}|{name}|{}", self.0.borrow().0);
        async move { Ok(text.into()) }.boxed_local()
    }
}

impl ProviderFolder {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        fs::create_dir(dir.path().join("bin")).expect("made");
        Self { dir, metrics: Arc::new(Metrics::new("n")) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program that keeps its request in `NAME.N` and prints the output of `says`.
    fn program(&self, name: &str, says: &str) {
        let path = self.path("bin").join(name);
        let dir = self.dir.path().display();
        let script = format!(
            "#!/bin/sh\nn=$(ls {dir} | grep -c '^{name}[.]'); cat > {dir}/{name}.$n\n{says}\n"
        );
        // A script that is run while another test forks with its file open for writing is busy.
        let fresh = path.with_extension("new");
        fs::write(&fresh, script).expect("written");
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).expect("executable");
        fs::rename(&fresh, &path).expect("renamed");
    }

    fn answering(&self, name: &str, rest: &Value) {
        let mut answer = json!({"kind": "CredentialProviderResponse", "apiVersion": V1,
            "cacheKeyType": "Image", "cacheDuration": "1h"});
        for (key, value) in rest.as_object().expect("an object") {
            answer[key] = value.clone();
        }
        self.program(name, &format!("cat <<'END'\n{answer}\nEND"));
    }

    /// Requests that a program was sent.
    fn asked(&self, name: &str) -> Vec<Value> {
        let at = |n: usize| self.path(&format!("{name}.{n}"));
        let texts = (0..).map_while(|n| fs::read(at(n)).ok());
        texts.map(|text| serde_json::from_slice(&text).expect("JSON")).collect()
    }

    fn read(&self, config: &Path) -> Result<Settings, SettingsError> {
        read(config, &self.path("bin"), true)
    }

    fn providers(&self, all: &Value, accounts: &FakeAccounts) -> Providers {
        fs::write(self.path("config.json"), config(all)).expect("written");
        let settings = self.read(&self.path("config.json")).expect("settings");
        Providers::new(&settings, Box::new(accounts.clone()), &self.metrics)
    }
}

fn config(providers: &Value) -> String {
    let mut all = providers.clone();
    for provider in all.as_array_mut().expect("a list") {
        let rest = provider.clone();
        *provider = json!({"matchImages": ["*.example"], "defaultCacheDuration": "0s",
            "apiVersion": V1});
        for (key, value) in rest.as_object().expect("an object") {
            provider[key] = value.clone();
        }
    }
    let version = "kubelet.config.k8s.io/v1";
    json!({"kind": "CredentialProviderConfig", "apiVersion": version, "providers": all}).to_string()
}

fn pod(name: &str, account: &str) -> Pod {
    let spec = json!({"containers": [], "serviceAccountName": account});
    let meta = json!({"name": name, "namespace": "ns", "uid": name});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a pod")
}

fn run(test: impl AsyncFnOnce(ProviderFolder)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    tokio::task::LocalSet::new()
        .block_on(&runtime.expect("a runtime"), async { test(ProviderFolder::new()).await });
}

/// Users to try, in order.
async fn users(providers: &Providers, image: &str, pod: &Pod) -> Vec<String> {
    let found = providers.keyring(image, pod).await.of(image);
    found.into_iter().map(|credential| credential.auth.username).collect()
}

fn login(user: &str) -> Value {
    json!({"username": user, "password": format!("of {user}")})
}

#[test]
fn plugin_runs_only_for_matching_images_and_most_specific_credentials_come_first() {
    run(async |scene| {
        scene.answering("one", &json!({"auth": {"reg.example": login("a")}}));
        let auth = json!({"reg.example": login("b"), "reg.example/team": login("c")});
        scene.answering("two", &json!({"auth": auth}));
        let all = json!([{"name": "one", "args": ["x"]}, {"name": "two"},
            {"name": "one", "matchImages": ["other.example"]}]);
        let all = &json!([all[0], all[1]]);
        let providers = scene.providers(all, &FakeAccounts::default());
        let pod = pod("p", "");
        assert_eq!(users(&providers, IMAGE, &pod).await, ["c", "a", "b"]);
        let want = json!({"kind": "CredentialProviderRequest", "apiVersion": V1,
            "image": "reg.example/team/app"});
        assert_eq!(scene.asked("one"), [want]);
        assert!(users(&providers, "other.test/a", &pod).await.is_empty());
        assert_eq!(scene.asked("one").len(), 1);
        assert!(
            scene
                .metrics
                .scraped()
                .contains("kubelet_credential_provider_config_info{hash=\"sha256:")
        );
    });
}

#[test]
fn response_is_cached_for_its_own_duration_or_else_the_configured_default() {
    run(async |scene| {
        for (name, lasts, default, asked) in [
            ("says", json!("1h"), "0s", 1),
            ("none", json!("0s"), "1h", 2),
            ("default", Value::Null, "1h", 1),
            ("neither", Value::Null, "0s", 2),
        ] {
            let answer = json!({"cacheDuration": lasts, "auth": {"reg.example": login("a")}});
            scene.answering(name, &answer);
            let all = json!([{"name": name, "defaultCacheDuration": default}]);
            let providers = scene.providers(&all, &FakeAccounts::default());
            for _ in 0..2 {
                assert_eq!(users(&providers, IMAGE, &pod("p", "")).await, ["a"]);
            }
            assert_eq!(scene.asked(name).len(), asked, "{name}");
        }
        // One run for all simultaneous requests.
        scene.answering("at-once", &json!({"auth": {"reg.example": login("a")}}));
        let providers = scene.providers(&json!([{"name": "at-once"}]), &FakeAccounts::default());
        let (p, q) = (pod("p", ""), pod("q", ""));
        let both = tokio::join!(users(&providers, IMAGE, &p), users(&providers, IMAGE, &q));
        assert_eq!(both, (vec!["a".to_owned()], vec!["a".to_owned()]));
        assert_eq!(scene.asked("at-once").len(), 1);
    });
}

#[test]
fn plugin_gets_its_configured_arguments_and_env_plus_the_agents_environment() {
    run(async |scene| {
        let answer = json!({"kind": "CredentialProviderResponse", "apiVersion": V1,
            "cacheKeyType": "Global", "auth": {"reg.example": {"username": "USER"}}});
        let text = format!("echo '{answer}' | sed \"s|USER|$1-$2-$SAID-${{PATH:+path}}|\"");
        scene.program("shows", &text);
        let all = json!([{"name": "shows", "args": ["a", "b"],
            "env": [{"name": "SAID", "value": "c"}]}]);
        let providers = scene.providers(&all, &FakeAccounts::default());
        assert_eq!(users(&providers, IMAGE, &pod("p", "")).await, ["a-b-c-path"]);
    });
}

#[test]
fn failing_plugin_yields_no_credentials_and_its_error_is_counted() {
    run(async |scene| {
        scene.program("fails", "echo no >&2; exit 3");
        scene.program("hangs", "exec sleep 1000");
        scene.program("prattles", "exec head -c 2000000 /dev/zero");
        scene.answering("keyless", &json!({"cacheKeyType": "", "auth": {}}));
        scene.answering("good", &json!({"auth": {"reg.example": login("a")}}));
        let all = json!([{"name": "fails"}, {"name": "hangs"}, {"name": "prattles"},
            {"name": "keyless"}, {"name": "good"}]);
        let providers = scene.providers(&all, &FakeAccounts::default());
        assert_eq!(users(&providers, IMAGE, &pod("p", "")).await, ["a"]);
        let metrics = scene.metrics.scraped();
        for name in ["fails", "hangs", "prattles"] {
            let name = format!("{{plugin_name=\"{name}\"}}");
            let total = format!("kubelet_credential_provider_plugin_errors_total{name} 1");
            assert!(metrics.contains(&total), "{metrics}");
            let count = format!("kubelet_credential_provider_plugin_duration_count{name} 1");
            assert!(metrics.contains(&count), "{metrics}");
        }
        assert!(!metrics.contains("errors_total{plugin_name=\"keyless\"}"), "its program ran well");
    });
}

#[test]
fn plugin_with_token_attributes_gets_a_token_and_is_cached_per_service_account() {
    run(async |scene| {
        scene.answering("sa", &json!({"auth": {"reg.example": login("a")}}));
        let attributes = json!({"serviceAccountTokenAudience": "aud", "cacheType": "ServiceAccount",
            "requireServiceAccount": true, "requiredServiceAccountAnnotationKeys": ["here"],
            "optionalServiceAccountAnnotationKeys": ["also", "not"]});
        let all = json!([{"name": "sa", "tokenAttributes": attributes}]);
        let accounts = FakeAccounts::default();
        let providers = scene.providers(&all, &accounts);
        assert!(users(&providers, IMAGE, &pod("p", "")).await.is_empty(), "no account, not asked");
        let found = providers.keyring(IMAGE, &pod("p", "one")).await.of(IMAGE);
        let CredentialSource::ServiceAccount(of) = &found[0].source else { panic!("{found:?}") };
        assert_eq!((&*of.namespace, &*of.name, &*of.uid), ("ns", "one", "uid of ns/one"));
        accounts.0.borrow_mut().0 = 1;
        // Another pod with another token, but of the same account.
        assert_eq!(users(&providers, IMAGE, &pod("q", "one")).await, ["a"]);
        assert_eq!(users(&providers, IMAGE, &pod("q", "two")).await, ["a"]);
        let asked = scene.asked("sa");
        assert_eq!(asked.len(), 2);
        assert_eq!(asked[0]["serviceAccountToken"], json!("aud|uid of ns/one|p|0"));
        assert_eq!(asked[0]["serviceAccountAnnotations"], json!({"here": "yes", "also": "so"}));
        // An account that cannot be read, and one that does not opt in.
        accounts.0.borrow_mut().1 = Some("forbidden".to_owned());
        assert!(users(&providers, IMAGE, &pod("q", "three")).await.is_empty());
        let mut attributes = attributes;
        attributes["requiredServiceAccountAnnotationKeys"] = json!(["not"]);
        attributes["optionalServiceAccountAnnotationKeys"] = json!([]);
        let all = json!([{"name": "sa", "tokenAttributes": attributes}]);
        let providers = scene.providers(&all, &FakeAccounts::default());
        assert!(users(&providers, IMAGE, &pod("p", "one")).await.is_empty());
        assert_eq!(scene.asked("sa").len(), 2);
    });
}

#[test]
fn token_may_be_returned_as_password_only_with_cache_type_token() {
    run(async |scene| {
        let password = "aud|uid of ns/one|p|0";
        let auth = json!({"reg.example": {"username": "a", "password": password}});
        scene.answering("echo", &json!({"auth": auth}));
        for (cache_type, want) in [("ServiceAccount", 0), ("Token", 1)] {
            let attributes = json!({"serviceAccountTokenAudience": "aud", "cacheType": cache_type,
                "requireServiceAccount": false});
            let all = json!([{"name": "echo", "tokenAttributes": attributes}]);
            let accounts = FakeAccounts::default();
            let providers = scene.providers(&all, &accounts);
            let pod = pod("p", "one");
            assert_eq!(users(&providers, IMAGE, &pod).await.len(), want, "{cache_type}");
            let before = scene.asked("echo").len();
            users(&providers, IMAGE, &pod).await;
            assert_eq!(scene.asked("echo").len() - before, 1 - want, "{cache_type}");
            // A new token: the answer for the old one is no longer valid.
            accounts.0.borrow_mut().0 = 1;
            users(&providers, IMAGE, &pod).await;
            assert_eq!(scene.asked("echo").len() - before, 2 - want, "{cache_type}");
        }
    });
}

#[test]
fn a_folder_is_read_in_order_and_a_name_stands_once() {
    run(async |scene| {
        let dir = scene.path("config");
        fs::create_dir_all(dir.join("sub.json")).expect("made");
        let empty = scene.read(&dir).expect_err("no files").to_string();
        assert!(empty.contains("no configuration files found in directory"), "{empty}");
        for name in ["one", "two", "three"] {
            scene.answering(name, &json!({"auth": {"reg.example": login(name)}}));
        }
        let put = |file: &str, names: &Value| {
            fs::write(dir.join(file), config(names)).expect("written");
        };
        put("20.json", &json!([{"name": "two"}]));
        put("10.yaml", &json!([{"name": "three"}, {"name": "one"}]));
        put("05.conf", &json!([{"name": "nobody"}]));
        let settings = scene.read(&dir).expect("settings");
        let names: Vec<_> = settings.providers.iter().map(|p| &*p.name).collect();
        assert_eq!(names, ["three", "one", "two"]);
        let hash = settings.hash.expect("a hash");
        put("30.yml", &json!([{"name": "two"}]));
        let twice = scene.read(&dir).expect_err("twice").to_string();
        assert!(twice.contains("duplicate provider name \"two\" found"), "{twice}");
        fs::remove_file(dir.join("30.yml")).expect("removed");
        put("20.json", &json!([{"name": "two", "args": ["x"]}]));
        assert_ne!(scene.read(&dir).expect("settings").hash, Some(hash));
    });
}

#[test]
fn unusable_config_or_plugin_is_reported_with_flag_and_file() {
    run(async |scene| {
        let file = scene.path("c.yaml");
        let refused = |text: &str, part: &str| {
            fs::write(&file, text).expect("written");
            let error = scene.read(&file).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
            assert!(error.starts_with("--image-credential-provider-"), "{error}");
        };
        refused("{", "error decoding config");
        refused("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1", "no kind");
        let one = config(&json!([{"name": "absent"}]));
        refused(&one, "/bin/absent did not exist");
        refused(&one.replace("matchImages", "matchImage"), "matchImage");
        let token = json!([{"name": "absent", "tokenAttributes": {}}]);
        let old = config(&token).replace("config.k8s.io/v1\"", "config.k8s.io/v1beta1\"");
        refused(&old, "unknown field \"providers[0].tokenAttributes\"");
        fs::write(scene.path("bin/absent"), "").expect("written");
        refused(&one, "/bin/absent: permission denied");
        let gone = scene.read(&scene.path("gone")).expect_err("no file").to_string();
        assert!(gone.contains("unable to access path"), "{gone}");
        let no_bin = read(&file, &scene.path("no-bin"), true).expect_err("no folder").to_string();
        assert!(no_bin.contains("plugin binary directory") && no_bin.contains("did not exist"));
    });
}

// k8s: pkg/credentialprovider/plugin/config_test.go Test_validateCredentialProviderConfig
#[test]
fn configs_the_kubelet_rejects_are_rejected_with_the_same_errors() {
    let version = "providers.apiVersion: Unsupported value: \"v9\": supported values: \
        \"credentialprovider.kubelet.k8s.io/v1\", \"credentialprovider.kubelet.k8s.io/v1alpha1\", \
        \"credentialprovider.kubelet.k8s.io/v1beta1\"";
    let cache_type = "providers.tokenAttributes.cacheType: Required value: cacheType is required \
        to be set when tokenAttributes is specified. Supported values are: ServiceAccount, Token";
    let both = "providers.tokenAttributes: Invalid value: [\"a\"]: annotation keys cannot be both \
        required and optional";
    let ok = json!({"serviceAccountTokenAudience": "a", "cacheType": "Token",
        "requireServiceAccount": true});
    let with = |key: &str, value: Value| {
        let mut token = ok.clone();
        token[key] = value;
        json!({"tokenAttributes": token})
    };
    let mut twice = with("requiredServiceAccountAnnotationKeys", json!(["a"]));
    twice["tokenAttributes"]["optionalServiceAccountAnnotationKeys"] = json!(["a"]);
    let mut forbidden = with("requiredServiceAccountAnnotationKeys", json!(["a"]));
    forbidden["tokenAttributes"]["requireServiceAccount"] = json!(false);
    let mut beta = json!({"tokenAttributes": ok});
    beta["apiVersion"] = json!("credentialprovider.kubelet.k8s.io/v1beta1");
    let table = [
        (
            json!({"name": "a/b"}),
            "providers.name: Invalid value: \"a/b\": provider name cannot \
            contain '/'",
        ),
        (json!({"name": "a b"}), "provider name cannot contain spaces"),
        (json!({"name": ".."}), "provider name cannot be '..'"),
        (json!({"apiVersion": "v9"}), version),
        (json!({"apiVersion": ""}), "providers.apiVersion: Required value"),
        (json!({"matchImages": []}), "at least 1 item in matchImages is required"),
        (
            json!({"matchImages": ["%invalid%"]}),
            "providers.matchImages: Invalid value: \
            \"%invalid%\": match image is invalid: parse \"https://%invalid%\": invalid URL escape \
            \"%in\"",
        ),
        (json!({"defaultCacheDuration": null}), "providers.defaultCacheDuration: Required value"),
        (
            json!({"defaultCacheDuration": "-1m"}),
            "providers.defaultCacheDuration: Invalid value: \
            \"-1m0s\": must be greater than or equal to 0",
        ),
        (json!({"tokenAttributes": {}}), "serviceAccountTokenAudience: Required value"),
        (json!({"tokenAttributes": {}}), "requireServiceAccount: Required value"),
        (json!({"tokenAttributes": {}}), cache_type),
        (
            with("cacheType", json!("x")),
            "cacheType: Unsupported value: \"x\": supported values: \
            \"ServiceAccount\", \"Token\"",
        ),
        (with("requiredServiceAccountAnnotationKeys", json!(["a", "a"])), "Duplicate value: \"a\""),
        (
            with("optionalServiceAccountAnnotationKeys", json!(["a b"])),
            "optionalServiceAccount\
            AnnotationKeys: Invalid value: \"a b\": name part must consist of",
        ),
        (twice, both),
        (
            forbidden,
            "requireServiceAccount cannot be false when \
            requiredServiceAccountAnnotationKeys is set",
        ),
        (
            beta,
            "tokenAttributes is only supported for credentialprovider.kubelet.k8s.io/v1 API \
            version",
        ),
    ];
    run(async |scene| {
        let file = scene.path("config.json");
        scene.program("good", "");
        for (rest, part) in table {
            let mut provider = json!({"name": "good"});
            for (key, value) in rest.as_object().expect("an object") {
                provider[key] = value.clone();
            }
            fs::write(&file, config(&json!([provider]))).expect("written");
            let error = scene.read(&file).expect_err(part).to_string();
            assert!(error.contains(part), "{error}\nlacks {part}");
        }
        let empty = config(&json!([]));
        fs::write(&file, empty).expect("written");
        let error = scene.read(&file).expect_err("no plugins").to_string();
        assert!(error.contains("providers: Required value: at least 1 item in plugins"), "{error}");
        let good = config(&json!([{"name": "good", "tokenAttributes": ok}]));
        fs::write(&file, good).expect("written");
        scene.read(&file).expect("good");
        let error = read(&file, &scene.path("bin"), false).expect_err("the gate is off");
        assert!(error.to_string().contains("feature gate is disabled"), "{error}");
    });
}
