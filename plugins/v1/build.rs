//! Compiles the messages of the plugin protocols with protox (no system protoc), and with the
//! feature `server` the services that plugins serve.

use std::{env, error::Error};

const PROTOS: &str = "proto";
/// What every build has.
const NODE: [&str; 2] = ["pluginregistration/api.proto", "csi/v1/node.proto"];
/// What only drivers serve.
const CONTROLLER: &str = "csi/v1/controller.proto";
/// Messages with secrets or tokens in them: `src/redact.rs` has their Debug.
const SECRET: [&str; 3] =
    ["NodeStageVolumeRequest", "NodePublishVolumeRequest", "NodeExpandVolumeRequest"];
/// The same of the controller's.
const SECRET_CONTROLLER: [&str; 9] = [
    "CreateVolumeRequest",
    "DeleteVolumeRequest",
    "ControllerPublishVolumeRequest",
    "ControllerUnpublishVolumeRequest",
    "ValidateVolumeCapabilitiesRequest",
    "CreateSnapshotRequest",
    "DeleteSnapshotRequest",
    "ListSnapshotsRequest",
    "ControllerExpandVolumeRequest",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTOS}");
    println!("cargo:rerun-if-changed=build.rs");
    let has_controller = env::var_os("CARGO_FEATURE_CONTROLLER").is_some();
    let mut compiler = protox::Compiler::new([PROTOS])?;
    compiler.include_source_info(true).include_imports(true); // comments become rustdoc
    compiler.open_files(NODE)?;
    if has_controller {
        compiler.open_file(CONTROLLER)?;
    }
    let mut config = prost_build::Config::new();
    // Maps in order: equal requests have equal bytes.
    config.btree_map(["."]).enable_type_names();
    // One call: a second one would replace the first one's list.
    let controller = SECRET_CONTROLLER.iter().filter(|_| has_controller);
    config.skip_debug(SECRET.iter().chain(controller).map(|name| format!(".csi.v1.{name}")));
    generate(config, compiler.file_descriptor_set())
}

#[cfg(not(feature = "server"))]
fn generate(
    mut config: prost_build::Config,
    set: protox::prost_reflect::prost_types::FileDescriptorSet,
) -> Result<(), Box<dyn Error>> {
    Ok(config.compile_fds(set)?)
}

#[cfg(feature = "server")]
fn generate(
    config: prost_build::Config,
    set: protox::prost_reflect::prost_types::FileDescriptorSet,
) -> Result<(), Box<dyn Error>> {
    let builder = tonic_prost_build::configure().build_client(false).build_server(true);
    Ok(builder.compile_fds_with_config(set, config)?)
}
