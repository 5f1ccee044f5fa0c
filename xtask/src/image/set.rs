//! The images that demo and tests use: pause, busybox and box.
//!
//! - `pintle.test/pause:1`: the sandbox, `box pause`
//! - `pintle.test/busybox:1`: a shell with the usual tools
//! - `pintle.test/box:1`: busybox plus `/box`, our program of many test behaviours (tests/testbox)
//!
//! The archive is in the cache, named by its content: another testbox gives another archive and
//! with it another template. testbox is linked statically so that it runs in an empty image; with
//! the C library that Rust's default target has, because the musl target may not be installed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use oci_spec::image::{Config, ConfigBuilder};

use super::tar::Tar;
use super::{Image, sha256};
use crate::node::config::PAUSE;
use crate::runtime::{Runtime, Version};
use crate::shell::{capture, cargo};
use crate::{cache, repository};

/// The busybox image.
pub const BUSYBOX: &str = "pintle.test/busybox:1";
/// The image with both busybox and testbox.
pub const BOX: &str = "pintle.test/box:1";
/// PATH inside the images.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// An image archive in the cache.
#[derive(Clone)]
pub struct Archive {
    /// The file, ready for import.
    pub path: PathBuf,
    /// Its SHA-256.
    pub digest: String,
}

/// The standard images as one archive; made at most once in a process.
pub fn archive() -> Result<Archive> {
    static MADE: Mutex<Option<Archive>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(archive) = &*made {
        return Ok(archive.clone());
    }
    let bytes = super::archive(&images()?)?;
    let digest = sha256(&bytes);
    let dir = cache::content_entry("images", &digest, |staging, _| {
        fs::write(staging.join("images.tar"), &bytes).context("write the image archive")
    })?;
    Ok(made.insert(Archive { path: dir.join("images.tar"), digest }).clone())
}

/// The standard images in memory.
pub fn images() -> Result<Vec<Image>> {
    let busybox = busybox_layer()?;
    let testbox = fs::read(testbox()?).context("read testbox")?;
    let mut tar = Tar::default();
    tar.file("box", 0o755, &testbox);
    let testbox = tar.finish();
    Ok(vec![
        Image::new(PAUSE, command(&["/box", "pause"])?, vec![testbox.clone()])?,
        Image::new(BUSYBOX, command(&["sh"])?, vec![busybox.clone()])?,
        Image::new(BOX, command(&["/box", "pause"])?, vec![busybox, testbox])?,
    ])
}

/// An image of its own name that holds `bytes` of data beside testbox, for pull tests.
pub fn fat(reference: &str, bytes: usize) -> Result<Image> {
    let mut tar = Tar::default();
    tar.file("box", 0o755, &fs::read(testbox()?).context("read testbox")?);
    // Not compressible and not equal from image to image: the name is the seed.
    let mut state = u64::from_le_bytes(sha256(reference.as_bytes()).as_bytes()[..8].try_into()?);
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    });
    tar.file("data", 0o644, &noise.take(bytes).collect::<Vec<u8>>());
    Image::new(reference, command(&["/box", "pause"])?, vec![tar.finish()])
}

/// The static test program: `PINTLE_TESTBOX`, else built when its source is newer than it.
pub fn testbox() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("PINTLE_TESTBOX") {
        return Ok(path.into());
    }
    let target = repository().join("target/testbox");
    let mut cargo = cargo(&["build", "--quiet", "--release", "--package", "pintle-testbox"]);
    cargo.arg("--target-dir").arg(&target);
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static").env_remove("CARGO_ENCODED_RUSTFLAGS");
    capture(&mut cargo).context("build testbox")?;
    Ok(target.join("release/testbox"))
}

fn command(args: &[&str]) -> Result<Config> {
    let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
    Ok(ConfigBuilder::default().cmd(args).env(vec![PATH.to_owned()]).build()?)
}

/// busybox and a link for each of its tools, with the folders that programs expect.
fn busybox_layer() -> Result<Vec<u8>> {
    let program = Runtime::ensure(Version::V2_1)?.program("busybox");
    let mut tar = Tar::default();
    tar.dir("tmp", 0o1777);
    for dir in ["etc", "home", "root", "var"] {
        tar.dir(dir, 0o755);
    }
    tar.file("etc/passwd", 0o644, b"root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n");
    tar.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n");
    tar.file("bin/busybox", 0o755, &fs::read(&program).context("read busybox")?);
    for tool in capture(Command::new(&program).arg("--list"))?.lines() {
        if tool != "busybox" {
            tar.symlink(&format!("bin/{tool}"), "busybox");
        }
    }
    Ok(tar.finish())
}
