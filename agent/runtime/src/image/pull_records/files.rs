//! The folders of intents and records.
//!
//! Effects that block. A file is replaced in one step and its name is synced with its folder: an
//! image without its intent would look preloaded, and every pod could use it. Other files stay.
//! Bounds: `FILE_BYTES_MAX` a file, `FILES_MAX` read in a folder.
// k8s: pkg/kubelet/images/pullmanager/fs_pullrecords.go

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use pintle_agent_core::image::pull_record::{
    FILE_PREFIX, Intent, PulledImage, TEMPORARY, file_name,
};
use pintle_daemon::durable;

/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most files of a folder that are read.
const FILES_MAX: usize = 65_536;
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;

/// The directories of intents and records.
#[derive(Clone, Debug)]
pub(super) struct RecordFiles {
    pulling: PathBuf,
    pulled: PathBuf,
}

impl RecordFiles {
    /// The folders below the agent's root directory; makes them.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let dir = root.join("image_manager");
        let files = Self { pulling: dir.join("pulling"), pulled: dir.join("pulled") };
        for dir in [&files.pulling, &files.pulled] {
            DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir)?;
        }
        Ok(files)
    }

    pub(super) fn has_intent(&self, image: &str) -> io::Result<bool> {
        let Some(text) = read(&self.pulling.join(file_name(image)))? else { return Ok(false) };
        let (intent, _) = Intent::read(&text).ok_or(ErrorKind::InvalidData)?;
        Ok(intent.image == image)
    }

    pub(super) fn write_intent(&self, image: &str) -> io::Result<()> {
        write(&self.pulling, image, &Intent::new(image).text())
    }

    pub(super) fn remove_intent(&self, image: &str) -> io::Result<()> {
        match fs::remove_file(self.pulling.join(file_name(image))) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The record of an image; an error when it cannot be read.
    pub(super) fn record(&self, image_ref: &str) -> io::Result<Option<PulledImage>> {
        let Some(text) = read(&self.pulled.join(file_name(image_ref)))? else { return Ok(None) };
        let (record, _) = PulledImage::read(&text).ok_or(ErrorKind::InvalidData)?;
        Ok((record.image_ref == image_ref).then_some(record))
    }

    pub(super) fn write_record(&self, record: &PulledImage) -> io::Result<()> {
        write(&self.pulled, &record.image_ref, &record.text())
    }

    pub(super) fn remove_record(&self, image_ref: &str) -> io::Result<()> {
        match fs::remove_file(self.pulled.join(file_name(image_ref))) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Names of all images with a pull that began and did not end; files of an earlier version are
    /// rewritten on the way.
    pub(super) fn take_over(&self) -> Vec<String> {
        let mut intents = Vec::new();
        for text in texts(&self.pulling) {
            let Some((intent, current)) = Intent::read(&text) else { continue };
            if !current && let Err(error) = self.write_intent(&intent.image) {
                tracing::warn!(%error, image = intent.image, "cannot update a pull intent");
            }
            intents.push(intent.image);
        }
        for text in texts(&self.pulled) {
            let Some((record, false)) = PulledImage::read(&text) else { continue };
            if let Err(error) = self.write_record(&record) {
                let image = record.image_ref;
                tracing::warn!(%error, image, "cannot update the pull record of an image");
            }
        }
        intents
    }

    /// Images with records that were last changed before this second.
    pub(super) fn recorded_before(&self, second: &str) -> Vec<String> {
        let records = texts(&self.pulled).filter_map(|text| Some(PulledImage::read(&text)?.0));
        let old = records.filter(|record| record.is_older_than(second));
        old.map(|record| record.image_ref).collect()
    }

    /// How many intents and records there are.
    pub(super) fn counts(&self) -> (usize, usize) {
        (names(&self.pulling).len(), names(&self.pulled).len())
    }
}

fn write(dir: &Path, of: &str, text: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir)?;
    durable::replace(&dir.join(file_name(of)), text, FILE_MODE)?;
    File::open(dir)?.sync_all()
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(Some(text))
}

fn texts(dir: &Path) -> impl Iterator<Item = Vec<u8>> {
    names(dir).into_iter().filter_map(|path| read(&path).ok().flatten())
}

fn names(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with(FILE_PREFIX)
            && !name.ends_with(TEMPORARY)
            && entry.file_type().is_ok_and(|kind| !kind.is_dir())
    });
    ours.take(FILES_MAX).map(|entry| entry.path()).collect()
}
