//! Plugins behind real sockets, registered by the real task.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Script, ServedPlugin, patiently};
use pintle_agent_plugins::{Drivers, Plugins, Refresher};
use tempfile::TempDir;
use tonic::Status;

const NAME: &str = "csi.example.com";

/// A folder with a registrar.
struct RegistrationFolder {
    temp: TempDir,
    drivers: Drivers,
    refresher: Refresher,
}

impl RegistrationFolder {
    fn new() -> Self {
        let temp = tempfile::tempdir().expect("a folder");
        let (drivers, refresher, registrar) =
            pintle_agent_plugins::start(temp.path()).expect("it starts");
        tokio::spawn(registrar.run());
        Self { temp, drivers, refresher }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn plugin(&self, socket: &str, script: Script) -> ServedPlugin {
        ServedPlugin::start(&self.path(socket), script).expect("it starts")
    }

    /// Waits for a state.
    async fn until(&self, has: impl Fn(&Plugins) -> bool) -> Arc<Plugins> {
        let mut drivers = self.drivers.clone();
        let wait = async {
            let mut now = drivers.snapshot();
            while !has(&now) {
                now = drivers.changed().await.expect("the registrar runs");
            }
            now
        };
        patiently(wait).await
    }
}

fn problem(plugins: &Plugins, socket: &Path) -> String {
    let mut all = plugins.unregistered.iter();
    all.find(|one| one.socket == socket).and_then(|one| one.problem.clone()).unwrap_or_default()
}

#[tokio::test]
async fn driver_is_registered_notified_and_used_and_removed_with_its_socket() {
    let world = RegistrationFolder::new();
    let plugin = world.plugin("a.sock", Script::new(NAME));
    let plugins = world.until(|plugins| plugins.drivers.contains_key(NAME)).await;
    let driver = &plugins.drivers[NAME];
    assert_eq!(driver.facts.node_id, "n1");
    assert!(driver.capabilities.stages && !driver.capabilities.expands);
    let seen = plugin.until(|seen| !seen.told.is_empty()).await;
    assert!(seen.told[0].plugin_registered && seen.told[0].error.is_empty());
    patiently(driver.node.stage(&Default::default())).await.expect("it stages");
    drop(plugin);
    world.until(|plugins| plugins.drivers.is_empty()).await;
}

#[tokio::test]
async fn plugin_of_an_unsupported_type_is_notified_of_the_refusal() {
    let world = RegistrationFolder::new();
    let mut script = Script::new("example.com/gpu");
    script.info.r#type = "DevicePlugin".to_owned();
    let plugin = world.plugin("a.sock", script);
    let seen = plugin.until(|seen| !seen.told.is_empty()).await;
    assert!(!seen.told[0].plugin_registered);
    assert!(seen.told[0].error.contains("DevicePlugin is not supported yet"), "{seen:?}");
    assert!(world.drivers.snapshot().drivers.is_empty());
}

#[tokio::test]
async fn driver_whose_node_get_info_fails_receives_the_error_and_is_registered_on_retry() {
    let world = RegistrationFolder::new();
    let script =
        Script { fails: Some(("NodeGetInfo", Status::internal("boom"))), ..Script::new(NAME) };
    let plugin = world.plugin("a.sock", script);
    let seen = plugin.until(|seen| !seen.told.is_empty()).await;
    let text = "RegisterPlugin error -- plugin registration failed with err: \
                rpc error: code = Internal desc = boom";
    assert_eq!(seen.told[0].error, text);
    plugin.script(|script| script.fails = None);
    world.until(|plugins| plugins.drivers.contains_key(NAME)).await;
}

#[tokio::test]
async fn hung_plugin_does_not_block_registration_of_other_plugins() {
    let world = RegistrationFolder::new();
    let hangs = |method| Script { hangs: Some(method), ..Script::new("csi.hangs.com") };
    let stuck = world.plugin("a-stuck.sock", hangs("GetInfo"));
    let half = world.plugin("b-stuck.sock", hangs("NodeGetInfo"));
    stuck.until(|seen| seen.calls.contains(&"GetInfo")).await;
    half.until(|seen| seen.calls.contains(&"NodeGetInfo")).await;
    let _deaf =
        std::os::unix::net::UnixListener::bind(world.path("c-deaf.sock")).expect("a socket");
    let _plugin = world.plugin("d.sock", Script::new(NAME));
    let plugins = world.until(|plugins| plugins.drivers.contains_key(NAME)).await;
    assert!(plugins.unregistered.iter().any(|one| one.socket == world.path("a-stuck.sock")));
}

#[tokio::test]
async fn immediately_recreated_plugin_is_registered_again() {
    let world = RegistrationFolder::new();
    let first = world.plugin("a.sock", Script::new(NAME));
    let plugins = world.until(|plugins| plugins.drivers.contains_key(NAME)).await;
    let before = plugins.drivers[NAME].registration;
    drop(first);
    let _second = world.plugin("a.sock", Script::new(NAME));
    let is_new = |plugins: &Plugins| {
        plugins.drivers.get(NAME).is_some_and(|driver| driver.registration != before)
    };
    world.until(is_new).await;
}

#[tokio::test]
async fn newer_socket_takes_the_name_and_its_removal_returns_it_to_the_older_socket() {
    let world = RegistrationFolder::new();
    let _old = world.plugin("old.sock", Script::new(NAME));
    world.until(|plugins| plugins.drivers.contains_key(NAME)).await;
    let mut script = Script::new(NAME);
    script.node.node_id = "n2".to_owned();
    let new = world.plugin("new.sock", script);
    let has = |id: &'static str| {
        move |plugins: &Plugins| {
            plugins.drivers.get(NAME).is_some_and(|driver| driver.facts.node_id == id)
        }
    };
    let plugins = world.until(has("n2")).await;
    assert!(problem(&plugins, &world.path("old.sock")).contains("new.sock"), "{plugins:?}");
    drop(new);
    world.until(has("n1")).await;
}

