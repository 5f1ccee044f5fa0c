//! A node of our own: one containerd in its own mount and network namespaces and cgroup.
//!
//! Input: a version and the images to hold. Output: a running containerd with its socket in the
//! node's folder, and ways to run programs beside it. A holder process keeps the namespaces, so
//! that containerd may be killed and started again inside them. `/run` is private, and so are
//! `/var/lib/cni` and everything mounted later: nothing is left on the host but the folder and the
//! cgroup, and `Drop` removes both, also when a test panics. What a killed run leaves behind is
//! swept by the next one. The images are imported once per version into a template that every node
//! copies, because that is what start-up time would otherwise be spent on.

pub mod agent;
pub mod cgroups;
pub mod config;
pub mod http;
pub(crate) mod leftovers;
pub(crate) mod network;
pub mod process;
mod slices;

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

pub use self::leftovers::Leftovers;
use self::leftovers::Places;
use self::process::Shim;
use crate::cache;
use crate::image::set;
use crate::runtime::{Runtime, Version};
use crate::shell::{self, capture};

/// Folders of nodes start with this, followed by the maker's pid and a number.
const PREFIX: &str = "pintle-node-";
/// How long containerd may take until it answers on its socket.
const START_WAIT: Duration = Duration::from_secs(60);

/// Options that make a node differ from the usual one.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeKind {
    /// systemd makes the containers' cgroups.
    pub by_systemd: bool,
    /// All that the node sees of the machine's disk outside of its own folder is read-only, for
    /// tests in which the agent may be talked into removing what it should not.
    pub is_guarded: bool,
}

/// A running private containerd.
pub struct ContainerdNode {
    name: String,
    dir: PathBuf,
    by_systemd: bool,
    runtime: Runtime,
    holder: Child,
    containerd: Option<Child>,
}

impl ContainerdNode {
    /// Starts a node with the standard images; fetches and builds missing parts.
    pub fn start(version: Version) -> Result<Self> {
        Self::start_with(version, NodeKind::default())
    }

    /// The same for a node with these options.
    pub fn start_with(version: Version, kind: NodeKind) -> Result<Self> {
        let template = template(version)?;
        let node = Self::prepare(version, kind)?;
        let root = node.dir.join("containerd");
        capture(Command::new("cp").args(["-a", "--reflink=auto"]).arg(&template).arg(&root))?;
        node.boot()
    }

