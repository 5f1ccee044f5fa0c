//! Debug output of requests that carry secrets, or tokens of service accounts in their context:
//! it names the keys, never the values.
//!
//! Generated code derives Debug for every other message (see build.rs), so a request that is logged
//! or shown by `explain` cannot leak a password.
// k8s: pkg/volume/csi/csi_mounter.go, which puts tokens into the volume context

use std::collections::BTreeMap;
use std::fmt;

use crate::csi;

/// Shows the keys of a map.
struct MapKeys<'a>(&'a BTreeMap<String, String>);

impl fmt::Debug for MapKeys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

macro_rules! shows_keys {
    ($($type:ident { $($field:ident),* ; $($map:ident),* })*) => {
        $(impl fmt::Debug for csi::$type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut shown = f.debug_struct(stringify!($type));
                $(shown.field(stringify!($field), &self.$field);)*
                $(shown.field(stringify!($map), &MapKeys(&self.$map));)*
                shown.finish()
            }
        })*
    };
}

shows_keys! {
    NodeStageVolumeRequest {
        volume_id, staging_target_path, volume_capability;
        publish_context, volume_context, secrets
    }
    NodePublishVolumeRequest {
        volume_id, staging_target_path, target_path, volume_capability, readonly;
        publish_context, volume_context, secrets
    }
    NodeExpandVolumeRequest {
        volume_id, volume_path, capacity_range, staging_target_path, volume_capability; secrets
    }
}

#[cfg(feature = "controller")]
shows_keys! {
    CreateVolumeRequest {
        name, capacity_range, volume_capabilities, parameters, volume_content_source,
        accessibility_requirements, mutable_parameters;
        secrets
    }
    DeleteVolumeRequest { volume_id; secrets }
    ControllerPublishVolumeRequest {
        volume_id, node_id, volume_capability, readonly; secrets, volume_context
    }
    ControllerUnpublishVolumeRequest { volume_id, node_id; secrets }
    ValidateVolumeCapabilitiesRequest {
        volume_id, volume_capabilities, parameters, mutable_parameters; secrets, volume_context
    }
    CreateSnapshotRequest { source_volume_id, name, parameters; secrets }
    DeleteSnapshotRequest { snapshot_id; secrets }
    ListSnapshotsRequest { max_entries, starting_token, source_volume_id, snapshot_id; secrets }
    ControllerExpandVolumeRequest { volume_id, capacity_range, volume_capability; secrets }
}

#[cfg(test)]
mod tests {
    use crate::csi::NodePublishVolumeRequest;

    #[test]
    fn debug_output_of_a_publish_shows_the_volume_but_no_secret_and_no_token() {
        let map = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
        let request = NodePublishVolumeRequest {
            volume_id: "vol-1".to_owned(),
            target_path: "/target".to_owned(),
            secrets: map("password", "s3cret-a"),
            volume_context: map("csi.storage.k8s.io/serviceAccount.tokens", "s3cret-b"),
            publish_context: map("ticket", "s3cret-c"),
            ..Default::default()
        };
        let shown = format!("{request:?}");
        for part in ["vol-1", "/target", "password", "serviceAccount.tokens", "ticket"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
