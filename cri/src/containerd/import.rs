//! Import of an image archive (OCI layout or `docker save`, plain tar) through containerd's
//! transfer service, for images that no registry serves.
//!
//! Input: the archive's bytes. Output: images under the names that the archive gives them, unpacked
//! and visible to CRI. containerd asks for bytes (window updates) and we send no more than it asked
//! for, so the archive is never in memory. A runtime that is not containerd has no transfer service: the
//! error names that and how to import by hand.

use containerd_client::{
    services::v1::{
        ListImagesRequest, StreamInit, TransferRequest, UpdateImageRequest,
        images_client::ImagesClient, streaming_client::StreamingClient,
        transfer_client::TransferClient,
    },
    to_any,
    types::{
        Platform,
        transfer::{
            Data, ImageImportStream, ImageReference, ImageStore, UnpackConfiguration, WindowUpdate,
        },
    },
};
use futures_util::stream;
use prost::Message;
use prost_types::{Any, FieldMask};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::mpsc,
};
use tonic::{Code, Streaming};

use super::{Containerd, ContainerdError};

/// Bytes in one message, as containerd's own client sends.
const CHUNK_BYTES_MAX: usize = 32 * 1024;
/// Messages between reading the archive and the connection.
const CHUNKS_QUEUED_MAX: usize = 4;

/// The label by which containerd's CRI marks the images that it knows.
const CRI_LABEL: &str = "io.cri-containerd.image";
const CRI_VALUE: &str = "managed";

/// Reason why an archive was not imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// This is not containerd.
    #[error("this runtime cannot import images for others; use `ctr -n k8s.io images import`")]
    Unsupported,
    /// The archive could not be read.
    #[error("read the image archive")]
    Read(#[source] std::io::Error),
    /// containerd refused the archive, or is gone.
    #[error("import the image archive")]
    Containerd(#[from] ContainerdError),
}

impl Containerd {
    /// Imports all images of an archive. Dropping the future gives the import up.
    pub async fn import(&self, archive: impl AsyncRead + Unpin) -> Result<(), ImportError> {
        let id = stream_id();
        let (chunks, queue) = mpsc::channel(CHUNKS_QUEUED_MAX);
        // There is room: nothing was sent before.
        _ = chunks.try_send(to_any(&StreamInit { id: id.clone() }));
        // Kept until containerd is done: dropping it would cut off bytes in flight.
        let mut windows = self.open(queue).await?;

        let request = self.request(TransferRequest {
            source: Some(to_any(&ImageImportStream { stream: id, ..Default::default() })),
            destination: Some(to_any(&store())),
            options: None,
        });
        let mut client = TransferClient::new(self.channel.clone());
        let transfer = client.transfer(request);
        let feed = feed(archive, &mut windows, chunks);
        tokio::pin!(transfer, feed);
        let mut fed = false;
        loop {
            tokio::select! {
                done = &mut transfer => {
                    self.answer("Transfer", done).map_err(unsupported)?;
                    return Ok(self.announce().await?);
                }
                end = &mut feed, if !fed => {
                    end.map_err(ImportError::Read)?;
                    fed = true; // containerd still has to unpack
                }
            }
        }
    }

    /// Has CRI read images that it does not know yet, by an update that changes their label to the
    /// value that CRI would set. Needed for containerd 1.7, because its transfers publish no event.
    async fn announce(&self) -> Result<(), ContainerdError> {
        let mut client = ImagesClient::new(self.channel.clone());
        let filters = vec![format!("labels.\"{CRI_LABEL}\"!={CRI_VALUE}")];
        let list = client.list(self.request(ListImagesRequest { filters })).await;
        let images = self.answer("ListImages", list)?.into_inner().images;
        for mut image in images {
            image.labels.insert(CRI_LABEL.to_owned(), CRI_VALUE.to_owned());
            let paths = vec![format!("labels.{CRI_LABEL}")];
            let request = UpdateImageRequest {
                image: Some(image),
                update_mask: Some(FieldMask { paths }),
                source_date_epoch: None,
            };
            let updated = client.update(self.request(request)).await;
            match self.answer("UpdateImage", updated) {
                Err(error) if error.code == Code::NotFound => {} // removed meanwhile
                updated => _ = updated?,
            }
        }
        Ok(())
    }

    /// Opens the stream; its first message names it, and containerd confirms with an empty one.
    async fn open(&self, mut queue: mpsc::Receiver<Any>) -> Result<Streaming<Any>, ImportError> {
        let request = self.request(stream::poll_fn(move |context| queue.poll_recv(context)));
        let opened = StreamingClient::new(self.channel.clone()).stream(request).await;
        let mut windows = self.answer("Stream", opened).map_err(unsupported)?.into_inner();
        let confirmed = windows.message().await;
        self.answer("Stream", confirmed).map_err(unsupported)?;
        Ok(windows)
    }
}

/// Sends the archive as fast as containerd asks for it. An end of the stream from its side is no
/// error here: the transfer itself returns the reason.
async fn feed(
    mut archive: impl AsyncRead + Unpin,
    windows: &mut Streaming<Any>,
    chunks: mpsc::Sender<Any>,
) -> std::io::Result<()> {
    let mut window = 0usize;
    let mut buffer = vec![0; CHUNK_BYTES_MAX];
    loop {
        while window == 0 {
            match windows.message().await {
                Ok(Some(update)) => window += window_bytes(&update),
                Ok(None) | Err(_) => return Ok(()),
            }
        }
        let room = window.min(CHUNK_BYTES_MAX);
        let read = archive.read(&mut buffer[..room]).await?;
        if read == 0 {
            return Ok(()); // dropping `chunks` marks the end of the archive
        }
        window -= read;
        if chunks.send(to_any(&Data { data: buffer[..read].to_vec() })).await.is_err() {
            return Ok(());
        }
    }
}

/// Bytes that containerd is ready to take; 0 for any other message.
fn window_bytes(update: &Any) -> usize {
    let update = WindowUpdate::decode(update.value.as_slice()).map_or(0, |window| window.update);
    usize::try_from(update).unwrap_or(0)
}

/// The destination: images under the names in the archive, unpacked for this machine.
fn store() -> ImageStore {
    let platform = Platform {
        os: "linux".into(),
        architecture: match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }
        .into(),
        ..Default::default()
    };
    ImageStore {
        // Only images without a name in the archive get this one, followed by their tag.
        extra_references: vec![ImageReference {
            name: "import".into(),
            is_prefix: true,
            allow_overwrite: true,
            ..Default::default()
        }],
        platforms: vec![platform.clone()],
        unpacks: vec![UnpackConfiguration { platform: Some(platform), ..Default::default() }],
        ..Default::default()
    }
}

fn unsupported(error: ContainerdError) -> ImportError {
    match error.code {
        Code::Unimplemented => ImportError::Unsupported,
        _ => ImportError::Containerd(error),
    }
}

/// A name for the stream that no other import on this containerd has.
fn stream_id() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // The id only has to differ from others; no memory is ordered by it.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("pintle-import-{}-{count}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_updates_are_counted_in_bytes_and_invalid_updates_count_zero() {
        assert_eq!(window_bytes(&to_any(&WindowUpdate { update: 65_536 })), 65_536);
        assert_eq!(window_bytes(&to_any(&WindowUpdate { update: -1 })), 0);
        let garbled = Any { type_url: String::new(), value: vec![0xff; 9] };
        assert_eq!(window_bytes(&garbled), 0);
    }

    #[test]
    fn stream_ids_differ() {
        assert_ne!(stream_id(), stream_id());
    }
}
