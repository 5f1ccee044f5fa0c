//! Volumes of network disks, from a pod's spec or a PersistentVolume.
//!
//! Input: the source, the namespace of its secret, whether the pod writes. Output: the volume for
//! the state machine, or which field is not valid. A claim decides whether it is read-only; a
//! source in a pod decides itself. Pure.
// k8s: pkg/volume/iscsi/iscsi.go createISCSIDisk, pkg/volume/fc/fc.go getWwnsLunWwids

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{FCVolumeSource, ISCSIVolumeSource, PersistentVolume};

use super::NetworkDisk;
use super::fc::{FcAddress, FcDisk};
use super::iscsi::{IscsiDisk, own_iface, with_port};
use super::validate::{
    InvalidDisk, check_iface, check_iqn, check_lun, check_portal, check_wwid, check_wwn,
};
use crate::storage::csi::{AccessMode, Lifecycle, SecretKey, Secrets, Volume};

/// Interface of a source that names none.
const IFACE: &str = "default";
/// File system of a disk for which none is named, or an empty one.
// k8s: k8s.io/mount-utils mount_linux.go formatAndMountSensitive
pub const FS_TYPE: &str = "ext4";

/// What both kinds of sources say besides the disk.
struct Setup<'a> {
    name: &'a str,
    fs_type: Option<&'a str>,
    is_read_only: bool,
    secret: Option<SecretKey>,
}

impl Setup<'_> {
    fn volume(self, disk: NetworkDisk, is_block: bool) -> Volume {
        let fs_type = self.fs_type.filter(|text| !text.is_empty()).unwrap_or(FS_TYPE);
        Volume {
            driver: disk.plugin().to_owned(),
            handle: disk.handle(is_block),
            name: self.name.to_owned(),
            lifecycle: Lifecycle::Persistent,
            is_block,
            is_read_only: self.is_read_only,
            fs_type: fs_type.to_owned(),
            attributes: BTreeMap::new(),
            access_modes: Vec::new(),
            mount_options: Vec::new(),
            secrets: Secrets { stage: self.secret, ..Secrets::default() },
            size: None,
            disk: Some(Box::new(disk)),
            is_migrated: false,
            labels: Vec::new(),
        }
    }
}

/// An iSCSI volume of a pod's spec.
///
/// # Errors
/// A field is not valid.
pub fn iscsi_of_pod(
    source: &ISCSIVolumeSource,
    name: &str,
    namespace: &str,
) -> Result<Volume, InvalidDisk> {
    let uses_secret =
        source.chap_auth_discovery == Some(true) || source.chap_auth_session == Some(true);
    let secret = source.secret_ref.as_ref().filter(|_| uses_secret);
    let secret = secret
        .map(|secret| SecretKey { namespace: namespace.to_owned(), name: secret.name.clone() });
    let setup = Setup {
        name,
        fs_type: source.fs_type.as_deref(),
        is_read_only: source.read_only == Some(true),
        secret,
    };
    Ok(setup.volume(NetworkDisk::Iscsi(iscsi_disk(source, name)?), false))
}

/// A Fibre Channel volume of a pod's spec.
///
/// # Errors
/// A field is not valid.
pub fn fc_of_pod(source: &FCVolumeSource, name: &str) -> Result<Volume, InvalidDisk> {
    let setup = Setup {
        name,
        fs_type: source.fs_type.as_deref(),
        is_read_only: source.read_only == Some(true),
        secret: None,
    };
    Ok(setup.volume(NetworkDisk::Fc(fc_disk(source)?), false))
}

