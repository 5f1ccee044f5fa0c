//! Compiles bpf/pods.bpf.c with clang into OUT_DIR/pods.bpf.o, which src/load.rs embeds.
//!
//! Input: clang (from PINTLE_CLANG, or the first of a few names on PATH), 14 or newer with the bpf
//! target. The object holds relocations, not offsets, so it is built without kernel headers and
//! runs on any kernel with BTF. C and not Rust for this side: stable Rust can neither emit these
//! relocations nor target bpf.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "bpf/pods.bpf.c";
const HEADER: &str = "bpf/kernel.h";
const CLANG_NAMES: [&str; 9] = [
    "clang", "clang-16", "clang-19", "clang-21", "clang-20", "clang-18", "clang-17", "clang-15",
    "clang-14",
];
const REMEDY: &str = "run `cargo xtask` (it installs what is missing), or install it \
                      (Debian: apt-get install clang-16), or name one in PINTLE_CLANG";

fn main() {
    for input in [SOURCE, HEADER] {
        println!("cargo::rerun-if-changed={input}");
    }
    println!("cargo::rerun-if-env-changed=PINTLE_CLANG");
    if let Err(message) = compile() {
        println!("cargo::error={message}");
        std::process::exit(1);
    }
}

fn compile() -> Result<(), Box<dyn Error>> {
    let clang = clang()?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let output = Command::new(&clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-c", SOURCE, "-o"])
        .arg(out.join("pods.bpf.o"))
        .output()
        .map_err(|error| format!("{} did not start: {error}; {REMEDY}", clang.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim_end().replace('\n', "\ncargo::error=");
    Err(format!("{} could not compile ebpf/{SOURCE}:\ncargo::error={said}", clang.display()).into())
}

fn clang() -> Result<PathBuf, Box<dyn Error>> {
    if let Some(named) = std::env::var_os("PINTLE_CLANG") {
        let named = PathBuf::from(named);
        return match starts(&named) {
            true => Ok(named),
            false => Err(format!("PINTLE_CLANG={} does not run; {REMEDY}", named.display()).into()),
        };
    }
    CLANG_NAMES
        .iter()
        .map(PathBuf::from)
        .find(|name| starts(name))
        .ok_or_else(|| format!("clang is needed to build the eBPF programs; {REMEDY}").into())
}

fn starts(program: &Path) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}
