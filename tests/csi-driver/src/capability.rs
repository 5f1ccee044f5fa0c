//! What a call says about the use of a volume, read and checked.

use pintle_plugins_v1::csi::VolumeCapability;
use pintle_plugins_v1::csi::volume_capability::access_mode::Mode;
use pintle_plugins_v1::csi::volume_capability::{AccessType, MountVolume};
use tonic::Status;

/// How a volume is to be used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wish {
    /// As a file system, with these options; otherwise as a device.
    pub(crate) mount: Option<MountVolume>,
    pub(crate) mode: Mode,
}

impl Wish {
    pub(crate) fn read(capability: Option<&VolumeCapability>) -> Result<Self, Status> {
        let missing = |what: &str| Status::invalid_argument(format!("{what} is missing"));
        let capability = capability.ok_or_else(|| missing("volume capability"))?;
        let mode = capability.access_mode.as_ref().ok_or_else(|| missing("access mode"))?.mode();
        if mode == Mode::Unknown {
            return Err(Status::invalid_argument("unknown access mode"));
        }
        match &capability.access_type {
            None => Err(missing("access type")),
            Some(AccessType::Block(_)) => Ok(Self { mount: None, mode }),
            Some(AccessType::Mount(mount)) => Ok(Self { mount: Some(mount.clone()), mode }),
        }
    }

    pub(crate) fn is_block(&self) -> bool {
        self.mount.is_none()
    }

    /// Returns whether several nodes may use the volume at once.
    pub(crate) fn is_multi_node(&self) -> bool {
        matches!(
            self.mode,
            Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter
        )
    }

    /// A text that is equal for equal wishes.
    pub(crate) fn text(&self) -> String {
        format!("{self:?}")
    }
}

/// Refuses an empty field.
pub(crate) fn required<'a>(text: &'a str, what: &str) -> Result<&'a str, Status> {
    match text {
        "" => Err(Status::invalid_argument(format!("{what} is missing"))),
        text => Ok(text),
    }
}
