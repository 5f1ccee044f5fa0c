//! A LUN of an iSCSI target: its folder, the links to its devices, the arguments of `iscsiadm`, and
//! how long its paths are looked for.
//!
//! Input: the validated source, outputs of `iscsiadm`, the number of paths found. Output: texts and
//! decisions. Arguments are a list, never a line of a shell, and each value follows its own option,
//! so that no name can be an option. A value of a secret is an argument, because `iscsiadm` takes it
//! in no other way; commands hide it in their `Debug` text. Pure.
// k8s: pkg/volume/iscsi/iscsi.go, iscsi_util.go

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Port of a portal that names none.
const PORT: &str = "3260";
/// Transport of an interface that names none.
const TCP: &str = "tcp";
/// Text of a setting without a value.
const EMPTY: &str = "<empty>";

/// Paths that are enough for a multipath volume once `ROUNDS_MIN` rounds have been made.
// k8s: pkg/volume/iscsi/iscsi_util.go minMultipathCount
const PATHS_MIN: usize = 2;
/// Rounds over the portals before fewer paths than portals are enough.
// k8s: pkg/volume/iscsi/iscsi_util.go minAttachAttempts
const ROUNDS_MIN: u32 = 2;
/// Rounds over the portals before one path is enough.
// k8s: pkg/volume/iscsi/iscsi_util.go maxAttachAttempts
const ROUNDS_MAX: u32 = 5;

/// A session with this interface exists, or the interface record.
pub const SESSION_EXISTS: i32 = 15;
/// There is no such session.
pub const SESSION_NOT_FOUND: i32 = 2;
/// There is no such record.
pub const NO_OBJECTS_FOUND: i32 = 21;

/// Keys of a secret for the discovery of targets.
const DISCOVERY_KEYS: [&str; 4] = [
    "discovery.sendtargets.auth.username",
    "discovery.sendtargets.auth.password",
    "discovery.sendtargets.auth.username_in",
    "discovery.sendtargets.auth.password_in",
];
/// Keys of a secret for a session.
const SESSION_KEYS: [&str; 4] = [
    "node.session.auth.username",
    "node.session.auth.password",
    "node.session.auth.username_in",
    "node.session.auth.password_in",
];

/// A LUN of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IscsiDisk {
    /// Name on the disk: that of the PersistentVolume, or of the volume in the pod.
    pub name: String,
    /// Addresses with ports: the target portal first.
    pub portals: Vec<String>,
    /// Name of the target.
    pub iqn: String,
    /// Number of the LUN.
    pub lun: u16,
    /// The interface of the source.
    pub base_iface: String,
    /// The interface of the sessions: a copy for an initiator of its own.
    pub iface: String,
    /// The initiator; empty for the node's.
    pub initiator: String,
    /// Targets are discovered with a secret.
    pub has_discovery_auth: bool,
    /// Sessions begin with a secret.
    pub has_session_auth: bool,
    /// `portal:iqn:lun`, with the portal as the source has it.
    pub node_name: String,
}

/// A portal with its port.
// k8s: pkg/volume/iscsi/iscsi.go portalMounter
pub(super) fn with_port(portal: &str) -> String {
    if portal.contains(':') { portal.to_owned() } else { format!("{portal}:{PORT}") }
}

impl IscsiDisk {
    /// Its folder below the plugin's.
    // k8s: pkg/volume/iscsi/iscsi_util.go makePDNameInternal
    pub fn folder(&self) -> String {
        let portal = self.portals.first().map_or("", String::as_str);
        format!("iface-{}/{portal}-{}-lun-{}", self.iface, self.iqn, self.lun)
    }

    /// The portals, each once.
    pub fn distinct_portals(&self) -> Vec<&str> {
        let mut portals: Vec<&str> = Vec::new();
        for portal in &self.portals {
            if !portal.is_empty() && !portals.contains(&portal.as_str()) {
                portals.push(portal);
            }
        }
        portals
    }

    /// True when the interface of its sessions is a copy that goes with the last of them.
    pub fn has_own_iface(&self) -> bool {
        let own = self.portals.first().map(|portal| own_iface(portal, &self.name));
        !self.initiator.is_empty() && own.as_ref() == Some(&self.iface)
    }

    /// True for the link in `/dev/disk/by-path` to its device by way of a portal.
    // k8s: pkg/volume/iscsi/iscsi_util.go AttachDisk
    pub fn is_link(&self, link: &str, portal: &str, transport: &str) -> bool {
        let address = portal.replace(['[', ']'], "");
        let own = format!("ip-{address}-iscsi-{}-lun-{}", self.iqn, self.lun);
        match transport {
            TCP => link == own,
            _ => link.strip_suffix(&own).is_some_and(|rest| {
                rest.starts_with("pci-") && rest.ends_with('-') && rest.len() > "pci-".len()
            }),
        }
    }
}

