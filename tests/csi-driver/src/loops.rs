//! Loop devices, by `losetup`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The devices behind a file.
pub(crate) fn devices_of(file: &Path) -> io::Result<Vec<PathBuf>> {
    let output =
        run(Command::new("losetup").args(["--noheadings", "--output", "NAME", "-j"]).arg(file))?;
    Ok(output.lines().map(|line| PathBuf::from(line.trim())).collect())
}

/// A device for a file: the one that it has, or a new one.
pub(crate) fn attach(file: &Path) -> io::Result<PathBuf> {
    if let Some(device) = devices_of(file)?.into_iter().next() {
        return Ok(device);
    }
    let output = run(Command::new("losetup").args(["--find", "--show"]).arg(file))?;
    Ok(PathBuf::from(output.trim()))
}

/// Detaches all devices of a file.
pub(crate) fn detach(file: &Path) -> io::Result<()> {
    for device in devices_of(file)? {
        run(Command::new("losetup").arg("--detach").arg(device))?;
    }
    Ok(())
}

/// Makes the devices of a file as large as the file.
pub(crate) fn grow(file: &Path) -> io::Result<()> {
    for device in devices_of(file)? {
        run(Command::new("losetup").arg("--set-capacity").arg(device))?;
    }
    Ok(())
}

fn run(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{command:?}: {}", words.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
