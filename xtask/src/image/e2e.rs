//! The images that the nodes of a cluster have from the start, and that its registry serves.
//!
//! Upstream's suites name images of a registry that a test host does not reach, so each is made
//! here, with the programs that the suites use of it: agnhost and nginx on a small Debian, busybox
//! with every applet, and so on. One OCI layout in the cache with shared layers, rebuilt when the
//! programs inside change.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use oci_spec::image::{Config, ConfigBuilder};

use super::layout::Layout;
use super::{Blob, parts, set, sha256};
use crate::cache;
use crate::cluster::config::{COREDNS, PAUSE};
use crate::shell::{capture, timed};
use crate::upstream::{self, Program};

/// Changes whenever the recipe below does.
const RECIPE: &str = "5";
/// Registry folder of the suites' own images.
const REGISTRY: &str = "registry.k8s.io/e2e-test-images";
/// PATH inside the images.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// nginx as its own image has it: logs to the terminal, pages in the usual folder.
const NGINX: &str = "error_log /dev/stderr;\nevents {}\nhttp {\n  include /etc/nginx/mime.types;\n  \
    access_log /dev/stdout;\n  server {\n    listen 80;\n    listen [::]:80;\n    \
    location / { root /usr/share/nginx/html; index index.html; }\n  }\n}\n";

/// nsenter for tests of a node's mounts: upstream's own node has a process 1, ours shares the
/// machine's; its containerd has the node's mounts.
// k8s: test/e2e/storage/utils/host_exec.go
const NSENTER: &str = r#"#!/bin/sh
socket=run/containerd/containerd.sock
inode() { stat -c %d:%i "$1/$socket" 2>/dev/null; }
if [ "$1" = --mount=/rootfs/proc/1/ns/mnt ]; then
    for process in /rootfs/proc/[0-9]*; do
        [ "$(cat "$process/comm" 2>/dev/null)" = containerd ] || continue
        [ "$(inode "$process/root")" = "$(inode /rootfs)" ] || continue
        shift
        exec /usr/bin/nsenter --mount="$process/ns/mnt" "$@"
    done
fi
exec /usr/bin/nsenter "$@"
"#;

/// The layout's folder, and a sum that changes when it does.
pub fn layout() -> Result<(PathBuf, String)> {
    let testbox = fs::read(set::testbox()?).context("read testbox")?;
    let recipe = format!("{RECIPE} {} {} {}", parts::RECIPE, upstream::stamp()?, sha256(&testbox));
    let digest = sha256(recipe.as_bytes());
    let dir = cache::content_entry("cluster-images", &digest, |staging, _| {
        Writer::create(staging)?.write()
    })?;
    Ok((dir, digest))
}

/// Fetches the parts of the images that are not upstream's programs.
pub(crate) fn fetch_parts() -> Result<()> {
    parts::debian()?;
    parts::busybox().map(drop)
}

/// Parts of the images while they are built.
struct Writer {
    layout: Layout,
    work: PathBuf,
    debian: Blob,
    busybox: Blob,
    agnhost: Blob,
}

impl Writer {
    /// The large layers, which several images share.
    fn create(dir: &Path) -> Result<Self> {
        let (rootfs, tools) = (parts::debian()?, parts::busybox()?);
        let agnhost = Program::Agnhost.ensure()?;
        let layout = Layout::create(dir)?;
        let work = dir.join("work");
        timed("make", "the layers of the suites' images", || {
            let debian = layout.layer(&rootfs)?;
            let busybox = layer(&layout, &work, |root| fill_busybox(root, &tools))?;
            let agnhost = layer(&layout, &work, |root| {
                fill_agnhost(root, &rootfs, &agnhost)?;
                let nsenter = "usr/local/sbin/nsenter";
                put(root, nsenter, NSENTER)?;
                fs::set_permissions(root.join(nsenter), Permissions::from_mode(0o755))?;
                // The suite of one node stamps its lines with it, and upstream's image has it.
                copy(root, "usr/bin/nmeter", &tools, 0o755)
            })?;
            Ok(Self { layout, work: work.clone(), debian, busybox, agnhost })
        })
    }

