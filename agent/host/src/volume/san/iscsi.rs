//! Attaches a LUN of an iSCSI target by its portals, and detaches it.
//!
//! Input: the disk and the values of its secret. Output: the device to use, a multipath device where
//! there is one. Effects: interface, discovery and node records, sessions, one LUN scanned for each
//! session. Targets are changed one at a time, under the target's lock, so that no session ends
//! while another volume begins to use it. Values of secrets are arguments of `iscsiadm`, as the
//! kubelet's, and stand in no log and no error.
// k8s: pkg/volume/iscsi/iscsi_util.go AttachDisk, DetachDisk

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pintle_agent_core::storage::disk::IscsiDisk;
use pintle_agent_core::storage::disk::iscsi::{
    AdmCommand, Discovery, NO_OBJECTS_FOUND, RoundEnd, SESSION_EXISTS, SESSION_NOT_FOUND,
    SessionCommand, after_round, copied_settings, delete_iface, new_iface, parse_folder,
    show_iface, transport, update_iface,
};
use pintle_agent_core::storage::disk::session::{Session, devices_of, host_of, logouts};

use super::{SanHost, on_disk, scan};
use crate::volume::error::{Cause, IoFailure};
use crate::volume::keyed_lock;
use crate::volume::program::{self, ProgramError};

/// Longest run of `iscsiadm`: a login tries eight times for 15 s.
const ADM_MAX: Duration = Duration::from_secs(130);
/// Longest flush of a multipath device.
const FLUSH_MAX: Duration = Duration::from_secs(60);
/// Shortest and longest pause before a link is looked for again.
const LINK_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// One attempt to attach a disk.
struct Attachment<'a> {
    host: &'a SanHost,
    disk: &'a IscsiDisk,
    secret: &'a BTreeMap<String, String>,
    transport: String,
}

impl SanHost {
    /// Attaches the disk by as many portals as answer; returns its device.
    pub(super) async fn attach_iscsi(
        &self,
        disk: &IscsiDisk,
        secret: &BTreeMap<String, String>,
    ) -> Result<PathBuf, Cause> {
        let _guard = lock(disk).await;
        let shown = self.adm(disk, "show", &show_iface(&disk.base_iface)).await;
        let shown = shown.map_err(|error| {
            let (iface, why) = (&disk.base_iface, error.to_string());
            Cause::from(format!("iscsi: could not read iface {iface} error: {why}"))
        })?;
        let transport = transport(&shown)
            .ok_or_else(|| Cause::from(format!("could not parse iface file for {}", disk.iface)))?;
        if !disk.initiator.is_empty() {
            self.copy_iface(disk, &shown).await?;
        }
        let attachment = Attachment { host: self, disk, secret, transport };
        attachment.run().await
    }

    // k8s: pkg/volume/iscsi/iscsi_util.go cloneIface
    async fn copy_iface(&self, disk: &IscsiDisk, shown: &str) -> Result<(), Cause> {
        if disk.iface == disk.base_iface {
            let text = format!("iscsi: cannot clone iface with same name: {}", disk.iface);
            return Err(text.into());
        }
        let settings = copied_settings(shown, &disk.initiator)
            .map_err(|why| Cause::from(format!("iscsi: failed to parse iface records: {why}")))?;
        match self.adm(disk, &disk.iface, &new_iface(&disk.iface)).await {
            Err(AdmError { code: Some(SESSION_EXISTS), .. }) | Ok(_) => {}
            Err(why) => {
                return Err(format!("iscsi: failed to create new iface: {why}").into());
            }
        }
        for (key, value) in &settings {
            let update = update_iface(&disk.iface, key, value);
            if let Err(why) = self.adm(disk, &disk.iface, &update).await {
                let _ = self.adm(disk, &disk.iface, &delete_iface(&disk.iface)).await;
                return Err(format!("iscsi: failed to update iface records: {why}").into());
            }
        }
        Ok(())
    }

    async fn sessions(&self, disk: &IscsiDisk) -> Result<Vec<Session>, Cause> {
        let (host, iqn) = (self.clone(), disk.iqn.clone());
        on_disk(&disk.iqn, move || host.sessions_of(&iqn)).await
    }

    /// The device of the disk, as the kernel's links have it now.
    pub(super) fn iscsi_device(&self, disk: &IscsiDisk) -> Result<Option<PathBuf>, IoFailure> {
        let portals = disk.distinct_portals();
        let is_own = |link: &str| {
            let mut portals = portals.iter();
            portals.any(|p| disk.is_link(link, p, "tcp") || disk.is_link(link, p, ""))
        };
        Ok(self.preferred(self.links("by-path", is_own)))
    }

