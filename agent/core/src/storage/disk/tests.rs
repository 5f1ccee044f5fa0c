//! Disks by table: what sources become, which names are refused, what folders and links say.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{FCVolumeSource, ISCSIVolumeSource, PersistentVolume};
use serde_json::{Value, json};

use super::fc::FcAddress;
use super::iscsi::{
    Discovery, RoundEnd, SessionCommand, after_round, copied_settings, parse_folder, transport,
};
use super::session::{LunDevice, Session, devices_of, host_of, logouts, portal};
use super::*;
use crate::storage::csi::Volume;

const IQN: &str = "iqn.2003-01.io.k8s:e2e.volume-1";
/// `iscsiadm -m iface -I default -o show` of open-iscsi 2.1.8.
const IFACE: &str = "# BEGIN RECORD 2.1.8\niface.iscsi_ifacename = default\niface.net_ifacename = \
                     <empty>\niface.ipaddress = <empty>\niface.hwaddress = <empty>\n\
                     iface.transport_name = tcp\niface.initiatorname = <empty>\niface.state = \
                     <empty>\niface.vlan_id = 0\n# END RECORD\n";

fn source(more: Value) -> ISCSIVolumeSource {
    let mut source = json!({"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 2});
    for (key, value) in more.as_object().expect("fields") {
        source[key] = value.clone();
    }
    serde_json::from_value(source).expect("a source")
}

fn iscsi(more: Value) -> Result<Volume, InvalidDisk> {
    iscsi_of_pod(&source(more), "data", "ns")
}

fn disk_of(more: Value) -> IscsiDisk {
    let volume = iscsi(more).expect("valid");
    match *volume.disk.expect("a disk") {
        NetworkDisk::Iscsi(disk) => disk,
        NetworkDisk::Fc(disk) => panic!("{disk:?}"),
    }
}

fn fc(source: Value) -> Result<Volume, InvalidDisk> {
    let source: FCVolumeSource = serde_json::from_value(source).expect("a source");
    fc_of_pod(&source, "data")
}

#[test]
fn iscsi_source_becomes_a_volume_with_the_kubelets_folder() {
    let plain = iscsi(json!({})).expect("valid");
    assert_eq!(plain.handle, format!("iface-default/10.0.0.1:3260-{IQN}-lun-2"));
    assert_eq!((&*plain.driver, &*plain.fs_type), (ISCSI, "ext4"));
    let id = plain.id(&"u".into());
    assert_eq!(id.as_str(), format!("{ISCSI}/{}", plain.handle));
    let name = plain.node_name().expect("a disk has one");
    assert_eq!(name, format!("{ISCSI}/10.0.0.1:{IQN}:2"));
    assert!(node_names(ISCSI, &plain.handle).contains(&name));
    assert_eq!(plain.secrets.stage, None, "no secret is read that nothing needs");

    let more = json!({"initiatorName": "iqn.2020-01.x:me", "secretRef": {"name": "chap"},
        "chapAuthSession": true, "portals": ["10.0.0.2:3261", "10.0.0.1"], "readOnly": true});
    let volume = iscsi(more.clone()).expect("valid");
    assert_eq!(volume.handle, format!("iface-10.0.0.1:3260:data/10.0.0.1:3260-{IQN}-lun-2"));
    let secret = volume.secrets.stage.as_ref().expect("named");
    assert_eq!((&*secret.namespace, &*secret.name), ("ns", "chap"));
    assert!(volume.is_read_only);
    let disk = disk_of(more);
    assert_eq!(disk.distinct_portals(), ["10.0.0.1:3260", "10.0.0.2:3261"]);
    assert!(disk.has_own_iface() && !disk_of(json!({})).has_own_iface());
}

#[test]
fn claim_decides_the_disk_mode_and_the_default_namespace_of_its_secret() {
    let claimed = |reference: Value| {
        let volume: PersistentVolume = serde_json::from_value(json!({"metadata": {"name": "pv"},
            "spec": {"volumeMode": "Block", "accessModes": ["ReadWriteOnce"],
                "claimRef": {"namespace": "of-claim", "name": "c"},
                "iscsi": {"targetPortal": "p:1", "iqn": IQN, "lun": 0, "chapAuthDiscovery": true,
                    "readOnly": true, "secretRef": reference}}}))
        .expect("a volume");
        of_claim(&volume, false, vec!["noatime".to_owned()]).expect("a disk").expect("valid")
    };
    let volume = claimed(json!({"name": "s", "namespace": "other"}));
    assert_eq!(volume.handle, format!("volumeDevices/iface-default/p:1-{IQN}-lun-0"));
    assert_eq!(volume.secrets.stage.as_ref().map(|key| &*key.namespace), Some("other"));
    assert!(volume.is_block && !volume.is_read_only, "the claim decides");
    assert_eq!(volume.mount_options, ["noatime"]);
    let volume = claimed(json!({"name": "s"}));
    assert_eq!(volume.secrets.stage.as_ref().map(|key| &*key.namespace), Some("of-claim"));
    let names = node_names(ISCSI, &volume.handle);
    assert_eq!(names, [format!("{ISCSI}/p:1:{IQN}:0")]);
    let local = json!({"metadata": {"name": "pv"}, "spec": {"local": {"path": "/x"}}});
    let local = serde_json::from_value(local).expect("a volume");
    assert_eq!(of_claim(&local, false, Vec::new()), None);
}

#[test]
fn names_that_could_be_options_or_leave_the_folder_are_refused() {
    let table = [
        (json!({"iqn": "-iqn.2020-01.x:y"}), "iqn"),
        (json!({"iqn": "iqn.2020-01.x:../../../etc"}), "iqn"),
        (json!({"iqn": "iqn.2020-01.x:a b"}), "iqn"),
        (json!({"iqn": "iqn.2020-1.x:y"}), "iqn"),
        (json!({"iqn": "iqn.2020-01.x"}), "iqn"),
        (json!({"iqn": "eui.0123"}), "iqn"),
        (json!({"targetPortal": "--logout"}), "targetPortal"),
        (json!({"targetPortal": "a/../b"}), "targetPortal"),
        (json!({"targetPortal": ""}), "targetPortal"),
        (json!({"portals": ["10.0.0.2", "-p"]}), "portals"),
        (json!({"iscsiInterface": "-x"}), "iscsiInterface"),
        (json!({"iscsiInterface": "../x"}), "iscsiInterface"),
        (json!({"initiatorName": "me"}), "initiatorName"),
        (json!({"lun": 256}), "lun"),
        (json!({"lun": -1}), "lun"),
    ];
    for (more, field) in table {
        let error = iscsi(more.clone()).expect_err("not valid");
        assert_eq!(error.field, field, "{more}: {error}");
    }
    for iqn in [IQN, "eui.0123456789abcdef", "naa.0123456789abcdef0123456789abcdef"] {
        iscsi(json!({"iqn": iqn})).expect("valid");
    }
    let table = [
        (json!({"targetWWNs": ["5006"]}), "fc"),
        (json!({"targetWWNs": ["-1"], "lun": 1}), "targetWWNs"),
        (json!({"targetWWNs": [".*"], "lun": 1}), "targetWWNs"),
        (json!({"targetWWNs": ["a"], "lun": 300}), "lun"),
        (json!({"wwids": [".."]}), "wwids"),
        (json!({"wwids": ["../x"]}), "wwids"),
        (json!({"wwids": ["volumeDevices"]}), "wwids"),
    ];
    for (source, field) in table {
        let error = fc(source.clone()).expect_err("not valid");
        assert_eq!(error.field, field, "{source}: {error}");
    }
}

#[test]
fn folder_name_identifies_the_iscsi_disk() {
    let folder = format!("iface-10.0.0.1:3260:pv/10.0.0.1:3260-{IQN}-lun-7");
    let parts = parse_folder(&folder).expect("a folder");
    assert_eq!((parts.iface, parts.portal), ("10.0.0.1:3260:pv", "10.0.0.1:3260"));
    assert_eq!((parts.iqn, parts.lun), (IQN, 7));
    // A host's name may have dashes, and a target's too.
    let folder = "iface-default/my-host.x:1-iqn.2020-01.x:a-iqn.b-lun-1-lun-0";
    let parts = parse_folder(folder).expect("a folder");
    assert_eq!(
        (parts.portal, parts.iqn, parts.lun),
        ("my-host.x:1", "iqn.2020-01.x:a-iqn.b-lun-1", 0)
    );
    for folder in [
        "",
        "x",
        "iface-default",
        "iface-default/10.0.0.1:1",
        "iface-d/-iqn.x-lun-0",
        "iface-default/p-iqn.2020-01.x:y-lun-z",
    ] {
        assert_eq!(parse_folder(folder), None, "{folder}");
    }
}

#[test]
fn record_is_byte_identical_to_the_kubelets_and_an_invalid_record_is_ignored() {
    let disk = disk_of(json!({"portals": ["10.0.0.2"]}));
    let text = record::text(&disk);
    let want = format!(
        "{{\"VolName\":\"data\",\"Portals\":[\"10.0.0.1:3260\",\"10.0.0.2:3260\"],\"Iqn\":\"{IQN}\",\
         \"Lun\":\"2\",\"InitIface\":\"default\",\"Iface\":\"default\",\"InitiatorName\":\"\",\
         \"MetricsProvider\":null}}\n"
    );
    assert_eq!(text, want);
    let folder = disk.folder();
    let read = record::disk_of(&folder, Some(text.as_bytes())).expect("read");
    assert_eq!((read.portals.len(), &*read.name, read.lun), (2, "data", 2));
    let other = text.replace("\"2\"", "\"3\"");
    for file in [None, Some(&b"{"[..]), Some(&b"{\"Iqn\":\"x\"}"[..]), Some(other.as_bytes())] {
        let read = record::disk_of(&folder, file).expect("read from the folder's name");
        assert_eq!(
            (read.portals, &*read.iqn, read.lun),
            (vec!["10.0.0.1:3260".to_owned()], IQN, 2)
        );
    }
    assert_eq!(record::disk_of("x", Some(text.as_bytes())), None);
}

#[test]
fn device_links_of_a_disk_are_distinguished_from_other_links() {
    let disk = disk_of(json!({}));
    let table = [
        (format!("ip-10.0.0.1:3260-iscsi-{IQN}-lun-2"), "tcp", true),
        (format!("ip-10.0.0.1:3260-iscsi-{IQN}-lun-2-part1"), "tcp", false),
        (format!("ip-10.0.0.1:3260-iscsi-{IQN}-lun-22"), "tcp", false),
        (format!("pci-0000:04:00.0-ip-10.0.0.1:3260-iscsi-{IQN}-lun-2"), "bnx2i", true),
        (format!("pci-0000:04:00.0-ip-10.0.0.1:3260-iscsi-{IQN}-lun-2"), "tcp", false),
        (format!("pci-ip-10.0.0.1:3260-iscsi-{IQN}-lun-2"), "bnx2i", false),
    ];
    for (link, transport, is_own) in table {
        assert_eq!(disk.is_link(&link, "10.0.0.1:3260", transport), is_own, "{link} {transport}");
    }
    let link = format!("ip-fe80::1:3260-iscsi-{IQN}-lun-2");
    assert!(disk.is_link(&link, "[fe80::1]:3260", "tcp"));

    let ports = FcAddress::Ports { wwns: vec!["5006".to_owned(), "5007".to_owned()], lun: 1 };
    let table = [
        ("pci-0000:41:00.0-fc-0x5006-lun-1", true),
        ("fc-0x5007-lun-1", true),
        ("fc-0x5007-lun-10", false),
        ("pci-0000:41:00.0-fc-0x5008-lun-1", false),
        ("usb-fc-0x5006-lun-1", false),
    ];
    for (link, is_own) in table {
        assert_eq!(ports.is_link(link), is_own, "{link}");
    }
    let by_id = FcAddress::Identifiers(vec!["3600508b4".to_owned()]);
    assert!(by_id.is_link("scsi-3600508b4") && !by_id.is_link("scsi-3600508b4-part1"));
    assert_eq!((ports.scan(), by_id.scan()), ("- - 1".to_owned(), "- - -".to_owned()));
}

#[test]
fn fibre_channel_disk_is_recognized_by_its_folder_name() {
    let table = [
        (json!({"targetWWNs": ["5006", "5007"], "lun": 1}), "5006-5007-lun-1", "[5006 5007]:1"),
        (json!({"wwids": ["3600508b4"]}), "3600508b4", "[3600508b4]"),
        (json!({"wwids": ["ACME disk", "x"]}), "ACME_disk-x", "[ACME disk x]"),
    ];
    for (source, handle, name) in table {
        let volume = fc(source).expect("valid");
        assert_eq!(volume.handle, handle);
        assert_eq!(volume.node_name(), Some(format!("{FC}/{name}")));
        assert!(node_names(FC, handle).contains(&format!("{FC}/{name}")), "{handle}");
        let Some(NetworkDisk::Fc(disk)) = volume.disk.as_deref() else { panic!("{volume:?}") };
        assert_eq!(FcAddress::parse_folder(handle).as_ref(), Some(&disk.address));
    }
    assert_eq!(FcAddress::parse_folder(""), None);
}

#[test]
fn interface_is_read_and_copied() {
    assert_eq!(transport(IFACE).as_deref(), Some("tcp"));
    assert_eq!(transport("iface.transport_name = <empty>\n").as_deref(), Some("tcp"));
    assert_eq!(transport("iface.transport_name = bnx2i\n").as_deref(), Some("bnx2i"));
    assert_eq!(transport("no"), None);
    let copied = copied_settings(IFACE, "iqn.2020-01.x:me").expect("read");
    let want = [
        ("iface.initiatorname", "iqn.2020-01.x:me"),
        ("iface.transport_name", "tcp"),
        ("iface.vlan_id", "0"),
    ];
    let want = want.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(copied, BTreeMap::from(want));
    copied_settings("iface.mtu = 1 2\n", "i").expect_err("two values");
}

#[test]
fn arguments_are_the_kubelets_and_hide_secrets() {
    let disk = disk_of(json!({"chapAuthSession": true, "secretRef": {"name": "chap"}}));
    let at = "10.0.0.1:3260";
    let login = format!("-m node -p {at} -T {IQN} -I default --login");
    assert_eq!(disk.session(at, SessionCommand::Login).args().join(" "), login);
    let discover = format!("-m discoverydb -t sendtargets -p {at} -I default --discover");
    assert_eq!(disk.discovery(at, Discovery::Discover).args().join(" "), discover);
    let secret = BTreeMap::from([
        ("node.session.auth.username".to_owned(), "bob".to_owned()),
        ("node.session.auth.password".to_owned(), "s3cret".to_owned()),
        ("node.session.auth.password_in".to_owned(), String::new()),
        ("discovery.sendtargets.auth.password".to_owned(), "other".to_owned()),
    ]);
    assert_eq!(disk.discovery_auth(at, &secret), [], "not asked for");
    let commands = disk.session_auth(at, &secret);
    let args: Vec<_> = commands.iter().map(|command| command.args()[8..].join(" ")).collect();
    let update =
        |key: &str, value: &str| format!("-o update -n node.session.auth.{key} -v {value}");
    let want =
        [update("authmethod", "CHAP"), update("username", "bob"), update("password", "s3cret")];
    assert_eq!(args, want);
    let shown = format!("{commands:?}");
    assert!(
        !shown.contains("s3cret") && !shown.contains("bob") && shown.contains("***"),
        "{shown}"
    );
    assert_eq!(commands[2].redact("bad s3cret"), "bad ***");
}

#[test]
fn rounds_end_as_the_kubelets_do() {
    use RoundEnd::{Again, Enough, Failed};
    for (round, paths, portals, want) in [
        (1, 0, 1, Failed),
        (1, 1, 1, Enough),
        (1, 1, 2, Again),
        (1, 2, 3, Again),
        (2, 2, 3, Enough),
        (4, 1, 2, Again),
        (5, 1, 2, Enough),
    ] {
        assert_eq!(after_round(round, paths, portals), want, "{round} {paths} {portals}");
    }
}

#[test]
fn session_ends_with_the_last_disk_of_its_target_or_when_it_has_no_device() {
    let disk = disk_of(json!({"portals": ["10.0.0.2"]}));
    let lun = |lun, device: &str| LunDevice { lun, device: device.to_owned() };
    let session =
        |host, address: &str, luns| Session { host, portals: vec![portal(address, "3260")], luns };
    let sessions = [
        session(2, "10.0.0.1", vec![lun(2, "sda"), lun(3, "sdb")]),
        session(3, "10.0.0.2", vec![lun(2, "sdc")]),
    ];
    assert_eq!(host_of(&sessions, "10.0.0.2:3260"), Some(3));
    assert_eq!(host_of(&sessions, "10.0.0.3:3260"), None);
    assert_eq!(devices_of(&sessions, 2), ["sda", "sdc"]);

    // Its own devices are deleted by now.
    let sessions =
        [session(2, "10.0.0.1", vec![lun(3, "sdb")]), session(3, "10.0.0.2", Vec::new())];
    let both = vec!["10.0.0.1:3260", "10.0.0.2:3260"];
    let other = format!("iface-default/10.0.0.1:3260-{IQN}-lun-3");
    let longer = format!("iface-default/10.0.0.1:3260-{IQN}0-lun-3");
    let table = [
        (vec![], both.clone()),
        (vec![longer], both),
        // The first session serves the other disk, the second one serves none.
        (vec![other.clone()], vec!["10.0.0.2:3260"]),
        (vec!["x".to_owned(), other.replace("lun-3", "lun-9")], vec!["10.0.0.2:3260"]),
    ];
    for (others, want) in table {
        assert_eq!(logouts(&disk, &others, &sessions), want, "{others:?}");
    }
    assert_eq!(portal("fe80::1", "3260"), "[fe80::1]:3260");
}
