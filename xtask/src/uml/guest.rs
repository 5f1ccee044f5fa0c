//! One guest: a User-Mode Linux kernel as a process of the host, with systemd inside.
//!
//! Input: what the guest is made of. Output: a machine that runs scripts and answers on its ports.
//! It has a network of its own, with a tap device between it and this process's side, and a mount
//! namespace of its own: both end with it, and nothing is left on the host but its folder, which
//! `Drop` removes. The kernel dies with the thread that booted it: one thread owns a guest. It stays
//! on one CPU: kernel and processes take turns, and two CPUs only add the way between them.
//! Scripts go over a TCP connection to a socket of systemd, one unit a script. The console's output
//! is in the folder, and its end is part of an error.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use super::{image, kernel};
use crate::node::network;
use crate::shell::{self, tail};
use crate::{apt, cache};

/// The address of a guest that has a network of its own, which is the same for all.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 213, 0, 2);
/// The host's address on the wire to the guest.
const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 213, 0, 1);
/// Where the guest listens for scripts.
const COMMAND_PORT: u16 = 7;
/// How long a guest may take to boot, alone 3 s.
const BOOT_WAIT: Duration = Duration::from_secs(180);
/// How long it may take to power off before it is killed.
const OFF_WAIT: Duration = Duration::from_secs(20);
/// How often is looked whether something has happened.
const PERIOD: Duration = Duration::from_millis(20);
/// At least as long as the last line of an answer, which is the exit code.
const LAST_LINE_BYTES: usize = 16;
/// Folders of guests start with this, followed by the maker's pid and a number.
const PREFIX: &str = "uml-run-";
/// Binds the kernel's own libc over the host's, makes the wire, and becomes the kernel. The binding
/// program is static: between two binds no other one could start.
const START: &str = r#"
busybox=$1 lib=$2 device=$3 host=$4 bridge=$5; shift 5
ip tuntap add dev "$device" mode tap
if [ -n "$bridge" ]; then
  ip link set "$device" master "$bridge"
else
  ip address add "$host/24" dev "$device"
  ip link set lo up
fi
ip link set "$device" up
libc=$(ls -d /lib/x86_64-linux-gnu /usr/lib64 2>/dev/null | head -n 1)
exec "$busybox" sh -ec '
  busybox=$1 lib=$2 libc=$3; shift 3
  if [ -n "$lib" ]; then
    "$busybox" mount --bind "$lib/libc.so.6" "$libc/libc.so.6"
    "$busybox" mount --bind "$lib/ld-linux-x86-64.so.2" /lib64/ld-linux-x86-64.so.2
  fi
  exec "$@"' sh "$busybox" "$lib" "$libc" "$@"
"#;

/// How a guest and its host reach each other.
#[derive(Clone, Debug)]
pub struct Wire {
    /// The process in whose network the tap device is; `None` for a network of the guest's own.
    pub network_of: Option<u32>,
    /// Name of the tap device.
    pub device: String,
    /// The bridge that the device is a port of; without one the device has the host's address.
    pub bridge: Option<String>,
    /// The guest's address, of a network of 24 bits.
    pub guest: Ipv4Addr,
    /// The host's address there, which is the guest's way out.
    pub host: Ipv4Addr,
}

impl Default for Wire {
    fn default() -> Self {
        let device = "tap0".to_owned();
        Self { network_of: None, device, bridge: None, guest: ADDRESS, host: HOST_ADDRESS }
    }
}

/// What a guest is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its memory, of which the host stores what it touches.
    pub memory_mib: u32,
    /// Folders of the host that it sees at the same paths, written through.
    pub shares: Vec<PathBuf>,
    /// Its network.
    pub wire: Wire,
}

impl Default for Options {
    fn default() -> Self {
        Self { memory_mib: 2048, shares: Vec::new(), wire: Wire::default() }
    }
}

/// What a script came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit code.
    pub code: i32,
    /// What it wrote to stdout and stderr.
    pub text: String,
}