    /// Detaches a disk that is not mounted any more: its devices, then the sessions that no other
    /// disk needs.
    pub(super) async fn detach_iscsi(
        &self,
        root: &Path,
        disk: &IscsiDisk,
        folder: &str,
    ) -> Result<(), Cause> {
        let _guard = lock(disk).await;
        let (root, own) = (root.to_owned(), folder.to_owned());
        let others = on_disk(&disk.iqn, move || scan::iscsi_folders(&root)).await?;
        let others: Vec<String> = others.into_iter().filter(|other| *other != own).collect();
        let is_same = |other: &String| {
            let parts = parse_folder(other);
            parts.is_some_and(|other| other.iqn == disk.iqn && other.lun == disk.lun)
        };
        if !others.iter().any(is_same) {
            let sessions = self.sessions(disk).await?;
            let devices: Vec<String> =
                devices_of(&sessions, disk.lun).into_iter().map(str::to_owned).collect();
            self.delete_devices(&disk.iqn, devices).await?;
        }
        let sessions = self.sessions(disk).await?;
        let portals = logouts(disk, &others, &sessions);
        for portal in &portals {
            for what in [SessionCommand::Logout, SessionCommand::Delete] {
                match self.adm(disk, portal, &disk.session(portal, what)).await {
                    Ok(_)
                    | Err(AdmError { code: Some(SESSION_NOT_FOUND | NO_OBJECTS_FOUND), .. }) => {}
                    // A disk that was never attached goes without open-iscsi too.
                    Err(why) if host_of(&sessions, portal).is_none() => {
                        tracing::debug!(portal, %why, "there is no session to end");
                    }
                    Err(why) => {
                        let text = format!("iscsi: failed to detach disk: {what:?} failed: {why}");
                        return Err(text.into());
                    }
                }
            }
        }
        if disk.has_own_iface() && portals.len() == disk.distinct_portals().len() {
            match self.adm(disk, &disk.iface, &delete_iface(&disk.iface)).await {
                Ok(_) | Err(AdmError { code: Some(SESSION_NOT_FOUND | NO_OBJECTS_FOUND), .. }) => {}
                Err(why) => tracing::warn!(iface = disk.iface, %why, "an iface record stays"),
            }
        }
        Ok(())
    }

    /// Flushes and deletes devices of a disk that nothing has mounted.
    ///
    /// # Errors
    /// One of them is mounted.
    pub(super) async fn delete_devices(
        &self,
        share: &str,
        devices: Vec<String>,
    ) -> Result<(), Cause> {
        let (host, names) = (self.clone(), devices.clone());
        let look = move || -> Result<Vec<PathBuf>, Cause> {
            let maps: Vec<PathBuf> = names.iter().filter_map(|name| host.map_of(name)).collect();
            let all = names.iter().map(PathBuf::from).chain(maps.iter().cloned());
            for device in all {
                let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if host.is_mounted(&name)? {
                    return Err(format!("device {name} is still mounted on this node").into());
                }
            }
            Ok(maps)
        };
        let mut maps = on_disk(share, look).await?;
        maps.sort();
        maps.dedup();
        for map in maps {
            let path = map.to_string_lossy();
            let flushed = program::run(&map, &self.multipath, &["-f", &path], FLUSH_MAX).await;
            flushed.map_err(|error| {
                let output = error.output();
                Cause::from(format!("failed to flush multipath device {path}: {error}\n{output}"))
            })?;
        }
        let host = self.clone();
        on_disk(share, move || devices.iter().try_for_each(|name| host.delete_device(name))).await
    }

    /// Runs `iscsiadm`; about a portal or an interface one run at a time.
    /// Runs `iscsiadm`: for a target one at a time about the same thing, while other targets may be
    /// behind the same portal.
    async fn adm(
        &self,
        disk: &IscsiDisk,
        about: &str,
        command: &AdmCommand,
    ) -> Result<String, AdmError> {
        let about = Path::new("iscsiadm").join(&disk.iqn).join(about);
        tracing::debug!(?command, "iscsiadm");
        let ran = program::output(&about, &self.iscsiadm, &command.args(), ADM_MAX).await;
        ran.map_err(|error| {
            let code = match &error {
                ProgramError::Failed { status, .. } => status.code(),
                _ => None,
            };
            let text = match &error {
                ProgramError::Start(why) => {
                    format!("iscsiadm cannot be run on this node, see package open-iscsi: {why}")
                }
                _ => format!("{} ({error})", command.redact(error.output().trim_end())),
            };
            AdmError { code, text }
        })
    }
}

/// A run of `iscsiadm` that failed.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct AdmError {
    code: Option<i32>,
    text: String,
}

async fn lock(disk: &IscsiDisk) -> keyed_lock::VolumeGuard {
    keyed_lock::lock(&format!("iscsi target {}", disk.iqn)).await
}