    /// The folder, the namespaces and the cgroup; containerd is not running yet.
    fn prepare(version: Version, kind: NodeKind) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        sweep();
        let runtime = Runtime::ensure(version)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(&name);
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        for sub in ["cni.d", "certs.d", "tmp"] {
            fs::create_dir_all(dir.join(sub))?;
        }
        fs::write(
            dir.join("containerd.toml"),
            config::containerd(&runtime, &dir, kind.by_systemd),
        )?;
        fs::write(dir.join("cni.d/10-pods.conflist"), config::network(&dir))?;
        let holder = hold(&name, &dir, kind.is_guarded)?;
        let by_systemd = kind.by_systemd;
        let node = Self { name, dir, by_systemd, runtime, holder, containerd: None };
        node.make_cgroup("")?;
        Ok(node)
    }

    fn boot(mut self) -> Result<Self> {
        self.start_containerd()?;
        Ok(self)
    }

    /// Starts containerd and waits until it answers; used again after it was killed.
    pub fn start_containerd(&mut self) -> Result<()> {
        assert!(self.containerd.is_none(), "one containerd per node");
        let log = self.log("containerd")?;
        let booted_before = self.boots();
        let mut cmd = self.command(&self.runtime.program("containerd"));
        cmd.arg("-c").arg(self.dir.join("containerd.toml"));
        cmd.stdout(log.try_clone()?).stderr(log);
        self.containerd = Some(cmd.spawn().context("start containerd")?);
        let deadline = Instant::now() + START_WAIT;
        while self.boots() == booted_before || UnixStream::connect(self.socket()).is_err() {
            let child = self.containerd.as_mut().expect("just started");
            if let Some(status) = child.try_wait()? {
                bail!("containerd ended: {status}\n{}", self.containerd_log());
            }
            if Instant::now() > deadline {
                bail!("containerd does not answer\n{}", self.containerd_log());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Number of containerd's starts in its log.
    fn boots(&self) -> usize {
        let log = fs::read_to_string(self.dir.join("containerd.log")).unwrap_or_default();
        log.matches("containerd successfully booted").count()
    }

    /// Kills containerd; shims and containers keep running.
    pub fn kill_containerd(&mut self) {
        if let Some(mut child) = self.containerd.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// containerd's process, while it runs.
    pub fn containerd_pid(&self) -> Option<u32> {
        self.containerd.as_ref().map(Child::id)
    }

    /// The node's name; also that of its cgroup as the agent's configuration has it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether systemd makes the containers' cgroups.
    pub fn is_by_systemd(&self) -> bool {
        self.by_systemd
    }

    /// Path of a cgroup below the root of each hierarchy. Its name is that below the node's own, as
    /// cgroupfs has it; an empty one is the node's own.
    pub fn cgroup(&self, below: &str) -> String {
        let name = format!("{}/{below}", self.name);
        let name = name.trim_end_matches('/');
        if self.by_systemd { format!("/{}", slices::path(name)) } else { format!("/{name}") }
    }

    /// Makes a cgroup of this name.
    pub fn make_cgroup(&self, below: &str) -> Result<()> {
        let name = format!("{}/{below}", self.name);
        let name = name.trim_end_matches('/');
        if self.by_systemd { slices::create(name) } else { cgroups::create(name) }
    }

    /// The node's folder: everything it writes lies below.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The runtime in use.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// containerd's socket; reachable from every namespace.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("c.sock")
    }

    /// containerd's state folder, with one bundle per container.
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// A command that runs inside the node's namespaces with the runtime's programs on PATH.
    ///
    /// The process has the returned child's pid: nsenter becomes the program.
    pub fn command(&self, program: &Path) -> Command {
        let mut cmd = Command::new("nsenter");
        cmd.args(["-t", &self.holder.id().to_string(), "-m", "-n", "--"]).arg(program);
        cmd.env("PATH", self.runtime.path()).env(process::MARK, &self.name);
        cmd.env("TMPDIR", self.dir.join("tmp"));
        cmd.stdin(Stdio::null());
        cmd
    }

    /// Runs containerd's own client in the namespace that CRI uses.
    pub fn ctr(&self, args: &[&str]) -> Result<String> {
        let mut cmd = self.command(&self.runtime.program("ctr"));
        cmd.arg("-a").arg(self.socket()).args(["-n", "k8s.io"]).args(args);
        capture(&mut cmd)
    }

    /// Imports images from an archive or an OCI layout folder.
    pub fn import(&self, images: &Path) -> Result<()> {
        if images.is_file() {
            return self.ctr(&["images", "import", &images.to_string_lossy()]).map(drop);
        }
        let pipe = "tar --create --directory=\"$1\" . | \"$2\" -a \"$3\" -n k8s.io images import -";
        let mut cmd = self.command(Path::new("bash"));
        cmd.args(["-o", "pipefail", "-c", pipe, "bash"]).arg(images);
        cmd.arg(self.runtime.program("ctr")).arg(self.socket());
        capture(&mut cmd).map(drop)
    }

    /// A TCP connection made inside the node's network.
    pub fn connect(&self, to: SocketAddr, limit: Duration) -> Result<TcpStream> {
        self.in_network(move || TcpStream::connect_timeout(&to, limit))?
            .with_context(|| format!("connect to {to} in {}", self.name))
    }

    /// Runs `work` on a thread of the node's network; sockets made there stay there.
    pub fn in_network<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        network::within(self.holder.id(), work).with_context(|| self.name.clone())
    }

    /// An append-only log file in the node's folder.
    pub fn log(&self, name: &str) -> Result<File> {
        let path = self.dir.join(format!("{name}.log"));
        let mut options = File::options();
        options.create(true).append(true);
        options.open(&path).with_context(|| format!("open {}", path.display()))
    }

    /// The end of containerd's log, for error messages.
    pub fn containerd_log(&self) -> String {
        let text = fs::read_to_string(self.dir.join("containerd.log")).unwrap_or_default();
        shell::tail(&text, 15)
    }

    /// Shims that run now.
    pub fn shims(&self) -> Vec<Shim> {
        process::shims(&self.name)
    }

    /// First process of a container or sandbox, by its id.
    pub fn container_pid(&self, id: &str) -> Option<i32> {
        let all = process::containers(&self.state());
        all.into_iter().find(|(found, _)| found == id).map(|(_, pid)| pid)
    }

    /// Resources that pods left behind, given the agent's root folder.
    pub fn leftovers(&self, agent_root: &Path, pod_logs: &Path) -> Result<Leftovers> {
        let (pods, state, logs) = (agent_root.join("pods"), self.state(), pod_logs.to_owned());
        let cgroup = self.cgroup("");
        let cgroup = cgroup.trim_start_matches('/');
        let places = Places { cgroup, mark: &self.name, pods, state, logs };
        leftovers::count(self.holder.id(), &places)
    }
}

impl Drop for ContainerdNode {
    fn drop(&mut self) {
        // `PINTLE_KEEP` keeps the folder for its logs, but nothing keeps running.
        self.kill_containerd();
        end_processes(&self.name, &self.dir);
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        let removed = remove_cgroups(&self.name);
        let removed = removed.and_then(|()| {
            if std::env::var_os("PINTLE_KEEP").is_some() {
                shell::say("kept", &self.dir.display().to_string());
                return Ok(());
            }
            cache::remove(&self.dir)
        });
        if let Err(error) = removed {
            shell::say("leftover", &format!("{error:#}"));
        }
    }
}

/// Starts the process that holds the namespaces: private mounts with propagation inside, loopback
/// up. Of the host's `/run` it shows the sockets of systemd and D-Bus, where systemd runs. With
/// `is_guarded`, the root file system is read-only but for the node's folder, which is a mount of
/// its own.
fn hold(name: &str, dir: &Path, is_guarded: bool) -> Result<Child> {
    let script = "mount --make-rshared / && mkdir -p /var/lib/cni && shown= && \
                  if [ -d /run/systemd/system ]; then shown='systemd dbus'; fi && \
                  for d in $shown; do mkdir -p $0/$d && mount --rbind /run/$d $0/$d; done && \
                  mount -t tmpfs -o mode=755 tmpfs /run && \
                  mount -t tmpfs -o mode=755 tmpfs /var/lib/cni && \
                  for d in $shown; do mkdir /run/$d && mount --rbind $0/$d /run/$d && \
                  umount -l $0/$d; done && \
                  if [ $2 = true ]; then mkdir -p /var/log/containers && \
                  mount -t tmpfs tmpfs /var/log/containers && mount --bind $1 $1 && \
                  mount -o remount,bind,ro / && ! touch /guarded 2>/dev/null; fi && \
                  ip link set lo up && echo ready && exec sleep infinity";
    let mut cmd = Command::new("unshare");
    cmd.args(["-mn", "--propagation", "private", "sh", "-c", script]);
    cmd.arg(dir.join("run")).arg(dir).arg(is_guarded.to_string());
    cmd.env(process::MARK, name).stdin(Stdio::null()).stdout(Stdio::piped());
    cmd.stderr(File::create(dir.join("holder.log"))?);
    let mut child = cmd.spawn().context("start unshare")?;
    let mut said = String::new();
    let stdout = child.stdout.take().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut said)?;
    if said.trim() != "ready" {
        let _ = child.wait();
        let text = fs::read_to_string(dir.join("holder.log")).unwrap_or_default();
        bail!("cannot make namespaces: {}", shell::tail(&text, 3));
    }
    Ok(child)
}