/// A running guest.
pub struct Guest {
    dir: PathBuf,
    kernel: Child,
    address: Ipv4Addr,
}

impl Guest {
    /// Boots a guest and waits until it runs scripts; fetches and makes what is missing.
    pub fn boot(options: &Options) -> Result<Self> {
        apt::require_root("there is no other way: a guest has a tap device and mounts")?;
        let kernel = kernel::kernel()?;
        let root = image::root(&kernel)?;
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        sweep()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = cache::dir()?.join(format!("{PREFIX}{}.{number}", std::process::id()));
        cache::remove(&dir)?;
        fs::create_dir_all(&dir)?;
        let mut shares = String::new();
        for share in &options.shares {
            shares += &format!("{}\n", fs::canonicalize(share)?.display());
        }
        fs::write(dir.join("shares"), shares)?;
        let mut cmd = command(&kernel, &root, &dir, number, options)?;
        let kernel = cmd.spawn().with_context(|| format!("start {}", shell::line(&cmd)))?;
        let mut guest = Self { dir, kernel, address: options.wire.guest };
        guest.wait_until_booted()?;
        Ok(guest)
    }

    fn wait_until_booted(&mut self) -> Result<()> {
        let deadline = Instant::now() + BOOT_WAIT;
        loop {
            if let Some(status) = self.kernel.try_wait()? {
                bail!("the guest ended with {status}; {}", self.said());
            }
            match self.run("true") {
                Ok(output) if output.code == 0 => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    bail!("the guest does not boot: {error:#}; {}", self.said())
                }
                _ => thread::sleep(PERIOD),
            }
        }
    }

    /// The folder that the guest has at `/host`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs a shell script in the guest and waits for its end.
    pub fn run(&self, script: &str) -> Result<Output> {
        let mut stream = self.send(script)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).context("read the script's output")?;
        parse(&String::from_utf8_lossy(&answer))
            .with_context(|| format!("the guest broke off {script:?}"))
    }

    /// The same, with the output written to `out` while it comes; the exit code.
    pub fn stream(&self, script: &str, out: &mut impl Write) -> Result<i32> {
        let mut stream = self.send(script)?;
        // The end of the output is held back: the last line is the exit code.
        let (mut held, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            let read = stream.read(&mut buffer).context("read the script's output")?;
            held.extend_from_slice(&buffer[..read]);
            let ready = if read == 0 { 0 } else { held.len().saturating_sub(LAST_LINE_BYTES) };
            out.write_all(&held[..ready])?;
            out.flush()?;
            held.drain(..ready);
            if read == 0 {
                break;
            }
        }
        let end = parse(&String::from_utf8_lossy(&held))
            .with_context(|| format!("the guest broke off {script:?}; {}", self.said()))?;
        out.write_all(end.text.as_bytes())?;
        Ok(end.code)
    }

    fn send(&self, script: &str) -> Result<TcpStream> {
        let mut stream = self.connect(COMMAND_PORT)?;
        stream.write_all(script.as_bytes())?;
        stream.shutdown(Shutdown::Write)?;
        Ok(stream)
    }

    /// Runs a shell script that must succeed, and returns its output without the last newline.
    pub fn capture(&self, script: &str) -> Result<String> {
        let output = self.run(script)?;
        ensure!(output.code == 0, "exit {} of {script:?}: {}", output.code, output.text);
        Ok(output.text.trim_end().to_owned())
    }

    /// A TCP connection to a port of the guest.
    pub fn connect(&self, port: u16) -> Result<TcpStream> {
        let to = SocketAddr::from((self.address, port));
        network::within(self.kernel.id(), move || TcpStream::connect_timeout(&to, BOOT_WAIT))?
            .with_context(|| format!("connect to {to}"))
    }

    /// Switches the guest off as a user would, and waits for its end.
    pub fn power_off(mut self) -> Result<()> {
        // The unit that runs the script ends with all others.
        let _ = self.run("systemctl poweroff --no-block");
        let deadline = Instant::now() + OFF_WAIT;
        while self.kernel.try_wait()?.is_none() {
            ensure!(Instant::now() < deadline, "the guest does not power off; {}", self.said());
            thread::sleep(PERIOD);
        }
        Ok(())
    }

    /// What the console said last.
    pub fn said(&self) -> String {
        let text = fs::read(self.dir.join("console")).unwrap_or_default();
        format!("its console: {}", tail(&String::from_utf8_lossy(&text), 15))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.kernel.kill(); // it may have ended
        let _ = self.kernel.wait();
        if std::env::var_os("PINTLE_KEEP").is_some() {
            return shell::say("kept", &self.dir.display().to_string());
        }
        if let Err(error) = cache::remove(&self.dir) {
            shell::say("leftover", &format!("{error:#}"));
        }
    }
}