impl Attachment<'_> {
    async fn run(&self) -> Result<PathBuf, Cause> {
        let portals = self.disk.distinct_portals();
        let mut paths: BTreeMap<&str, PathBuf> = BTreeMap::new();
        let mut last = None;
        for round in 1.. {
            for portal in &portals {
                if paths.contains_key(portal) {
                    continue;
                }
                match self.path_by(portal).await {
                    Ok(path) => drop(paths.insert(portal, path)),
                    Err(why) => last = Some(why),
                }
            }
            match after_round(round, paths.len(), portals.len()) {
                RoundEnd::Again => {}
                RoundEnd::Enough => break,
                RoundEnd::Failed => return Err(self.failed(last).await),
            }
        }
        if let Some(why) = last {
            tracing::warn!(iqn = self.disk.iqn, %why, paths = paths.len(), "a path is missing");
        }
        let wait = if portals.len() > 1 { self.host.multipath_wait } else { Duration::ZERO };
        // In the order of the source, as the first of them is used without multipath.
        let paths = portals.iter().filter_map(|portal| paths.remove(portal)).collect();
        self.host.preferred_within(wait, &self.disk.iqn, paths).await
    }

    async fn failed(&self, last: Option<Cause>) -> Cause {
        if self.disk.has_own_iface() {
            let _ =
                self.host.adm(self.disk, &self.disk.iface, &delete_iface(&self.disk.iface)).await;
        }
        let why = last.map_or_else(String::new, |why| why.to_string());
        format!("failed to get any path for iscsi disk, last err seen:\n{why}").into()
    }

    /// The device by way of a portal: logs in where there is no session, scans the LUN, waits for
    /// the link.
    async fn path_by(&self, portal: &str) -> Result<PathBuf, Cause> {
        let mut number = host_of(&self.host.sessions(self.disk).await?, portal);
        if number.is_none() {
            self.login(portal).await?;
            number = host_of(&self.host.sessions(self.disk).await?, portal);
        }
        let number = number.ok_or_else(|| {
            let text = format!("no SCSI host number for portal {portal} after logging in");
            Cause::from(text)
        })?;
        let (host, lun) = (self.host.clone(), self.disk.lun);
        on_disk(&self.disk.iqn, move || host.scan_lun(number, lun)).await?;
        self.wait_for_link(portal).await
    }

    async fn wait_for_link(&self, portal: &str) -> Result<PathBuf, Cause> {
        let deadline = tokio::time::Instant::now() + self.host.link_wait;
        let mut pause = LINK_PAUSE.0;
        loop {
            let is_own = |link: &str| self.disk.is_link(link, portal, &self.transport);
            if let Some(device) = self.host.links("by-path", is_own).into_iter().next() {
                return Ok(device);
            }
            if tokio::time::Instant::now() + pause > deadline {
                let (iqn, lun) = (&self.disk.iqn, self.disk.lun);
                return Err(Cause::Text(format!(
                    "Timed out waiting for device at path /dev/disk/by-path of portal {portal}, \
                     target {iqn}, lun {lun} after {}s",
                    self.host.link_wait.as_secs()
                )));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LINK_PAUSE.1);
        }
    }

    async fn login(&self, portal: &str) -> Result<(), Cause> {
        let (host, disk) = (self.host, self.disk);
        // A record that is there already is as good.
        let _ = host.adm(disk, portal, &disk.discovery(portal, Discovery::New)).await;
        for command in disk.discovery_auth(portal, self.secret) {
            host.adm(disk, portal, &command).await.map_err(|why| {
                let text = "iscsi: failed to update discoverydb to portal";
                Cause::from(format!("{text} {portal} error: {why}"))
            })?;
        }
        let discover = disk.discovery(portal, Discovery::Discover);
        if let Err(why) = host.adm(disk, portal, &discover).await {
            let _ = host.adm(disk, portal, &disk.discovery(portal, Discovery::Delete)).await;
            let text = format!("iscsi: failed to sendtargets to portal {portal} output: {why}");
            return Err(text.into());
        }
        let by_hand = disk.session(portal, SessionCommand::ScanByHand);
        if let Err(why) = host.adm(disk, portal, &by_hand).await {
            tracing::warn!(portal, %why, "the kernel may see LUNs that no volume asked for");
        }
        for command in disk.session_auth(portal, self.secret) {
            host.adm(disk, portal, &command).await.map_err(|why| {
                let text = "iscsi: failed to update iscsi node to portal";
                Cause::from(format!("{text} {portal} error: {why}"))
            })?;
        }
        match host.adm(disk, portal, &disk.session(portal, SessionCommand::Login)).await {
            Ok(_) | Err(AdmError { code: Some(SESSION_EXISTS), .. }) => {}
            Err(why) => {
                let _ = host.adm(disk, portal, &disk.session(portal, SessionCommand::Delete)).await;
                return Err(format!("iscsi: failed to attach disk: Error: {why}").into());
            }
        }
        let by_hand = disk.session(portal, SessionCommand::StartByHand);
        if let Err(why) = host.adm(disk, portal, &by_hand).await {
            tracing::warn!(portal, %why, "the node may log in to a target at boot");
        }
        Ok(())
    }
}
