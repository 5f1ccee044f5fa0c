//! Pods with volumes of every kind on one node: made, deleted, and checked at the end.
//!
//! Input: a cluster and a driver. Output: what the pods wrote is where they wrote it, no pod missed
//! what it had written, nothing of the pods is left on the node, and the driver's log has no call
//! that must not be. Bounds: `PODS_MAX` pods at once.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use pintle_api_types::rng::Rng;
use pintle_csi_driver::log::LogFile;
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::{With, condition};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};
use xtask::node::Leftovers;
use xtask::shell;

use crate::drivers::{DRIVER, Driver};
use crate::ground::{Bound, LoopDisk, folder, local, volume};
use crate::journal;
use crate::kinds::{
    CONFIG_KEY, CONFIG_VALUE, CONTENT, KINDS, Kind, Member, SECRET_KEY, SECRET_VALUE,
};
use crate::record::WriteRecord;

/// Most pods at once.
const PODS_MAX: usize = 30;
/// How often pods are deleted that may not have started.
const EARLY_PERCENT: u64 = 25;
const DISK_BYTES: u64 = 32 << 20;
/// Room for a block of every pod of a long run.
const DEVICE_BYTES: i64 = 4 << 20;
const BLOCK_BYTES: u64 = 512;
/// The name of a driver's folder of a volume is the hash of the handle.
const HASH_CHARS: usize = 64;
/// Where the agent keeps what is shared by pods.
const PLUGINS: &str = "/var/lib/kubelet/plugins";

/// Where pods' writes to a volume are found, seen from here.
#[derive(Clone, Debug)]
enum Place {
    /// A file for each pod.
    Folder(PathBuf),
    /// A block for each pod.
    Device(PathBuf),
    /// A file for each pod, in the file system of a device of the node.
    Disk(String),
}

/// The pods, and what they have.
pub struct Fleet<'a> {
    test: &'a TestCluster,
    driver: &'a Driver<'a>,
    rng: Rng,
    bound: Bound<'a>,
    disks: Vec<LoopDisk<'a>>,
    /// By the name that pods have for a volume.
    places: BTreeMap<String, Place>,
    /// Volumes that several pods may share.
    shared: BTreeMap<Kind, Vec<String>>,
    /// Pods that were not deleted.
    pods: BTreeMap<String, Kind>,
    made: u64,
    record: WriteRecord,
}

impl<'a> Fleet<'a> {
    /// Makes the volumes; no pod yet. The seed decides what `step` does.
    pub fn new(test: &'a TestCluster, driver: &'a Driver<'a>, seed: u64) -> Self {
        eprintln!("seed {seed}: PINTLE_SEED={seed} repeats it");
        let record = WriteRecord::create(test);
        let mut fleet = Self {
            test,
            driver,
            rng: Rng::new(seed),
            bound: Bound::new(test),
            disks: Vec::new(),
            places: BTreeMap::new(),
            shared: BTreeMap::new(),
            pods: BTreeMap::new(),
            made: 0,
            record,
        };
        fleet.make_content();
        fleet.make_local_volumes();
        fleet.make_driver_volumes();
        fleet
    }

