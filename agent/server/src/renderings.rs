//! Pages that many clients may request at once: one rendering for all requests during one
//! rendering.
//!
//! Effects. Input: a page's key, and how to make it. Output: the page, made after it was requested.
//! A request that comes while a page is made waits for the next making, and all waiting requests
//! share that one, so that a hundred scrapes cost two. All readers of a list of pods share it for
//! as long as it is the same: readers that stall hold one. Bounds: `UNREAD_BYTES_MAX` of pages that
//! were not sent yet; beyond them none is made.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Bytes;
use pintle_agent_core::view::Snapshot;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use pintle_daemon::serve::answer::HttpAnswer;

use super::pod_texts::PodTexts;
use super::route::RouteKind;

/// Bytes of pages that wait for their readers.
const UNREAD_BYTES_MAX: usize = 64 << 20;

/// The page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PageKey {
    pub(super) kind: RouteKind,
    /// Without the parts that take long.
    pub(super) short: bool,
    pub(super) gzip: bool,
}

/// The pages of one listener.
#[derive(Default)]
pub(super) struct Renderings {
    lines: Mutex<HashMap<PageKey, Arc<RenderQueue>>>,
    unread_bytes: Arc<AtomicUsize>,
    /// The texts of the pods, for `/pods`.
    pub(super) pods: PodTexts,
}

/// The requests that wait for one page.
#[derive(Default)]
struct RenderQueue {
    begun: AtomicU64,
    waiting: AtomicUsize,
    last: tokio::sync::Mutex<Option<(u64, HttpAnswer)>>,
    read: Mutex<Option<Read>>,
}

/// A page that a client may still read.
struct Read {
    made_of: Weak<Snapshot>,
    text: Weak<PageText>,
    /// The page without its text.
    shell: HttpAnswer,
}

/// A page's text while a reader holds it.
struct PageText {
    bytes: Bytes,
    unread_bytes: Arc<AtomicUsize>,
}

impl Drop for PageText {
    fn drop(&mut self) {
        self.unread_bytes.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

struct HeldPage(Arc<PageText>);

impl AsRef<[u8]> for HeldPage {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// Counts waiting requests; a dropped one stops waiting.
struct WaitingCount<'a>(&'a RenderQueue);

impl Drop for WaitingCount<'_> {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Ordering::Relaxed) == 1
            && let Ok(mut last) = self.0.last.try_lock()
        {
            *last = None; // no request is left to share it with
        }
    }
}

impl Renderings {
    /// The page of that key. `of` is all that it is made of, where that is known.
    pub(super) async fn page(
        &self,
        key: PageKey,
        of: Option<&Arc<Snapshot>>,
        make: impl Future<Output = Option<HttpAnswer>>,
    ) -> Option<HttpAnswer> {
        let line = Arc::clone(
            self.lines.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default(),
        );
        if let Some(read) = of.and_then(|of| line.being_read(of)) {
            return Some(read);
        }
        let asked = line.begun.load(Ordering::Relaxed);
        line.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = WaitingCount(&line);
        let mut last = line.last.lock().await;
        if let Some((begun, page)) = &*last
            && *begun > asked
        {
            return Some(page.clone());
        }
        if self.unread_bytes.load(Ordering::Relaxed) >= UNREAD_BYTES_MAX {
            return Some(HttpAnswer::text(503, "too many answers wait for their readers\n"));
        }
        let begun = line.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let made = make.await?;
        let (mut page, text) = self.counted(if key.gzip { zipped(made).await } else { made });
        page.body = Bytes::from_owner(HeldPage(Arc::clone(&text)));
        if let Some(of) = of {
            let shell = HttpAnswer { body: Bytes::new(), ..page.clone() };
            let read = Read { made_of: Arc::downgrade(of), text: Arc::downgrade(&text), shell };
            *line.read.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
        }
        *last = Some((begun, page.clone()));
        Some(page)
    }

    fn counted(&self, page: HttpAnswer) -> (HttpAnswer, Arc<PageText>) {
        let (bytes, unread_bytes) = (page.body.clone(), Arc::clone(&self.unread_bytes));
        unread_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        (page, Arc::new(PageText { bytes, unread_bytes }))
    }
}

impl RenderQueue {
    fn being_read(&self, of: &Arc<Snapshot>) -> Option<HttpAnswer> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let Read { made_of, text, shell } = read.as_ref()?;
        let is_same = made_of.upgrade().is_some_and(|made_of| Arc::ptr_eq(&made_of, of));
        let text = text.upgrade().filter(|_| is_same)?;
        Some(HttpAnswer { body: Bytes::from_owner(HeldPage(text)), ..shell.clone() })
    }
}

/// The page compressed, where that can be done.
async fn zipped(page: HttpAnswer) -> HttpAnswer {
    let bytes = page.body.clone();
    let zip = move || -> std::io::Result<Vec<u8>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&bytes)?;
        encoder.finish()
    };
    match blocking::run(JobPlace::serve_node("gzip"), zip).await {
        Ok(Ok(body)) => HttpAnswer { body: body.into(), is_gzip: true, ..page },
        _ => page,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    const KEY: PageKey = PageKey { kind: RouteKind::Metrics, short: false, gzip: false };

    #[tokio::test]
    async fn requests_during_a_page_rendering_share_the_next_rendering() {
        let (pages, made) = (Renderings::default(), AtomicUsize::new(0));
        let make = async || {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            let number = made.fetch_add(1, Ordering::Relaxed) + 1;
            Some(HttpAnswer::text(200, number.to_string()))
        };
        let asks = (0..100).map(|_| pages.page(KEY, None, make()));
        let all = futures_util::future::join_all(asks).await;
        let made_first = all.iter().flatten().filter(|page| page.body == "1").count();
        assert!(made.load(Ordering::Relaxed) <= 2 && made_first >= 1 && all.len() == 100);
        drop(all);
        assert_eq!(pages.unread_bytes.load(Ordering::Relaxed), 0, "nothing is kept");
    }

    #[tokio::test]
    async fn readers_of_a_snapshot_share_its_page_and_too_many_unread_bytes_return_503() {
        let pages = Renderings::default();
        let big = || Some(HttpAnswer::text(200, "x".repeat(UNREAD_BYTES_MAX / 2)));
        let snapshot = Arc::new(Snapshot::default());
        let mut held = Vec::new();
        for _ in 0..10 {
            let page = pages.page(KEY, Some(&snapshot), async { big() }).await;
            held.push(page.expect("a page"));
        }
        assert_eq!(pages.unread_bytes.load(Ordering::Relaxed), UNREAD_BYTES_MAX / 2);
        let other = Arc::new(Snapshot::default());
        held.extend(pages.page(KEY, Some(&other), async { big() }).await);
        let refused = pages.page(KEY, None, async { big() }).await.expect("an answer");
        assert_eq!(refused.status, 503);
        held.clear();
        assert_eq!(pages.page(KEY, None, async { big() }).await.expect("a page").status, 200);
    }

    #[tokio::test]
    async fn page_is_compressed_for_clients_that_accept_gzip() {
        let pages = Renderings::default();
        let text = "line\n".repeat(1000);
        let make = async { Some(HttpAnswer::text(200, text.clone())) };
        let page = pages.page(PageKey { gzip: true, ..KEY }, None, make).await.expect("a page");
        assert!(page.is_gzip && page.body.len() < text.len() / 10);
        let mut read = String::new();
        flate2::read::GzDecoder::new(&page.body[..]).read_to_string(&mut read).expect("gzip");
        assert_eq!(read, text);
    }
}
