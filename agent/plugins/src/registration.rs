//! The calls to a plugin's registration socket, and the rules of what it may say there.
//!
//! Input: the socket, then what the plugin answers. Output: a `DriverCandidate`, or why there is
//! none in the kubelet's words, for the plugin to read. Every answer is checked before use: the
//! driver's name becomes a folder. Bounds: `INFO_MAX`, `NOTIFY_MAX`, `VERSIONS_MAX`.
// k8s: pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go

use std::path::{Path, PathBuf};
use std::time::Duration;

use pintle_plugins_v1::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};

use crate::error::{CallError, cut};
use crate::wire::{Endpoint, Method, SOCKET_PATH_BYTES_MAX};

/// Time limit of GetInfo. The kubelet grants 1 s after up to 10 s of dialling.
pub(crate) const INFO_MAX: Duration = Duration::from_secs(10);
/// Time limit of NotifyRegistrationStatus.
// k8s: operation_generator.go notifyTimeoutDuration
pub(crate) const NOTIFY_MAX: Duration = Duration::from_secs(5);
/// Versions that are looked at.
const VERSIONS_MAX: usize = 64;
/// Name of a CSI driver, in bytes.
// k8s: pkg/apis/core/validation/validation.go ValidateCSIDriverName
const NAME_BYTES_MAX: usize = 63;

/// Type of the plugins that are supported.
const CSI: &str = "CSIPlugin";
/// Types that the kubelet has besides.
const NOT_SUPPORTED: [&str; 2] = ["DevicePlugin", "DRAPlugin"];

const GET_INFO: Method =
    Method { name: "GetInfo", path: "/pluginregistration.Registration/GetInfo" };
const NOTIFY: Method = Method {
    name: "NotifyRegistrationStatus",
    path: "/pluginregistration.Registration/NotifyRegistrationStatus",
};

/// A CSI driver that asks for registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DriverCandidate {
    /// Name of the driver: a domain name, so no path.
    pub(crate) name: String,
    /// Socket of its Node service.
    pub(crate) endpoint: PathBuf,
}

/// Why a plugin is not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RegistrationRefusal {
    /// A type that the kubelet has and this agent has not.
    #[error("RegisterPlugin error -- plugin type {0} is not supported yet")]
    NotSupported(String),
    /// Another type.
    #[error("RegisterPlugin error -- no handler registered for plugin type: {0}")]
    Type(String),
    /// No name for a driver.
    #[error(
        "RegisterPlugin error -- plugin validation failed with err: {0:?} is no name of a CSI \
         driver: it has to be a domain name of at most 63 characters"
    )]
    Name(String),
    /// No socket can have this path.
    #[error(
        "RegisterPlugin error -- plugin validation failed with err: endpoint {0:?} of CSI driver \
         {1} is no absolute path of a unix socket"
    )]
    Endpoint(String, String),
    /// No version that is spoken here.
    #[error(
        "RegisterPlugin error -- plugin validation failed with err: validation failed for CSI \
         Driver {0}: none of the versions specified {1:?} are supported"
    )]
    Version(String, Vec<String>),
    /// Another socket has the name already and is newer.
    #[error(
        "RegisterPlugin error -- plugin validation failed with err: validation failed for CSI \
         Driver {0}: another driver with the same name is already registered by the newer \
         socket {1}"
    )]
    Taken(String, String),
}

/// Asks the plugin behind a socket what it is.
pub(crate) async fn ask(socket: &Path) -> Result<PluginInfo, CallError> {
    Endpoint::new(socket).call(GET_INFO, &InfoRequest {}, INFO_MAX).await
}

/// Reports the result of its registration to a plugin; `error` is empty when it is registered.
pub(crate) async fn notify(socket: &Path, error: &str) -> Result<(), CallError> {
    let plugin_registered = error.is_empty();
    let status = RegistrationStatus { plugin_registered, error: error.to_owned() };
    let _: RegistrationStatusResponse =
        Endpoint::new(socket).call(NOTIFY, &status, NOTIFY_MAX).await?;
    Ok(())
}