    fn write(mut self) -> Result<()> {
        self.cluster()?;
        self.suites()?;
        self.web()?;
        cache::remove(&self.work)?;
        self.layout.finish()
    }

    /// Images of the cluster's own pods.
    fn cluster(&mut self) -> Result<()> {
        let pause = self.program("pause", &set::testbox()?, 0o755)?;
        let config =
            config().user("65535:65535").entrypoint(words(&["/pause", "pause"])).build()?;
        for name in [PAUSE, "registry.k8s.io/pause:3.10"] {
            self.layout.image(name, config.clone(), std::slice::from_ref(&pause))?;
        }
        let coredns = self.program("coredns", &Program::CoreDns.ensure()?, 0o755)?;
        self.layout.image(COREDNS, entry(&["/coredns"], &[])?, &[coredns])
    }

    /// Images that tests run commands in.
    fn suites(&mut self) -> Result<()> {
        let (system, busybox) = ([self.debian.clone()], self.busybox.clone());
        let gainer = Program::NoNewPrivs.ensure()?;
        let gainer = self.program("usr/local/bin/nnp", &gainer, 0o6755)?;
        let etcd = self.program("usr/local/bin/etcd", &etcd()?, 0o755)?;
        let api = self.program("sample-apiserver", &Program::SampleApiServer.ensure()?, 0o755)?;
        let shell = [busybox.clone()];
        let nonroot = config().user("1234").cmd(words(&["sh"])).build()?;
        for (name, config, layers) in [
            ("busybox:1.37.0-1", command(&["sh"])?, &shell[..]),
            ("busybox:1.36.1-1", command(&["sh"])?, &shell),
            ("nonroot:1.5", nonroot, &shell),
            ("nonewprivs:1.4", command(&["/usr/local/bin/nnp"])?, &[busybox.clone(), gainer]),
            ("glibc-dns-testing:2.0.0", command(&["sleep", "infinity"])?, &system),
            ("ipc-utils:1.4", command(&["sleep", "infinity"])?, &system),
            ("sample-apiserver:1.29.2", entry(&["/sample-apiserver"], &[])?, &[api]),
        ] {
            self.layout.image(&format!("{REGISTRY}/{name}"), config, layers)?;
        }
        self.layout.image("registry.k8s.io/etcd:3.6.8-0", command(&["etcd"])?, &[busybox, etcd])
    }

    /// Images that tests call over the network.
    fn web(&mut self) -> Result<()> {
        let server = [self.debian.clone(), self.agnhost.clone()];
        // Tests of credentials run a registry of it, of which they pull.
        let registry = layer(&self.layout, &self.work, |root| {
            self.layout.serve(PAUSE, &root.join("var/registry"), "pause", "testing")
        })?;
        for version in ["2.63.0", "2.55"] {
            let name = format!("{REGISTRY}/agnhost:{version}");
            let layers = [&server[..], std::slice::from_ref(&registry)].concat();
            self.layout.image(&name, entry(&["/agnhost"], &["pause"])?, &layers)?;
        }
        for pet in ["nautilus", "kitten"] {
            let picture = layer(&self.layout, &self.work, |root| {
                // The original images are Alpine, and a test looks for that name.
                put(root, "etc/os-release", "NAME=\"Alpine Linux\"\nID=alpine\n")?;
                put(root, "data.json", format!("{{ \"image\": \"{pet}.jpg\" }}\n"))?;
                put(root, &format!("{pet}.jpg"), "jpg")
            })?;
            let [debian, agnhost] = server.clone();
            let config = entry(&["/agnhost"], &["test-webserver"])?;
            self.layout.image(
                &format!("{REGISTRY}/{pet}:1.8"),
                config,
                &[debian, agnhost, picture],
            )?;
        }
        for version in ["1.27-0", "1.15-4"] {
            let nginx = layer(&self.layout, &self.work, |root| {
                put(root, "etc/nginx/nginx.conf", NGINX)?;
                put(root, "etc/nginx/version", version)
            })?;
            let config = command(&["nginx", "-g", "daemon off;"])?;
            let name = format!("{REGISTRY}/nginx:{version}");
            self.layout.image(&name, config, &[self.debian.clone(), nginx])?;
        }
        Ok(())
    }

