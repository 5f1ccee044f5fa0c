//! `cargo xtask vm [OPTION...] -- CMD`: runs a command in a guest with cgroup v2.
//!
//! The guest is emulated, because a stock kernel does not run under every host's KVM: booting takes
//! seconds, starting a process is 10 to 50 times slower than on the host. It sees the host's root
//! read-only with its own writes in memory on top; only the shared folder (the current one) is
//! written through. The command's output appears here while it runs, and its exit code is ours.
//!
//! Options: `--seconds N`, after which it gives up (300); `--share DIR`, the folder written
//! through; `--memory MIB` (2048); `--cpus N` (1); `--systemd`, which makes systemd process 1;
//! `--disk FILE`, which the guest sees as `/dev/vdb`.
//!
//! The variables that tests read (`PINTLE_AGENT`, `PINTLE_TESTBOX`, `PINTLE_CACHE`,
//! `PINTLE_PATIENCE`) are handed on: build on the host, run in the guest.

mod prepare;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::shell::{say, tail};
use crate::{apt, cache};

/// Paths of QEMU's file server in Debian.
const VIRTIOFSD: [&str; 2] = ["/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd"];
/// Polling period of the output.
const PERIOD: Duration = Duration::from_millis(100);
/// How long the file server may take to listen.
const SERVER_WAIT: Duration = Duration::from_secs(10);
/// Variables that the guest's command gets from here.
const HANDED_ON: [&str; 6] = [
    "PINTLE_AGENT",
    "PINTLE_TESTBOX",
    "PINTLE_CACHE",
    "PINTLE_PATIENCE",
    "PINTLE_POWER_OFF",
    "RUST_LOG",
];

struct Options {
    seconds: u64,
    share: PathBuf,
    memory_mib: u32,
    cpus: u32,
    systemd: bool,
    disk: Option<PathBuf>,
    command: Vec<String>,
}

pub(super) fn run(args: &[&str]) -> Result<ExitCode> {
    let options = parse(args)?;
    apt::require_root("there is no way around it: the host's root is shared")?;
    let guest = prepare::guest()?;
    let run = VmRun::new(&options)?;
    run.boot(&guest, &options)?;
    run.result(&options)
}

fn parse(args: &[&str]) -> Result<Options> {
    let here = std::env::current_dir()?;
    let mut options = Options {
        seconds: 300,
        share: here,
        memory_mib: 2048,
        cpus: 1,
        systemd: false,
        disk: None,
        command: Vec::new(),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} takes a value"));
        match *arg {
            "--seconds" => options.seconds = value()?.parse()?,
            "--share" => options.share = fs::canonicalize(value()?)?,
            "--memory" => options.memory_mib = value()?.parse()?,
            "--cpus" => options.cpus = value()?.parse()?,
            "--systemd" => options.systemd = true,
            "--disk" => options.disk = Some(fs::canonicalize(value()?)?),
            "--" => break,
            other => bail!("cargo xtask vm knows no {other}; a command comes after --"),
        }
    }
    options.command = args.map(|a| (*a).to_owned()).collect();
    ensure!(!options.command.is_empty(), "cargo xtask vm [OPTION...] -- CMD");
    Ok(options)
}

/// The folder through which host and guest talk; removed unless there was no result.
struct VmRun {
    dir: PathBuf,
}