/// Checks what a plugin says about itself.
pub(crate) fn check(
    info: &PluginInfo,
    socket: &Path,
) -> Result<DriverCandidate, RegistrationRefusal> {
    match info.r#type.as_str() {
        CSI => {}
        other if NOT_SUPPORTED.contains(&other) => {
            return Err(RegistrationRefusal::NotSupported(other.to_owned()));
        }
        other => return Err(RegistrationRefusal::Type(cut(other).to_owned())),
    }
    let name = info.name.clone();
    if !is_driver_name(&name) {
        return Err(RegistrationRefusal::Name(cut(&name).to_owned()));
    }
    let endpoint = match info.endpoint.as_str() {
        "" => socket.to_owned(),
        text => PathBuf::from(text.strip_prefix("unix://").unwrap_or(text)),
    };
    if !endpoint.is_absolute() || endpoint.as_os_str().len() >= SOCKET_PATH_BYTES_MAX {
        return Err(RegistrationRefusal::Endpoint(cut(&info.endpoint).to_owned(), name));
    }
    let mut versions = info.supported_versions.iter().take(VERSIONS_MAX);
    if !versions.any(|version| is_version_1(version)) {
        let said = info.supported_versions.iter().take(VERSIONS_MAX);
        let said = said.map(|version| version.chars().take(32).collect()).collect();
        return Err(RegistrationRefusal::Version(name, said));
    }
    Ok(DriverCandidate { name, endpoint })
}

/// Returns whether a name is a DNS subdomain, in whatever case, of the length that CSI allows.
fn is_driver_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_end = |end: Option<&u8>| end.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = label.as_bytes();
        is_end(bytes.first())
            && is_end(bytes.last())
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
    };
    name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label)
}

/// Returns whether a version is one of 1.x, as Go's generic versions are read.
// k8s: k8s.io/apimachinery/pkg/util/version/version.go ParseGeneric, HighestSupportedVersion
fn is_version_1(text: &str) -> bool {
    let text = text.trim_ascii_start();
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let mut parts = text[..end].split('.');
    let is_one = parts.next() == Some("1");
    // What follows the numbers does not matter, but there are two of them at least.
    let minor = parts.next().unwrap_or_default();
    is_one && !minor.is_empty() && minor.parse::<u64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, versions: &[&str]) -> PluginInfo {
        PluginInfo {
            r#type: CSI.to_owned(),
            name: name.to_owned(),
            endpoint: "/plugins/x/csi.sock".to_owned(),
            supported_versions: versions.iter().map(ToString::to_string).collect(),
        }
    }

    fn checked(info: &PluginInfo) -> Result<DriverCandidate, RegistrationRefusal> {
        check(info, Path::new("/registry/x-reg.sock"))
    }

    #[test]
    fn driver_is_a_candidate_only_if_it_supports_a_1_x_version() {
        for versions in [&["1.0.0"][..], &["0.3.0", "1.2"], &["v1.9.0-rc1"], &["2.0.0", "1.0"]] {
            let candidate = checked(&info("csi.example.com", versions)).expect("a candidate");
            assert_eq!(candidate.name, "csi.example.com");
            assert_eq!(candidate.endpoint, Path::new("/plugins/x/csi.sock"));
        }
        for versions in [&[][..], &["1"], &["0.9.0"], &["2.0.0"], &["x"], &["11.0"], &["1."]] {
            let refused = checked(&info("csi.example.com", versions));
            assert!(
                matches!(refused, Err(RegistrationRefusal::Version(..))),
                "{versions:?}: {refused:?}"
            );
        }
    }

    #[test]
    fn a_name_that_could_lead_out_of_a_folder_is_refused() {
        for name in ["a", "A.b-C.d0", &"x".repeat(63)] {
            assert!(checked(&info(name, &["1.0.0"])).is_ok(), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a..b", "-a", "a-", "a_b", "a\0b", &"x".repeat(64)] {
            let refused = checked(&info(name, &["1.0.0"]));
            assert_eq!(refused, Err(RegistrationRefusal::Name(name.to_owned())));
        }
    }

    #[test]
    fn an_endpoint_is_a_path_that_the_kernel_takes() {
        let endpoint = |endpoint: &str| {
            let endpoint = endpoint.to_owned();
            checked(&PluginInfo { endpoint, ..info("a", &["1.0"]) }).map(|c| c.endpoint)
        };
        assert_eq!(endpoint(""), Ok("/registry/x-reg.sock".into()));
        assert_eq!(endpoint("unix:///run/a.sock"), Ok("/run/a.sock".into()));
        let longest = format!("/{}", "x".repeat(SOCKET_PATH_BYTES_MAX - 2));
        assert_eq!(endpoint(&longest), Ok(longest.clone().into()));
        for text in ["relative", "tcp://1.2.3.4:5", &format!("{longest}x")] {
            assert!(matches!(endpoint(text), Err(RegistrationRefusal::Endpoint(..))), "{text}");
        }
    }

    #[test]
    fn plugins_of_other_types_are_refused_with_their_type() {
        let refused = |r#type: &str| {
            let info = PluginInfo { r#type: r#type.to_owned(), ..info("a", &["1.0"]) };
            checked(&info).expect_err("refused").to_string()
        };
        let text = "RegisterPlugin error -- plugin type DRAPlugin is not supported yet";
        assert_eq!(refused("DRAPlugin"), text);
        assert!(refused("").starts_with("RegisterPlugin error -- no handler registered"));
    }
}