/// Removes folders of guests whose maker is gone.
pub fn sweep() -> Result<()> {
    cache::sweep(PREFIX)
}

/// The kernel's command line.
fn command(
    kernel: &kernel::Kernel,
    root: &Path,
    dir: &Path,
    number: usize,
    options: &Options,
) -> Result<Command> {
    let tools = crate::runtime::tools()?;
    let console = File::create(dir.join("console"))?;
    let mut cmd = Command::new("setpriv");
    cmd.args(["--pdeathsig", "KILL", "taskset", "--cpu-list", &cpu(number)?.to_string()]);
    let wire = &options.wire;
    match wire.network_of {
        Some(pid) => cmd.args(["nsenter", &format!("--net=/proc/{pid}/ns/net"), "unshare", "-m"]),
        None => cmd.args(["unshare", "-mn"]),
    };
    cmd.args(["--propagation", "private", "sh", "-ec", START, "sh"]);
    cmd.arg(tools.join("bin/busybox")).arg(kernel.libraries().unwrap_or_default());
    cmd.args([&wire.device, &wire.host.to_string(), wire.bridge.as_deref().unwrap_or_default()]);
    cmd.arg(kernel.program());
    let at = dir.display();
    cmd.arg(format!("umid=guest{number}")).arg(format!("uml_dir={at}/"));
    cmd.arg(format!("mem={}M", options.memory_mib)).arg("seccomp=on");
    cmd.arg("rootfstype=hostfs").arg(format!("rootflags={}", root.display()));
    cmd.args(["root=/dev/root", "ro", "init=/usr/sbin/guest-init", "panic=-1"]);
    cmd.args(["con=null", "con0=null,fd:1", "con1=null", "quiet", "psi=1"]);
    cmd.args(["systemd.unified_cgroup_hierarchy=1", "systemd.firstboot=off"]);
    cmd.arg(format!("vec0:transport=tap,ifname={},depth=128,gro=1", wire.device));
    cmd.arg(format!("guest.run={at}")).arg(format!("guest.address={}/24", wire.guest));
    cmd.arg(format!("guest.gateway={}", wire.host));
    // The guest's memory is a file there.
    cmd.env("TMPDIR", "/dev/shm").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    cmd.stdin(Stdio::null()).stdout(console.try_clone()?).stderr(console);
    Ok(cmd)
}

/// The CPU of the guest with this number: guests take turns on those that this process may use.
fn cpu(number: usize) -> Result<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).context("ask for this process's CPUs")?;
    let cpus: Vec<usize> =
        (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect();
    ensure!(!cpus.is_empty(), "this process may use no CPU");
    Ok(cpus[number % cpus.len()])
}

/// Reads output and the last line, `exit N`.
fn parse(answer: &str) -> Option<Output> {
    let (text, code) = answer.trim_end().rsplit_once("\nexit ")?;
    Some(Output { code: code.parse().ok()?, text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_is_read_from_the_last_line_only() {
        let output = |code, text: &str| Some(Output { code, text: text.to_owned() });
        assert_eq!(parse("\nexit 0\n"), output(0, ""));
        assert_eq!(parse("a\nexit 1\n\nexit 7\n"), output(7, "a\nexit 1\n"));
        assert_eq!(parse("a"), None);
        assert_eq!(parse("a\nexit \n"), None);
    }
}
