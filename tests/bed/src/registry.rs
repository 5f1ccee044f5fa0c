//! A docker-registry inside a node's network, with a password, and a slow way to it.
//!
//! Its storage is written straight to disk (`Image::write_registry`), so the images it serves are
//! absent from containerd. containerd speaks plain HTTP to loopback addresses, so no certificate is
//! needed. Everything ends with the node, because it carries the node's mark.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use xtask::image::{Image, set};

use crate::TestNode;
use crate::wait::{LONG, until};

/// The user that may pull.
pub const USER: &str = "puller";
/// The user's password.
pub const PASSWORD: &str = "correct-horse";
/// `puller:correct-horse` with bcrypt at its lowest cost, as htpasswd writes it.
const HTPASSWD: &str = "puller:$2b$04$9OGt3QxNwmzTZPKvZePyCeqU7tubEs70RKJvByE6OTKG4LXBCCVei\n";

/// A running registry.
pub struct ImageRegistry {
    address: SocketAddr,
    storage: std::path::PathBuf,
}

impl ImageRegistry {
    /// Starts one at 127.0.0.1:`port` of the node, open to all or only to `USER`.
    pub fn start(node: &TestNode, port: u16, needs_password: bool) -> Result<Self> {
        let dir = node.dir().join(format!("registry-{port}"));
        let storage = dir.join("storage");
        fs::create_dir_all(&storage)?;
        fs::write(dir.join("htpasswd"), HTPASSWD)?;
        let auth =
            format!("auth:\n  htpasswd:\n    realm: test\n    path: {}/htpasswd\n", dir.display());
        let config = format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\n\
             http:\n  addr: 127.0.0.1:{port}\n{}",
            storage.display(),
            if needs_password { auth.as_str() } else { "" }
        );
        fs::write(dir.join("config.yml"), config)?;
        let node = node.runtime_node();
        let log = node.log(&format!("registry-{port}"))?;
        let mut cmd = node.command(&node.runtime().program("docker-registry"));
        cmd.arg("serve").arg(dir.join("config.yml")).stdout(log.try_clone()?).stderr(log);
        cmd.spawn().context("start docker-registry")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        until(LONG, "the registry listens", || node.connect(address, Duration::from_secs(1)));
        Ok(Self { address, storage })
    }

    /// Puts an image of `bytes` random bytes there and returns its reference for a pod.
    pub fn add(&self, repository: &str, tag: &str, bytes: usize) -> Result<Image> {
        let image = set::fat(&format!("{}/{repository}:{tag}", self.address), bytes)?;
        image.write_registry(&self.storage, repository, tag)?;
        Ok(image)
    }

    /// A second address of the same registry, limited to this number of bytes a second.
    pub fn slow_address(
        &self,
        node: &TestNode,
        port: u16,
        bytes_per_second: u32,
    ) -> Result<String> {
        let slow = format!("127.0.0.1:{port}");
        let mut cmd = node.runtime_node().command(&set::testbox()?);
        cmd.args(["throttle", &slow, &self.address.to_string(), &bytes_per_second.to_string()]);
        let mut child = cmd.stdout(Stdio::piped()).spawn().context("start the proxy")?;
        let stdout = child.stdout.take().ok_or_else(|| anyhow!("piped"))?;
        let mut said = String::new();
        BufReader::new(stdout).read_line(&mut said)?;
        anyhow::ensure!(said.trim() == "proxying", "the proxy said {said:?}");
        Ok(slow)
    }
}