    fn make_content(&self) {
        self.test.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": CONTENT}, "data": {CONFIG_KEY: CONFIG_VALUE}}));
        self.test.apply(&json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": CONTENT}, "stringData": {SECRET_KEY: SECRET_VALUE}}));
    }

    fn make_local_volumes(&mut self) {
        let path = folder(self.test, "kinds-host-path");
        self.share(Kind::HostPath, &path, Place::Folder(self.test.on_node(&path)));
        let path = folder(self.test, "kinds-folder");
        self.bound.bind(&local("kinds-folder", &path));
        self.share(Kind::LocalFolder, "kinds-folder", Place::Folder(self.test.on_node(&path)));
        for (kind, name) in [(Kind::LocalDisk, "kinds-disk"), (Kind::LocalDevice, "kinds-device")] {
            let disk = LoopDisk::new(self.test, name, DISK_BYTES);
            let (mode, place) = match kind {
                Kind::LocalDisk => ("Filesystem", Place::Disk(disk.device.clone())),
                _ => ("Block", Place::Device(self.test.on_node(&disk.device))),
            };
            self.bound.bind(&local(name, &disk.device).with_spec("volumeMode", json!(mode)));
            self.disks.push(disk);
            self.share(kind, name, place);
        }
    }

    /// Two of each kind, so that each is without pods now and then.
    fn make_driver_volumes(&mut self) {
        for (kind, name) in [
            (Kind::CsiFolder, "kinds-csi-a"),
            (Kind::CsiFolder, "kinds-csi-b"),
            (Kind::CsiSubPath, "kinds-csi-c"),
            (Kind::CsiDevice, "kinds-csi-d"),
            (Kind::CsiDevice, "kinds-csi-e"),
        ] {
            let handle = self.make_volume(kind, name);
            let mode = if kind == Kind::CsiDevice { "Block" } else { "Filesystem" };
            let source = json!({"csi": {"driver": DRIVER, "volumeHandle": handle}});
            self.bound.bind(&volume(name, source).with_spec("volumeMode", json!(mode)));
            self.shared.entry(kind).or_default().push(name.to_owned());
        }
    }

    fn make_volume(&mut self, kind: Kind, name: &str) -> String {
        let is_block = kind == Kind::CsiDevice;
        let handle = pintle_csi_driver::create(&self.driver.state, name, DEVICE_BYTES, is_block);
        let handle = handle.expect("a volume");
        let content = self.driver.state.join("volumes").join(&handle);
        let place = match kind {
            Kind::CsiDevice => Place::Device(content),
            Kind::CsiSubPath => Place::Folder(content.join("below")),
            _ => Place::Folder(content),
        };
        self.places.insert(name.to_owned(), place);
        handle
    }

    fn share(&mut self, kind: Kind, name: &str, place: Place) {
        self.places.insert(name.to_owned(), place);
        self.shared.entry(kind).or_default().push(name.to_owned());
    }

    /// Chance, for the test itself.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Names of the pods that were not deleted.
    pub fn names(&self) -> Vec<String> {
        self.pods.keys().cloned().collect()
    }

    /// Pods of one kind have the same volume from now on.
    pub fn choose_first_volumes(&mut self) {
        self.shared.values_mut().for_each(|names| names.truncate(1));
    }

    /// How many pods were made.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Creates a pod of each kind and waits for nothing.
    pub fn create_one_of_each(&mut self) {
        self.create(&KINDS);
    }

    /// Creates pods of these kinds, in one request.
    pub fn create(&mut self, kinds: &[Kind]) {
        let mut items = Vec::new();
        for kind in kinds {
            self.made += 1;
            let mut member = Member { kind: *kind, number: self.made, volume: None };
            if *kind == Kind::CsiEphemeral {
                let name = format!("kinds-{}", member.name());
                items.push(self.ephemeral_volume(&member.name(), &name));
                member.volume = Some(name);
            } else if kind.outlives_its_pod() {
                member.volume = Some(self.rng.pick(&self.shared[kind]).clone());
            }
            items.push(member.manifest(&self.record.on_node));
            self.pods.insert(member.name(), *kind);
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        self.test.create(&list).expect("created");
    }

    /// The volume of the claim that is made for a pod.
    fn ephemeral_volume(&mut self, pod: &str, name: &str) -> Value {
        let handle = self.make_volume(Kind::CsiEphemeral, name);
        let claim = json!({"namespace": "default", "name": format!("{pod}-data")});
        volume(name, json!({"csi": {"driver": DRIVER, "volumeHandle": handle}}))
            .with_spec("claimRef", claim)
    }

    /// Creates some pods and deletes some, most of them after they have run.
    pub fn step(&mut self) {
        let count = self.rng.range(1, 4).min((PODS_MAX - self.pods.len()) as u64);
        let kinds: Vec<Kind> = (0..count).map(|_| *self.rng.pick(&KINDS)).collect();
        if !kinds.is_empty() {
            self.create(&kinds);
        }
        let mut names = self.names();
        if !self.rng.chance(EARLY_PERCENT) {
            names.retain(|name| self.record.has_run(name));
        }
        let count = self.rng.range(0, 4).min(names.len() as u64);
        let mut chosen = Vec::new();
        for _ in 0..count {
            let at = self.rng.range(0, names.len() as u64);
            chosen.push(names.swap_remove(usize::try_from(at).expect("a place in a list")));
        }
        self.delete(&chosen);
    }

    /// Deletes pods and waits for nothing.
    pub fn delete(&mut self, names: &[String]) {
        if names.is_empty() {
            return;
        }
        let names_given = names.iter().map(String::as_str);
        let args: Vec<&str> =
            ["delete", "pod", "--wait=false"].into_iter().chain(names_given).collect();
        self.test.kubectl(&args).expect("deleted");
        self.pods.retain(|name, _| !names.contains(name));
    }

    /// Waits until every pod that was not deleted is ready, and every other one is gone.
    pub fn settle(&self) {
        until(2 * LONG, "every pod is as it has to be", || {
            let pods = self.test.pods()?;
            for pod in &pods {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                let kind = self.pods.get(name);
                let kind = kind.with_context(|| format!("{name} is still there"))?;
                ensure!(condition(pod, "Ready"), "{name} {kind:?}: {:#?}", pod.status);
                ensure!(self.record.has_run(name), "{name} {kind:?} has not written");
            }
            ensure!(pods.len() == self.pods.len(), "{} of {}", pods.len(), self.pods.len());
            Ok(())
        });
    }

    /// What the pods say of themselves.
    pub fn record(&self) -> &WriteRecord {
        &self.record
    }

    /// Fails if a pod missed something that it had written.
    pub fn check_nothing_is_lost(&self) {
        self.record.check_nothing_is_lost();
    }

    /// Deletes every pod, waits until nothing is left on the node but what `forgive` takes out, and
    /// checks what was written and what the driver was asked for. Returns the number of writes that
    /// were found.
    pub fn finish_but(&mut self, forgive: impl Fn(&mut Leftovers)) -> usize {
        self.delete(&self.names());
        until(2 * LONG, "nothing of the pods is left", || {
            let mut left = self.test.leftovers(NODE)?;
            forgive(&mut left);
            ensure!(left.is_empty(), "{left:#?}");
            let used = pintle_csi_driver::volumes_in_use(&self.driver.state)?;
            ensure!(used.is_empty(), "the driver has {used:?} in use");
            let folders = remains(&self.test.on_node(PLUGINS));
            ensure!(folders.is_empty(), "{folders:#?}");
            let loops = self.loops()?;
            ensure!(loops.is_empty(), "{loops:#?}");
            Ok(())
        });
        self.check_nothing_is_lost();
        let lines = LogFile::new(&self.driver.state).read().expect("a log");
        let faults = journal::faults(&lines);
        assert!(faults.is_empty(), "{faults:#?}");
        assert!(!journal::staged_volumes(&lines).is_empty(), "the driver was not asked");
        self.check_writes().expect("what pods wrote is there")
    }

    /// Loop devices of the driver, and those that hold a device of a pod.
    fn loops(&self) -> Result<Vec<String>> {
        let mut losetup = self.test.cluster().node_command(NODE, Path::new("losetup"))?;
        let text =
            shell::capture(losetup.args(["--list", "--noheadings", "-O", "NAME,BACK-FILE"]))?;
        // Those of a run that was killed are not this test's.
        let folder = self.driver.state.file_name().unwrap_or_default().to_string_lossy();
        let folder = format!("/{folder}/");
        let is_own = |line: &&str| line.contains(&folder) || line.contains("volumeDevices");
        Ok(text.lines().filter(is_own).map(str::to_owned).collect())
    }

    fn check_writes(&self) -> Result<usize> {
        let writes = self.record.writes()?;
        ensure!(!writes.is_empty(), "no pod has written");
        for write in &writes {
            let place = self.places.get(&write.volume);
            let place = place.with_context(|| format!("no volume {}", write.volume))?;
            let content = self.content(place, write.number);
            let content = content.with_context(|| format!("{write:?}"))?;
            ensure!(content == write.uid, "{write:?}: found {content:?}");
        }
        Ok(writes.len())
    }

    fn content(&self, place: &Place, number: u64) -> Result<String> {
        let bytes = match place {
            Place::Folder(path) => fs::read(path.join(number.to_string()))?,
            Place::Device(path) => {
                let mut block = vec![0; BLOCK_BYTES as usize];
                fs::File::open(path)?.read_exact_at(&mut block, number * BLOCK_BYTES)?;
                block
            }
            Place::Disk(device) => {
                let debugfs = Path::new("debugfs");
                let mut debugfs = self.test.cluster().node_command(NODE, debugfs)?;
                let cat = format!("cat {number}");
                shell::capture(debugfs.args(["-R", &cat, device]))?.into_bytes()
            }
        };
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.trim_matches(['\0', '\n']).to_owned())
    }
}

/// Files below the folder of plugins, and folders of a volume.
fn remains(plugins: &Path) -> Vec<PathBuf> {
    let mut remains = Vec::new();
    let mut open = vec![plugins.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_of_volume = name.starts_with("kinds-") || name.len() == HASH_CHARS;
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !is_of_volume => open.push(entry.path()),
                _ => remains.push(entry.path()),
            }
        }
    }
    remains
}
