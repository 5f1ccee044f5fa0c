//! The records beside volumes: the kubelet's bytes, and what is refused.

use std::collections::BTreeMap;

use super::*;
use crate::storage::csi::{Lifecycle, Secrets};

fn volume() -> Volume {
    Volume {
        driver: "d.example".to_owned(),
        handle: "h<1>".to_owned(),
        name: "pv-1".to_owned(),
        lifecycle: Lifecycle::Persistent,
        is_block: false,
        is_read_only: false,
        fs_type: String::new(),
        attributes: BTreeMap::new(),
        access_modes: Vec::new(),
        mount_options: Vec::new(),
        secrets: Secrets::default(),
        size: None,
        disk: None,
        is_migrated: false,
        labels: Vec::new(),
    }
}

#[test]
fn file_is_the_kubelets_byte_for_byte() {
    let attachment = attachment_name("h<1>", "d.example", "node-1");
    // Go's encoder writes a map by its sorted keys, with `<` and `>` escaped.
    let expected = format!(
        "{{\"attachmentID\":\"{attachment}\",\"driverName\":\"d.example\",\"nodeName\":\"node-1\",\
         \"specVolID\":\"pv-1\",\"volumeHandle\":\"h\\u003c1\\u003e\",\
         \"volumeLifecycleMode\":\"Persistent\"}}\n"
    );
    assert_eq!(Record::of_pod(&volume(), "node-1").text(), expected);
    let staged = "{\"driverName\":\"d.example\",\"volumeHandle\":\"h\\u003c1\\u003e\"}\n";
    assert_eq!(Record::of_staging(&volume()).text(), staged);
}

#[test]
fn record_survives_a_write_and_a_parse() {
    for record in [
        Record::of_pod(&volume(), "node-1"),
        Record::of_staging(&volume()),
        Record::of_device(&volume(), "node-1"),
    ] {
        assert_eq!(Record::parse(record.text().as_bytes()).expect("a record"), record);
    }
}

#[test]
fn file_that_names_no_volume_is_an_error() {
    for text in ["", "{}", "[]", "{\"driverName\":\"d\"}", "{\"driverName\":1}", "\0\0\0\0"] {
        assert!(Record::parse(text.as_bytes()).is_err(), "{text:?}");
    }
}