impl VmRun {
    fn new(options: &Options) -> Result<Self> {
        cache::sweep("vm-run-")?;
        let dir = cache::dir()?.join(format!("vm-run-{}", std::process::id()));
        cache::remove(&dir)?;
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("cmd.sh"), exports() + &quoted(&options.command))?;
        fs::write(dir.join("guest.sh"), include_str!("guest.sh"))?;
        File::create(dir.join("out"))?;
        if options.systemd {
            File::create(dir.join("systemd"))?;
        }
        Ok(Self { dir })
    }

    fn boot(&self, guest: &prepare::GuestFiles, options: &Options) -> Result<()> {
        let mut server = self.serve_files()?;
        let mut qemu = self.qemu(guest, options).spawn().context("start QEMU")?;
        let deadline = Instant::now() + Duration::from_secs(options.seconds);
        let mut out = File::open(self.dir.join("out"))?;
        let ended = loop {
            pass_on(&mut out)?;
            if qemu.try_wait()?.is_some() {
                break true;
            }
            if Instant::now() > deadline {
                break false;
            }
            thread::sleep(PERIOD);
        };
        let _ = qemu.kill();
        let _ = qemu.wait();
        let _ = server.kill();
        let _ = server.wait();
        pass_on(&mut out)?;
        ensure!(ended, "the command did not end within {} s; {}", options.seconds, self.said());
        Ok(())
    }

    fn serve_files(&self) -> Result<Child> {
        let program = VIRTIOFSD.iter().find(|p| Path::new(p).exists());
        let mut cmd = Command::new(program.context("QEMU's package has no virtiofsd")?);
        let socket = self.dir.join("sock");
        cmd.arg(format!("--socket-path={}", socket.display()));
        cmd.args(["-o", "source=/", "-o", "cache=always", "-o", "sandbox=chroot", "-o", "xattr"]);
        cmd.arg("--rlimit-nofile=0");
        let log = File::create(self.dir.join("virtiofsd.log"))?;
        let mut child = cmd.stdout(log.try_clone()?).stderr(log).spawn()?;
        let deadline = Instant::now() + SERVER_WAIT;
        while !socket.exists() {
            if child.try_wait()?.is_some() || Instant::now() > deadline {
                let _ = child.kill();
                bail!("virtiofsd does not listen; {}", self.said());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(child)
    }

    fn qemu(&self, guest: &prepare::GuestFiles, options: &Options) -> Command {
        // QEMU ends with its parent, so that a killed run leaves no machine behind.
        let mut cmd = Command::new("setpriv");
        cmd.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        cmd.args(["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"]);
        cmd.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        let memory = options.memory_mib;
        cmd.args(["-smp", &options.cpus.to_string(), "-m", &memory.to_string()]);
        let backend = format!("memory-backend-memfd,id=m,size={memory}M,share=on");
        cmd.args(["-object", &backend, "-machine", "q35,memory-backend=m"]);
        let at = self.dir.display();
        cmd.args(["-chardev", &format!("socket,id=c,path={at}/sock")]);
        cmd.args(["-device", "vhost-user-fs-pci,chardev=c,tag=root"]);
        let disk = guest.disk.display();
        cmd.args(["-drive", &format!("file={disk},format=raw,if=virtio,readonly=on")]);
        if let Some(own) = options.disk.as_deref().map(Path::display) {
            let drive = format!("file={own},format=raw,if=virtio,cache=unsafe,discard=unmap");
            cmd.args(["-drive", &drive]);
        }
        cmd.args(["-serial", &format!("file:{at}/console")]);
        cmd.arg("-kernel").arg(&guest.kernel).arg("-initrd").arg(&guest.initrd);
        let share = options.share.display();
        let kernel = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr psi=1";
        // A host without /etc/machine-id looks like a first boot, which asks questions on the
        // console.
        let append = format!("{kernel} systemd.firstboot=off vm.share={share} vm.run={at}");
        cmd.args(["-append", &append]).stdin(Stdio::null());
        if let Ok(log) = File::create(self.dir.join("qemu.log")) {
            cmd.stderr(log);
        }
        cmd
    }

    /// The command's exit code; without one the guest crashed.
    fn result(&self, options: &Options) -> Result<ExitCode> {
        let code = fs::read_to_string(self.dir.join("rc")).unwrap_or_default();
        let Ok(code) = code.trim().parse::<u8>() else {
            bail!("the guest ended without a result; {}", self.said());
        };
        cache::remove(&self.dir)?;
        if code != 0 {
            say("guest", &format!("{} ended with {code}", options.command.join(" ")));
        }
        Ok(ExitCode::from(code))
    }

    /// The last output of the guest's console and of the programs around it.
    fn said(&self) -> String {
        let mut all = format!("see {}", self.dir.display());
        for name in ["console", "qemu.log", "virtiofsd.log"] {
            let text = fs::read(self.dir.join(name)).unwrap_or_default();
            all.push_str(&format!("\n{name}: {}", tail(&String::from_utf8_lossy(&text), 5)));
        }
        all
    }
}

/// Copies new bytes of the output file to our own output.
fn pass_on(out: &mut File) -> Result<()> {
    let mut text = Vec::new();
    out.read_to_end(&mut text)?;
    let mut terminal = std::io::stdout().lock();
    terminal.write_all(&text)?;
    Ok(terminal.flush()?)
}

/// Lines of a shell that set the variables that the guest's command gets.
pub(super) fn exports() -> String {
    let line = |name| {
        let value = std::env::var(name).ok()?;
        Some(format!("export {name}={}\n", quote(&value)))
    };
    HANDED_ON.into_iter().filter_map(line).collect()
}

/// A command as a shell reads it.
pub(super) fn quoted(command: &[String]) -> String {
    command.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

/// One word for the shell.
pub(super) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_with_quotes_and_spaces_reaches_the_command_unchanged() {
        for word in ["plain", "two words", "it's", "$HOME `x` \"y\""] {
            let script = format!("printf %s {}", quote(word));
            let out = Command::new("sh").arg("-c").arg(script).output().expect("sh runs");
            assert_eq!(String::from_utf8_lossy(&out.stdout), word);
        }
    }

    #[test]
    fn options_end_at_the_dashes_and_unknown_ones_are_refused() {
        let options = parse(&["--cpus", "2", "--systemd", "--", "ls", "--cpus"]).expect("parsed");
        assert_eq!((options.cpus, options.systemd), (2, true));
        assert_eq!(options.command, ["ls", "--cpus"]);
        assert!(parse(&["ls"]).is_err());
        assert!(parse(&["--cpus", "2"]).is_err());
    }
}