/// The interface of an initiator of its own.
// k8s: pkg/volume/iscsi/iscsi.go createISCSIDisk
pub(super) fn own_iface(portal: &str, name: &str) -> String {
    format!("{portal}:{name}")
}

/// What the folder of a disk says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderParts<'a> {
    /// The interface of its sessions.
    pub iface: &'a str,
    /// The target portal.
    pub portal: &'a str,
    /// Name of the target.
    pub iqn: &'a str,
    /// Number of the LUN.
    pub lun: u16,
}

/// Reads `iface-<iface>/<portal>-<iqn>-lun-<lun>`.
// k8s: pkg/volume/iscsi/iscsi_util.go extractIface, extractPortalAndIqn
pub fn parse_folder(folder: &str) -> Option<FolderParts<'_>> {
    let (iface, rest) = folder.strip_prefix("iface-")?.split_once('/')?;
    let (rest, lun) = rest.rsplit_once("-lun-")?;
    let starts = ["-iqn.", "-eui.", "-naa."];
    let at = starts.iter().filter_map(|start| rest.find(start)).min()?;
    let (portal, iqn) = (&rest[..at], &rest[at + 1..]);
    (!portal.is_empty()).then_some(FolderParts { iface, portal, iqn, lun: lun.parse().ok()? })
}

/// `portal:iqn:lun` with the default port, and without it.
pub(super) fn node_names(folder: &str) -> Vec<String> {
    let Some(FolderParts { portal, iqn, lun, .. }) = parse_folder(folder) else {
        return Vec::new();
    };
    let bare = portal.strip_suffix(PORT).and_then(|portal| portal.strip_suffix(':'));
    let portals = [Some(portal), bare];
    portals.into_iter().flatten().map(|portal| format!("{portal}:{iqn}:{lun}")).collect()
}

/// The arguments of one run of `iscsiadm`.
#[derive(Clone, PartialEq, Eq)]
pub struct AdmCommand {
    args: Vec<String>,
    is_secret: bool,
}

impl AdmCommand {
    fn new<'a>(args: impl IntoIterator<Item = &'a str>) -> Self {
        Self { args: args.into_iter().map(str::to_owned).collect(), is_secret: false }
    }

    fn and(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// Sets a value of a record.
    fn update(self, key: &str, value: &str) -> Self {
        self.and(&["-o", "update", "-n", key, "-v", value])
    }

    /// The arguments.
    pub fn args(&self) -> Vec<&str> {
        self.args.iter().map(String::as_str).collect()
    }

    /// A program's output without the secret of this command.
    pub fn redact(&self, output: &str) -> String {
        match self.args.last() {
            Some(secret) if self.is_secret => output.replace(secret.as_str(), "***"),
            _ => output.to_owned(),
        }
    }
}

impl fmt::Debug for AdmCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.args.len() - usize::from(self.is_secret);
        f.write_str(&self.args[..shown].join(" "))?;
        if self.is_secret { f.write_str(" ***") } else { Ok(()) }
    }
}

/// Prints the record of an interface.
pub fn show_iface(iface: &str) -> AdmCommand {
    AdmCommand::new(["-m", "iface", "-I", iface, "-o", "show"])
}

/// Makes the record of an interface.
pub fn new_iface(iface: &str) -> AdmCommand {
    AdmCommand::new(["-m", "iface", "-I", iface, "-o", "new"])
}

/// Sets a value of an interface.
pub fn update_iface(iface: &str, key: &str, value: &str) -> AdmCommand {
    AdmCommand::new(["-m", "iface", "-I", iface]).update(key, value)
}

/// Deletes the record of an interface.
pub fn delete_iface(iface: &str) -> AdmCommand {
    AdmCommand::new(["-m", "iface", "-I", iface, "-o", "delete"])
}

/// Runs for the discovery of a portal's targets.
#[derive(Clone, Copy, Debug)]
pub enum Discovery {
    /// Makes its record.
    New,
    /// Asks the portal.
    Discover,
    /// Deletes its record.
    Delete,
}

/// Runs for a session.
#[derive(Clone, Copy, Debug)]
pub enum SessionCommand {
    /// Logs in.
    Login,
    /// Logs out.
    Logout,
    /// Deletes its record.
    Delete,
    /// Has the agent scan for LUNs, so that the kernel sees none that was not asked for.
    ScanByHand,
    /// Keeps the node from logging in at boot.
    StartByHand,
}

impl IscsiDisk {
    fn discoverydb(&self, portal: &str) -> AdmCommand {
        let args = ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", &self.iface];
        AdmCommand::new(args)
    }