/// Ends containers, shims and all other processes with the node's mark.
fn end_processes(name: &str, dir: &Path) {
    for (id, pid) in process::containers(&dir.join("state")) {
        let group = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        // A bundle may outlive its process, and another process may have its pid by now.
        if group.contains(name) || group.contains("/k8s.io/") || group.contains(&id) {
            process::signal(pid, Signal::SIGKILL);
        }
    }
    // Twice: a process may have started another while the first list was read.
    for _ in 0..2 {
        for pid in process::marked(name) {
            process::signal(pid, Signal::SIGKILL);
        }
    }
}

/// Removes the node's cgroups, whoever made them.
fn remove_cgroups(name: &str) -> Result<()> {
    if cgroups::exists(&slices::path(name))? {
        slices::remove(name)?;
    }
    cgroups::remove(name)
}

/// Removes nodes of processes that have ended: a killed test run cannot clean up.
pub fn sweep() {
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let maker = name.strip_prefix(PREFIX).and_then(|n| n.split('-').next()?.parse().ok());
        let Some(maker) = maker else { continue };
        let maker: i32 = maker;
        if process::is_running(maker) {
            continue;
        }
        end_processes(&name, &entry.path());
        if let Err(error) = remove_cgroups(&name).and_then(|()| cache::remove(&entry.path())) {
            shell::say("leftover", &format!("{error:#}"));
        }
    }
}

/// containerd's root folder with the standard images imported, made once per version.
pub(crate) fn template(version: Version) -> Result<PathBuf> {
    let archive = set::archive()?;
    let kind = format!("template/{}", version.name());
    let template = RootTemplate { kind: &kind, digest: &archive.digest, version };
    template.ensure(|node| node.import(&archive.path).context("import the images"))
}

/// A root folder of containerd with images imported, in the cache.
pub(crate) struct RootTemplate<'a> {
    /// The kind of the cache's entry.
    pub(crate) kind: &'a str,
    /// The sum of the images.
    pub(crate) digest: &'a str,
    /// The containerd release that uses the root folder.
    pub(crate) version: Version,
}

impl RootTemplate<'_> {
    /// Returns the template, or builds it by an import on a temporary node.
    pub(crate) fn ensure(
        &self,
        import: impl FnOnce(&ContainerdNode) -> Result<()>,
    ) -> Result<PathBuf> {
        let dir = cache::content_entry(self.kind, self.digest, |staging, _| {
            let mut node = ContainerdNode::prepare(self.version, NodeKind::default())?.boot()?;
            import(&node)?;
            node.kill_containerd();
            let (from, to) = (node.dir.join("containerd"), staging.join("root"));
            capture(Command::new("cp").arg("-a").arg(from).arg(to)).map(drop)
        })?;
        Ok(dir.join("root"))
    }
}