/// The volume of a PersistentVolume, if it is a network disk. `options` are those of its mount.
///
/// # Errors
/// A field is not valid.
pub fn of_claim(
    volume: &PersistentVolume,
    is_read_only: bool,
    options: Vec<String>,
) -> Option<Result<Volume, InvalidDisk>> {
    let spec = volume.spec.as_ref()?;
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let is_block = spec.volume_mode.as_deref() == Some("Block");
    let made = match (&spec.iscsi, &spec.fc) {
        (Some(source), _) => {
            let inline = ISCSIVolumeSource {
                chap_auth_discovery: source.chap_auth_discovery,
                chap_auth_session: source.chap_auth_session,
                fs_type: source.fs_type.clone(),
                initiator_name: source.initiator_name.clone(),
                iqn: source.iqn.clone(),
                iscsi_interface: source.iscsi_interface.clone(),
                lun: source.lun,
                portals: source.portals.clone(),
                read_only: source.read_only,
                secret_ref: None,
                target_portal: source.target_portal.clone(),
            };
            let has_auth =
                source.chap_auth_discovery == Some(true) || source.chap_auth_session == Some(true);
            // Without a namespace it is the pod's, which is the claim's.
            let own = || spec.claim_ref.as_ref()?.namespace.clone();
            let secret = source.secret_ref.as_ref().filter(|_| has_auth).map(|secret| SecretKey {
                namespace: secret.namespace.clone().or_else(own).unwrap_or_default(),
                name: secret.name.clone().unwrap_or_default(),
            });
            let fs_type = source.fs_type.as_deref();
            let setup = Setup { name, fs_type, is_read_only, secret };
            iscsi_disk(&inline, name).map(|disk| setup.volume(NetworkDisk::Iscsi(disk), is_block))
        }
        (None, Some(source)) => {
            let fs_type = source.fs_type.as_deref();
            let setup = Setup { name, fs_type, is_read_only, secret: None };
            fc_disk(source).map(|disk| setup.volume(NetworkDisk::Fc(disk), is_block))
        }
        (None, None) => return None,
    };
    let modes = spec.access_modes.iter().flatten();
    let access_modes = modes.filter_map(|mode| AccessMode::parse(mode)).collect();
    Some(made.map(|made| Volume { access_modes, mount_options: options, ..made }))
}

fn iscsi_disk(source: &ISCSIVolumeSource, name: &str) -> Result<IscsiDisk, InvalidDisk> {
    check_portal("targetPortal", &source.target_portal)?;
    for portal in source.portals.iter().flatten() {
        check_portal("portals", portal)?;
    }
    check_iqn("iqn", &source.iqn)?;
    let lun = check_lun(source.lun)?;
    let base_iface = source.iscsi_interface.as_deref().filter(|text| !text.is_empty());
    let base_iface = base_iface.unwrap_or(IFACE).to_owned();
    check_iface(&base_iface)?;
    let initiator = source.initiator_name.clone().unwrap_or_default();
    let portals = std::iter::once(&source.target_portal).chain(source.portals.iter().flatten());
    let portals: Vec<String> = portals.map(|portal| with_port(portal)).collect();
    let iface = match initiator.is_empty() {
        true => base_iface.clone(),
        false => {
            check_iqn("initiatorName", &initiator)?;
            own_iface(&portals[0], name)
        }
    };
    Ok(IscsiDisk {
        name: name.to_owned(),
        portals,
        iqn: source.iqn.clone(),
        lun,
        base_iface,
        iface,
        initiator,
        has_discovery_auth: source.chap_auth_discovery == Some(true),
        has_session_auth: source.chap_auth_session == Some(true),
        node_name: format!("{}:{}:{lun}", source.target_portal, source.iqn),
    })
}

fn fc_disk(source: &FCVolumeSource) -> Result<FcDisk, InvalidDisk> {
    let wwns = source.target_wwns.clone().unwrap_or_default();
    let wwids = source.wwids.clone().unwrap_or_default();
    if let Some(lun) = source.lun.filter(|_| !wwns.is_empty()) {
        let lun = check_lun(lun)?;
        wwns.iter().try_for_each(|wwn| check_wwn(wwn))?;
        let node_name = format!("[{}]:{lun}", wwns.join(" "));
        return Ok(FcDisk { address: FcAddress::Ports { wwns, lun }, node_name });
    }
    if wwids.is_empty() {
        let why = "no fc disk information found";
        return Err(InvalidDisk { field: "fc", value: String::new(), why });
    }
    wwids.iter().try_for_each(|wwid| check_wwid(wwid))?;
    let node_name = format!("[{}]", wwids.join(" "));
    let wwids = wwids.iter().map(|wwid| wwid.replace(' ', "_")).collect();
    Ok(FcDisk { address: FcAddress::Identifiers(wwids), node_name })
}