    fn node(&self, portal: &str) -> AdmCommand {
        AdmCommand::new(["-m", "node", "-p", portal, "-T", &self.iqn, "-I", &self.iface])
    }

    /// A run for discovery.
    pub fn discovery(&self, portal: &str, what: Discovery) -> AdmCommand {
        let command = self.discoverydb(portal);
        match what {
            Discovery::New => command.and(&["-o", "new"]),
            Discovery::Discover => command.and(&["--discover"]),
            Discovery::Delete => command.and(&["-o", "delete"]),
        }
    }

    /// A run for a session.
    pub fn session(&self, portal: &str, what: SessionCommand) -> AdmCommand {
        let command = self.node(portal);
        match what {
            SessionCommand::Login => command.and(&["--login"]),
            SessionCommand::Logout => command.and(&["--logout"]),
            SessionCommand::Delete => command.and(&["-o", "delete"]),
            // k8s: kubernetes#90982
            SessionCommand::ScanByHand => command.update("node.session.scan", "manual"),
            SessionCommand::StartByHand => command.update("node.startup", "manual"),
        }
    }

    /// The runs that set what a discovery begins with.
    // k8s: pkg/volume/iscsi/iscsi_util.go updateISCSIDiscoverydb
    pub fn discovery_auth(
        &self,
        portal: &str,
        secret: &BTreeMap<String, String>,
    ) -> Vec<AdmCommand> {
        let method = "discovery.sendtargets.auth.authmethod";
        match self.has_discovery_auth {
            true => auth(&self.discoverydb(portal), method, &DISCOVERY_KEYS, secret),
            false => Vec::new(),
        }
    }

    /// The runs that set what a session begins with.
    // k8s: pkg/volume/iscsi/iscsi_util.go updateISCSINode
    pub fn session_auth(&self, portal: &str, secret: &BTreeMap<String, String>) -> Vec<AdmCommand> {
        match self.has_session_auth {
            true => auth(&self.node(portal), "node.session.auth.authmethod", &SESSION_KEYS, secret),
            false => Vec::new(),
        }
    }
}

fn auth(
    record: &AdmCommand,
    method: &str,
    keys: &[&str],
    secret: &BTreeMap<String, String>,
) -> Vec<AdmCommand> {
    let mut commands = vec![record.clone().update(method, "CHAP")];
    for key in keys {
        if let Some(value) = secret.get(*key).filter(|value| !value.is_empty()) {
            commands.push(AdmCommand { is_secret: true, ..record.clone().update(key, value) });
        }
    }
    commands
}

/// The transport in the record of an interface.
// k8s: pkg/volume/iscsi/iscsi_util.go extractTransportname
pub fn transport(iface: &str) -> Option<String> {
    let mut lines = iface.lines();
    let value = lines.find_map(|line| line.strip_prefix("iface.transport_name = "))?;
    Some(if value == EMPTY { TCP } else { value }.to_owned())
}

/// A record of an interface that cannot be copied.
#[derive(Debug, thiserror::Error)]
#[error("invalid iface setting: {0}")]
pub struct IfaceError(String);

/// The settings of an interface that a copy for an initiator has.
// k8s: pkg/volume/iscsi/iscsi_util.go cloneIface, parseIscsiadmShow
pub fn copied_settings(
    iface: &str,
    initiator: &str,
) -> Result<BTreeMap<String, String>, IfaceError> {
    let mut settings = BTreeMap::new();
    for line in iface.lines().filter(|line| line.starts_with("iface.") && !line.contains(EMPTY)) {
        let parts: Vec<&str> = line.split_whitespace().collect();
        let [key, "=", value] = parts[..] else { return Err(IfaceError(line.to_owned())) };
        // The name cannot be changed once the record is made.
        if key != "iface.iscsi_ifacename" {
            settings.insert(key.to_owned(), value.to_owned());
        }
    }
    settings.insert("iface.initiatorname".to_owned(), initiator.to_owned());
    Ok(settings)
}

/// What follows a round over all portals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundEnd {
    /// The portals without a path are tried once more.
    Again,
    /// The disk is used by the paths that were found.
    Enough,
    /// There is no path.
    Failed,
}

/// Decides what follows a round: `round` counts from one.
// k8s: pkg/volume/iscsi/iscsi_util.go AttachDisk
pub fn after_round(round: u32, paths: usize, portals: usize) -> RoundEnd {
    match paths {
        0 => RoundEnd::Failed,
        _ if paths >= portals || round >= ROUNDS_MAX => RoundEnd::Enough,
        _ if paths >= PATHS_MIN && round >= ROUNDS_MIN => RoundEnd::Enough,
        _ => RoundEnd::Again,
    }
}
