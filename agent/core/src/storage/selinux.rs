//! The SELinux label that a volume is mounted with, so that its files need no relabelling.
//!
//! Input: the options of the containers that use the volume, its CSIDriver, the label that the host
//! gives to files of containers. Output: the label for `-o context=`, none, or a conflict. Pure.
//! Options without a level yield no label, because the runtime chooses the level of such a
//! container later. The kubelet mounts with a random level instead, which no container has.
// k8s: pkg/volume/util/selinux.go GetMountSELinuxLabel, VolumeSupportsSELinuxMount

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod, SELinuxOptions, SecurityContext};
use pintle_api_types::pod;
use pintle_api_types::pod::containers;
use serde::{Deserialize, Serialize};

use super::csi::{AccessMode, Lifecycle, Volume};
use super::driver::DriverSpec;

/// `seLinuxChangePolicy` of a pod with files that are relabelled one by one.
const RECURSIVE: &str = "Recursive";

/// The parts of a label, or of a container's options, where an unset part is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LabelParts {
    /// The user.
    pub user: String,
    /// The role.
    pub role: String,
    /// The type.
    pub kind: String,
    /// The level, with categories.
    pub level: String,
}

impl LabelParts {
    fn of(options: &SELinuxOptions) -> Self {
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        Self {
            user: text(&options.user),
            role: text(&options.role),
            kind: text(&options.type_),
            level: text(&options.level),
        }
    }

    /// Reads `user:role:type:level`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ':').map(str::to_owned);
        let mut next = || parts.next().filter(|part| !part.is_empty());
        let (user, role, kind) = (next()?, next()?, next()?);
        Some(Self { user, role, kind, level: next().unwrap_or_default() })
    }
}

/// The distinct options of a pod's containers that mount a volume.
// k8s: pkg/volume/util/util.go GetPodVolumeNames
pub fn options_of(pod: &Pod, volume: &str) -> Vec<LabelParts> {
    let spec = pod::spec(pod);
    let of_pod = spec.security_context.as_ref().and_then(|of| of.se_linux_options.as_ref());
    let effective = |own: Option<&SecurityContext>| {
        let own = own.and_then(|own| own.se_linux_options.as_ref());
        own.or(of_pod).map(LabelParts::of)
    };
    let mut found = BTreeSet::new();
    for (_, Container { volume_mounts, security_context, .. }) in containers::all(spec) {
        if volume_mounts.iter().flatten().any(|mount| mount.name == volume) {
            found.extend(effective(security_context.as_ref()));
        }
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        if container.volume_mounts.iter().flatten().any(|mount| mount.name == volume) {
            found.extend(effective(container.security_context.as_ref()));
        }
    }
    found.into_iter().collect()
}

/// The host's label of containers' files, from the text of `lxc_contexts`.
// k8s: github.com/opencontainers/selinux/go-selinux/selinux_linux.go loadLabels
pub fn file_label(text: &str) -> Option<LabelParts> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let mut pairs = lines.filter_map(|line| line.split_once('='));
    let (_, value) = pairs.find(|(key, _)| key.trim() == "file")?;
    LabelParts::parse(value.trim().trim_matches('"'))
}

/// The node's settings for labels of mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSettings {
    /// The host's label of containers' files; `None` where SELinux is off.
    pub files: Option<LabelParts>,
    /// Label volumes of all access modes, not only `ReadWriteOncePod`: the gate SELinuxMount.
    pub has_all_modes: bool,
}

/// Containers of a pod need one volume with different labels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("multiple SELinux labels found: {}", .0.join(","))]
pub struct SeveralLabels(pub Vec<String>);

impl LabelSettings {
    /// The label to mount a volume with; `None` if it is mounted without one.
    ///
    /// # Errors
    /// The containers that use the volume need different labels.
    pub fn mount_label(
        &self,
        volume: &Volume,
        driver: &DriverSpec,
        change_policy: Option<&str>,
    ) -> Result<Option<String>, SeveralLabels> {
        let Some(files) = &self.files else { return Ok(None) };
        let is_for_one_pod = volume.access_modes == [AccessMode::ReadWriteOncePod];
        let is_labelled = self.has_all_modes || is_for_one_pod;
        if volume.is_block || volume.lifecycle == Lifecycle::Ephemeral || !is_labelled {
            return Ok(None);
        }
        let labels = volume.labels.iter().map(|own| label(own, files));
        let labels: BTreeSet<String> = labels.collect();
        if labels.len() > 1 {
            return Err(SeveralLabels(labels.into_iter().collect()));
        }
        let is_wanted = driver.mounts_for_selinux && change_policy != Some(RECURSIVE);
        Ok(labels.into_iter().next().filter(|label| is_wanted && !label.is_empty()))
    }
}

/// The label of a container's files: user and level from its options, role and type from the host;
/// empty without a level.
// k8s: github.com/opencontainers/selinux/go-selinux/label/label_linux.go InitLabels
fn label(own: &LabelParts, files: &LabelParts) -> String {
    if own.level.is_empty() {
        return String::new();
    }
    let user = if own.user.is_empty() { &files.user } else { &own.user };
    format!("{user}:{}:{}:{}", files.role, files.kind, own.level)
}

/// The mount option of a label; quoted, because a level may have commas.
// k8s: pkg/volume/util/selinux.go AddSELinuxMountOption
pub fn mount_option(label: &str) -> String {
    format!("context={label:?}")
}

#[cfg(test)]
#[path = "selinux_tests.rs"]
mod tests;
