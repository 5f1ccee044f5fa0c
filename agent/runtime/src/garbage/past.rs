//! When images were first seen and last used, kept over a restart of the agent.
//!
//! Output: `ROOT/pintle/images.json`, replaced after each look that differs from the last one. A
//! file that cannot be read costs the past of the images and one sentence; they count as new.
//! Bounds: `FILE_BYTES_MAX`; one entry for each image of the runtime.

use std::fs::{DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use pintle_agent_core::garbage::images::{ImageFacts, Uses};
use pintle_daemon::blocking::JobPlace;
use pintle_daemon::{blocking, clock, durable};

use super::look::RuntimeImage;

const FILE: &str = "images.json";
/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The past of the images.
pub(super) struct ImageHistory {
    path: PathBuf,
    uses: Uses,
    written: Uses,
}

impl ImageHistory {
    pub(super) fn new(root: &Path) -> Self {
        let path = root.join("pintle").join(FILE);
        Self { path, uses: Uses::default(), written: Uses::default() }
    }

    pub(super) fn uses(&self) -> &Uses {
        &self.uses
    }

    pub(super) async fn load(&mut self) {
        let path = self.path.clone();
        let read = blocking::try_run(JobPlace::own("images"), move || read(&path)).await;
        match read {
            Ok(uses) => self.uses = uses,
            Err(error) => {
                tracing::warn!(%error, "when images were last used is not known: they count as new");
            }
        }
        self.written = self.uses.clone();
    }

    /// Nothing has changed since `found`.
    pub(super) fn still(&mut self, found: &[RuntimeImage]) {
        self.uses.still(&images(found), clock::now());
    }

    /// Takes note of a look and writes it down.
    pub(super) async fn see(&mut self, found: &[RuntimeImage]) {
        self.uses.see(&images(found), clock::now());
        if self.uses == self.written {
            return;
        }
        let (path, uses) = (self.path.clone(), self.uses.clone());
        let written = blocking::try_run(JobPlace::own("images"), move || write(&path, &uses)).await;
        match written {
            Ok(()) => self.written = self.uses.clone(),
            Err(error) => tracing::warn!(%error, "the last use of images cannot be written down"),
        }
    }
}

fn images(found: &[RuntimeImage]) -> Vec<ImageFacts> {
    found.iter().map(|found| found.image.clone()).collect()
}

fn read(path: &Path) -> io::Result<Uses> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Uses::default()),
        file => file?,
    };
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(io::Error::other)
}

fn write(path: &Path, uses: &Uses) -> io::Result<()> {
    let text = serde_json::to_vec(uses).map_err(io::Error::other)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    if let Some(dir) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    durable::replace(path, &text, 0o600)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}
