//! Compiles the services of `proto/runtime/v1/api.proto` with protox (no system protoc), over the
//! messages of `pintle-cri-v1`, and keeps the file descriptor set beside them for the JSON of tests.

use std::{env, error::Error, fs, path::PathBuf};

const PROTO: &str = "proto/runtime/v1/api.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let set = protox::Compiler::new(["proto"])?
        .include_source_info(true) // comments become rustdoc
        .open_file("runtime/v1/api.proto")?
        .file_descriptor_set();

    let mut bare = set.clone();
    bare.file.iter_mut().for_each(|file| file.source_code_info = None);
    fs::write(out.join("descriptor.bin"), protox::prost::Message::encode_to_vec(&bare))?;

    let mut config = tonic_prost_build::Config::new();
    config.extern_path(".runtime.v1", "::pintle_cri_v1");
    tonic_prost_build::configure()
        .build_server(env::var_os("CARGO_FEATURE_FAKE").is_some())
        .compile_fds_with_config(set, config)?;
    Ok(())
}
