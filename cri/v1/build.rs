//! Compiles the messages of `runtime/v1/api.proto` with protox (no system protoc).

use std::error::Error;

const PROTOS: &str = "../proto";
const PROTO: &str = "runtime/v1/api.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTOS}/{PROTO}");
    println!("cargo:rerun-if-changed=build.rs");
    let set = protox::Compiler::new([PROTOS])?
        .include_source_info(true) // comments become rustdoc
        .open_file(PROTO)?
        .file_descriptor_set();
    // Maps in order: equal messages have equal bytes, so plans and recordings compare cheaply.
    prost_build::Config::new()
        .btree_map(["."])
        .skip_debug([".runtime.v1.AuthConfig"])
        .enable_type_names()
        .compile_fds(set)?;
    Ok(())
}
