//! Requirements of the build on the host that cargo does not install.

use anyhow::Result;

use crate::apt::install_missing;

/// Names under which Debian installs a clang new enough for the kernel programs.
const CLANG: [&str; 9] = [
    "clang", "clang-16", "clang-19", "clang-21", "clang-20", "clang-18", "clang-17", "clang-15",
    "clang-14",
];

/// Installs the compilers that build scripts call: clang for the kernel programs, protoc for the
/// containerd API.
pub(super) fn build_tools() -> Result<()> {
    install_missing(&[(&CLANG, "clang"), (&["protoc"], "protobuf-compiler")])
}

/// Installs what a node needs besides its runtime: `ip`, `unshare` and `nsenter`.
pub(super) fn node_tools() -> Result<()> {
    install_missing(&[(&["ip"], "iproute2"), (&["nsenter"], "util-linux")])
}

/// Installs what compiles libFuzzer, which is C++.
pub(super) fn fuzz_tools() -> Result<()> {
    install_missing(&[(&["c++"], "g++")])
}