#[tokio::test]
async fn socket_without_a_listener_is_reported_and_registered_once_served() {
    let world = RegistrationFolder::new();
    let path = world.path("a.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    world.until(|plugins| problem(plugins, &path).contains("Connection refused")).await;
    std::fs::remove_file(&path).expect("ours");
    let _plugin = world.plugin("a.sock", Script::new(NAME));
    world.until(|plugins| plugins.drivers.contains_key(NAME)).await;
}

#[tokio::test]
async fn limit_is_refreshed_on_demand_and_kept_when_the_driver_does_not_answer() {
    let world = RegistrationFolder::new();
    let plugin = world.plugin("a.sock", Script::new(NAME));
    world.until(|plugins| plugins.drivers.contains_key(NAME)).await;
    plugin.script(|script| script.fails = Some(("NodeGetInfo", Status::internal("later"))));
    world.refresher.refresh(NAME);
    world.refresher.refresh("nobody.example.com");
    plugin
        .until(|seen| seen.calls.iter().filter(|name| **name == "NodeGetInfo").count() == 2)
        .await;
    plugin.script(|script| {
        script.fails = None;
        script.node.max_volumes_per_node = 7;
    });
    world.refresher.refresh(NAME);
    let limit = |plugins: &Plugins| plugins.drivers[NAME].facts.max_volumes;
    let plugins = world.until(|plugins| limit(plugins) == Some(7)).await;
    assert_eq!(plugins.drivers[NAME].registration, 1);
}

#[tokio::test]
async fn answer_that_is_too_large_is_no_registration() {
    let world = RegistrationFolder::new();
    let mut script = Script::new(NAME);
    script.node.node_id = "n".repeat(5 << 20);
    let plugin = world.plugin("a.sock", script);
    let seen = plugin.until(|seen| !seen.told.is_empty()).await;
    assert!(seen.told[0].error.contains("larger than max"), "{}", seen.told[0].error);
}
