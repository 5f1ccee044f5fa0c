//! A CSI driver for tests: volumes are folders, or files behind loop devices, below one folder.
//!
//! ```text
//!   socket ─> identity, controller, snapshots, node ─> call ─> faults ─> state + disk ─> answer
//!                                                       └─────> log (a JSON line a call)
//! ```
//! In the order of a call:
//!   settings      flags: name, node, folders, and which capabilities are absent
//!   registration  plays node-driver-registrar
//!   authority     lets the kubelet's requests pass the HTTP library
//!   call          what surrounds each method: log, faults, the lock of the state
//!   faults        what goes wrong, read from a file that tests write; `doubled` sends answers twice
//!   lifecycle     the order of calls that CSI demands, checked
//!   state         all volumes and snapshots, in a file that the drivers of several nodes share
//!   disk, loops   folders, bind mounts, loop devices
//!   proxy         in place of all that: calls are handed to upstream's mock suites
//!   host_path     the flags of upstream's host-path driver, as settings; read by `go_flags`
//!   sidecar       stand-ins for node-driver-registrar and livenessprobe
//!   log           the record of all calls, and its reader for tests; `trace` is for upstream's
//!
//! It stands where upstream's suites run the host-path driver. Every volume is below `--state`, and
//! nothing is removed across a mount. Not for production: access to the socket is root.
#![forbid(unsafe_code)]

mod authority;
mod call;
mod capability;
mod controller;
mod disk;
mod doubled;
pub mod faults;
pub mod go_flags;
pub mod host_path;
mod identity;
mod lifecycle;
pub mod log;
mod loops;
mod node;
pub mod proxy;
mod registration;
mod settings;
pub mod sidecar;
mod snapshots;
mod state;
mod trace;
mod volumes;

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use pintle_plugins_v1::csi::controller_server::ControllerServer;
use pintle_plugins_v1::csi::identity_server::IdentityServer;
use pintle_plugins_v1::csi::node_server::NodeServer;
use pintle_plugins_v1::csi::volume_capability::access_mode::Mode;
use pintle_plugins_v1::csi::volume_capability::{AccessType, BlockVolume, MountVolume};
use pintle_plugins_v1::csi::{
    CapacityRange, CreateVolumeRequest, VolumeCapability, volume_capability,
};
use pintle_plugins_v1::registration::registration_server::RegistrationServer;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::Server;

use authority::Lenient;
use faults::FaultFile;
pub use settings::{Feature, Settings};

/// Serves until the process ends, or the future is dropped.
pub async fn serve(settings: Settings) -> Result<()> {
    let driver = call::Driver::open(settings)?;
    let settings = driver.settings();
    let faults = FaultFile::new(&settings.state);
    let service = Server::builder()
        .add_service(IdentityServer::new(driver.clone()))
        .add_service(ControllerServer::new(driver.clone()))
        .add_service(doubled::Doubled { service: NodeServer::new(driver.clone()), faults })
        .serve_with_incoming(listen(&settings.endpoint)?);
    let Some(socket) = settings.registration_socket() else {
        return Ok(service.await?);
    };
    let registration = Server::builder()
        .add_service(RegistrationServer::new(driver.clone()))
        .serve_with_incoming(listen(&socket)?);
    tokio::try_join!(service, registration)?;
    Ok(())
}

/// Makes a volume as CreateVolume does, beside or before the driver of that state folder; returns
/// its id.
pub fn create(state: &Path, name: &str, bytes: i64, is_block: bool) -> Result<String> {
    let flags = [("--state", state.to_owned()), ("--endpoint", state.join("none.sock"))];
    let words = flags.into_iter().flat_map(|(flag, path)| [flag.into(), path.into_os_string()]);
    let name_of_program = std::ffi::OsString::from("pintle-csi-driver");
    let settings = Settings::try_parse_from(std::iter::once(name_of_program).chain(words))?;
    let driver = call::Driver::open(settings)?;
    let access_type = match is_block {
        true => AccessType::Block(BlockVolume {}),
        false => AccessType::Mount(MountVolume::default()),
    };
    let mode = volume_capability::AccessMode { mode: Mode::MultiNodeMultiWriter.into() };
    let request = CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        volume_capabilities: vec![VolumeCapability {
            access_type: Some(access_type),
            access_mode: Some(mode),
        }],
        ..CreateVolumeRequest::default()
    };
    let subject = call::subject("CreateVolume", name, "");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(driver.serve(subject, request, volumes::create))?.into_inner();
    Ok(answer.volume.context("a volume")?.volume_id)
}

/// Ids of the volumes that a node has staged or published, by the driver's own state.
pub fn volumes_in_use(state: &Path) -> Result<Vec<String>> {
    let locked = state::StateFile::new(state).lock()?;
    let used = locked.state.volumes.iter().filter(|(_, volume)| volume.is_in_use());
    Ok(used.map(|(id, _)| id.clone()).collect())
}

/// Has no volume staged or published any more, as after a boot of all nodes. Mounts are the
/// caller's to take away.
pub fn forget_nodes(state: &Path) -> Result<()> {
    let mut locked = state::StateFile::new(state).lock()?;
    locked.state.volumes.values_mut().for_each(|volume| volume.nodes.clear());
    Ok(locked.save()?)
}

/// Listens where an earlier process may have left its socket.
fn listen(path: &Path) -> Result<impl Stream<Item = io::Result<Lenient>>> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let is_socket = |file: std::fs::Metadata| file.file_type().is_socket();
    if std::fs::symlink_metadata(path).is_ok_and(is_socket) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path);
    let listener = listener.with_context(|| format!("cannot listen at {}", path.display()))?;
    Ok(UnixListenerStream::new(listener).map(|stream| stream.map(Lenient::new)))
}
