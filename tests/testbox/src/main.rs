//! `/box` in the test images: a program of many behaviours, chosen by its first argument.
//!
//!     pause [-v]                    reap children, end on SIGTERM or SIGINT; print a version and end
//!     sleep SECONDS                 end after that time or on SIGTERM
//!     exit CODE [AFTER_MS]          end by itself
//!     serve [http=PORT] [tcp=PORT] [grpc=PORT] [delay=MS]
//!                                   health over three protocols, switched together (see serve.rs)
//!     rude KIND=PORT...             servers that mistreat their clients (see rude.rs)
//!     get HOST:PORT/PATH            print the body; 0 when the status is 2xx
//!     hog MIB [child]               touch that much memory, in this process or in a child
//!     grow MIB_PER_SECOND           touch that much more memory each second, for ever
//!     log BYTES_PER_SECOND [LINE]   numbered lines on stdout, for ever
//!     signals [LINGER_MS]           print each signal; end LINGER_MS after SIGTERM
//!     throttle LISTEN TARGET BPS    a TCP proxy that passes so many bytes a second
//!
//! As pid 1 of a container a signal without a handler is ignored by the kernel: whatever should end
//! on SIGTERM waits for it explicitly. Errors end the program with 2 and a sentence on stderr.

#![forbid(unsafe_code)]

mod grpc;
mod rude;
mod serve;
mod stream;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// How an argument list fails.
type Outcome = Result<u8, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("box {}: {error}", args.join(" "));
            ExitCode::from(2)
        }
    }
}

fn run(args: &[&str]) -> Outcome {
    match args {
        ["pause"] => pause(),
        // The Job of kubeadm's health check before an upgrade.
        ["pause", "-v"] => {
            println!("pause {}", env!("CARGO_PKG_VERSION"));
            Ok(0)
        }
        ["sleep", seconds] => sleep(Duration::from_secs_f64(seconds.parse()?)),
        ["exit", code] => Ok(code.parse()?),
        ["exit", code, after_ms] => {
            thread::sleep(Duration::from_millis(after_ms.parse()?));
            Ok(code.parse()?)
        }
        ["serve", options @ ..] => serve::run(options),
        ["rude", options @ ..] => rude::run(options),
        ["get", url] => stream::get(url),
        ["hog", mib] => hog(mib.parse()?),
        ["hog", mib, "child"] => hog_in_child(mib),
        ["grow", rate] => grow(rate.parse()?),
        ["log", rate] => stream::log(rate.parse()?, 100),
        ["log", rate, line] => stream::log(rate.parse()?, line.parse()?),
        ["signals"] => signals(Duration::ZERO),
        ["signals", linger_ms] => signals(Duration::from_millis(linger_ms.parse()?)),
        ["throttle", listen, target, bps] => stream::throttle(listen, target, bps.parse()?),
        _ => Err("no such behaviour".into()),
    }
}

/// Blocks these signals, so that `wait` receives them.
fn blocked(signals: &[Signal]) -> nix::Result<SigSet> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block()?;
    Ok(set)
}

fn pause() -> Outcome {
    let set = blocked(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD])?;
    loop {
        if set.wait()? != Signal::SIGCHLD {
            return Ok(0);
        }
        while let Ok(status) = waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
            if status == WaitStatus::StillAlive {
                break;
            }
        }
    }
}

fn sleep(limit: Duration) -> Outcome {
    let set = blocked(&[Signal::SIGTERM, Signal::SIGINT])?;
    thread::spawn(move || {
        thread::sleep(limit);
        std::process::exit(0);
    });
    set.wait()?;
    Ok(0)
}

fn signals(linger: Duration) -> Outcome {
    use Signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
    let set = blocked(&[SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH])?;
    println!("waiting");
    loop {
        let signal = set.wait()?;
        println!("got {signal}");
        if matches!(signal, SIGTERM | SIGINT | SIGQUIT) {
            thread::spawn(move || {
                thread::sleep(linger);
                println!("done");
                std::process::exit(0);
            });
        }
    }
}

/// Memory that is really there: every page is written.
fn touched(mib: usize) -> Vec<u8> {
    const PAGE_BYTES: usize = 4096;
    let mut held = vec![0u8; mib << 20];
    for page in held.chunks_mut(PAGE_BYTES) {
        page[0] = 1;
    }
    held
}

fn hog(mib: usize) -> Outcome {
    let held = touched(mib);
    println!("holding {mib} MiB");
    std::hint::black_box(&held);
    pause()
}

/// Grows in ten steps a second. SIGTERM does not end it, as a program out of memory may not react.
fn grow(mib_per_second: usize) -> Outcome {
    const STEPS: usize = 10;
    let mut held = Vec::new();
    let begun = std::time::Instant::now();
    for step in 1.. {
        held.push(touched(mib_per_second / STEPS));
        let due = Duration::from_secs(1) * step / u32::try_from(STEPS)?;
        thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    std::hint::black_box(&held);
    Ok(0)
}

/// The child holds the memory, so that the OOM killer may take it and spare pid 1.
fn hog_in_child(mib: &str) -> Outcome {
    let mut child = std::process::Command::new(std::env::current_exe()?);
    let status = child.args(["hog", mib]).status()?;
    println!("child ended: {status}");
    pause()
}