    /// A layer of one program.
    fn program(&self, path: &str, from: &Path, mode: u32) -> Result<Blob> {
        layer(&self.layout, &self.work, |root| copy(root, path, from, mode))
    }
}

/// etcd is a part of the combined binary; the links beside it are relative.
fn etcd() -> Result<PathBuf> {
    Ok(fs::canonicalize(Program::Components.ensure()?.join("etcd"))?)
}

/// Fills a folder and makes a layer of it.
pub(super) fn layer(
    layout: &Layout,
    work: &Path,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<Blob> {
    cache::remove(work)?;
    fs::create_dir_all(work)?;
    fs::set_permissions(work, Permissions::from_mode(0o755))?;
    fill(work)?;
    layout.layer(work)
}

/// Every applet under its own name, and the folders that programs expect.
fn fill_busybox(root: &Path, program: &Path) -> Result<()> {
    for dir in ["bin", "etc", "home", "root", "tmp", "usr/bin", "var/www"] {
        fs::create_dir_all(root.join(dir))?;
    }
    fs::set_permissions(root.join("tmp"), Permissions::from_mode(0o1777))?;
    copy(root, "bin/busybox", program, 0o755)?;
    for applet in capture(Command::new(program).arg("--list"))?.lines() {
        if applet != "busybox" {
            symlink("/bin/busybox", root.join("bin").join(applet))?;
        }
    }
    let users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n";
    put(root, "etc/passwd", users)?;
    put(root, "etc/group", "root:x:0:\nnobody:x:65534:\n")
}

/// Writes agnhost, the files that it serves over TLS, and the users that tests of groups need.
fn fill_agnhost(root: &Path, debian: &Path, program: &Path) -> Result<()> {
    copy(root, "agnhost", program, 0o755)?;
    symlink("agnhost", root.join("agnhost-2"))?;
    fs::create_dir(root.join("uploads"))?;
    for file in ["localhost.crt", "localhost.key"] {
        let path = format!("test/images/agnhost/porter/{file}");
        copy(root, file, &upstream::module_file("k8s.io/kubernetes", &path)?, 0o644)?;
    }
    let (passwd, group) = ("etc/passwd", "etc/group");
    let user = "user-defined-in-image:x:1000:1000::/home:/bin/sh\n";
    put(root, passwd, fs::read_to_string(debian.join(passwd))? + user)?;
    let groups = "user-defined-in-image:x:1000:\n\
                  group-defined-in-image:x:50000:user-defined-in-image\n";
    put(root, group, fs::read_to_string(debian.join(group))? + groups)
}

fn put(root: &Path, path: &str, text: impl AsRef<[u8]>) -> Result<()> {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("it has a folder"))?;
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    Ok(fs::set_permissions(path, Permissions::from_mode(0o644))?)
}

pub(super) fn copy(root: &Path, path: &str, from: &Path, mode: u32) -> Result<()> {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("it has a folder"))?;
    fs::copy(from, &path).with_context(|| format!("copy {}", from.display()))?;
    Ok(fs::set_permissions(path, Permissions::from_mode(mode))?)
}

pub(super) fn config() -> ConfigBuilder {
    ConfigBuilder::default().env(words(&[PATH]))
}

fn command(args: &[&str]) -> Result<Config> {
    Ok(config().cmd(words(args)).build()?)
}

fn entry(program: &[&str], args: &[&str]) -> Result<Config> {
    Ok(config().entrypoint(words(program)).cmd(words(args)).build()?)
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}
