//! The text of each pod on `/pods`, kept from one answer to the next.
//!
//! Input: a snapshot. Output: a `v1.PodList` as JSON. Effects: keeps the texts. Owner: the pages of
//! one listener. A pod's metadata and spec are written again when its object has changed, its
//! status when that has; all else is copied. Bounds: `BYTES_MAX` of texts; further pods are written
//! for each answer. Why: on a node with 50 pods an answer took several milliseconds of processor,
//! nearly all for texts that were the same as in the answer before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use pintle_agent_core::types::PodUid;
use pintle_agent_core::view::{PodView, Snapshot};

use super::pod_list;

/// Most bytes of texts that are kept: those of some 500 usual pods.
const BYTES_MAX: usize = 4 << 20;

/// Texts by pod.
#[derive(Default)]
pub(super) struct PodTexts(Mutex<KeptText>);

#[derive(Default)]
struct KeptText {
    texts: HashMap<PodUid, PodText>,
    bytes: usize,
}

/// A pod as it was written last.
struct PodText {
    pod: Arc<Pod>,
    /// Its metadata and spec.
    head: Box<[u8]>,
    status: Arc<PodStatus>,
    tail: Box<[u8]>,
}

impl PodText {
    fn of(view: &PodView) -> Self {
        Self {
            pod: Arc::clone(&view.pod),
            head: pod_list::head(&view.pod).into(),
            status: Arc::clone(&view.status),
            tail: pod_list::tail(&view.status).into(),
        }
    }

    /// Writes the texts of changed objects again.
    fn renew(&mut self, view: &PodView) {
        if !Arc::ptr_eq(&self.pod, &view.pod) {
            (self.pod, self.head) = (Arc::clone(&view.pod), pod_list::head(&view.pod).into());
        }
        if !Arc::ptr_eq(&self.status, &view.status) {
            self.status = Arc::clone(&view.status);
            self.tail = pod_list::tail(&view.status).into();
        }
    }

    fn bytes(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    fn write(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.head);
        into.extend_from_slice(&self.tail);
    }
}

impl PodTexts {
    /// All pods that a source wants, with their derived status.
    pub(super) fn pods(&self, snapshot: &Snapshot) -> Vec<u8> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.texts.len() > snapshot.pods.len() {
            kept.forget_all_but(snapshot);
        }
        let mut list = pod_list::List::with_capacity(kept.bytes);
        for (uid, view) in &snapshot.pods {
            kept.write(uid, view, list.item());
        }
        list.end()
    }
}

impl KeptText {
    fn write(&mut self, uid: &PodUid, view: &PodView, into: &mut Vec<u8>) {
        let Some(text) = self.texts.get_mut(uid) else {
            let text = PodText::of(view);
            text.write(into);
            if self.bytes + text.bytes() <= BYTES_MAX {
                self.bytes += text.bytes();
                self.texts.insert(uid.clone(), text);
            }
            return;
        };
        let before = text.bytes();
        text.renew(view);
        text.write(into);
        self.bytes = self.bytes - before + text.bytes();
        if self.bytes > BYTES_MAX {
            self.bytes -= text.bytes();
            self.texts.remove(uid);
        }
    }

    fn forget_all_but(&mut self, snapshot: &Snapshot) {
        self.texts.retain(|uid, _| snapshot.pods.contains_key(uid));
        self.bytes = self.texts.values().map(PodText::bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use pintle_agent_core::testing::{snapshot_of, view};
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, uid: &str) -> PodView {
        view(json!({"metadata": {"name": name, "uid": uid}, "spec": {"containers": []}}))
    }

    fn named(name: &str) -> PodView {
        pod(name, name)
    }

    fn shown(texts: &PodTexts, views: &[PodView]) -> Value {
        let text = texts.pods(&snapshot_of(views.to_vec()));
        let list: Value = serde_json::from_slice(&text).expect("JSON");
        let fresh: Value =
            serde_json::from_slice(&PodTexts::default().pods(&snapshot_of(views.to_vec())))
                .expect("JSON");
        assert_eq!(list, fresh, "what is kept is what would be written");
        list["items"].clone()
    }

    #[test]
    fn text_that_is_kept_is_written_again_when_pod_or_status_is_another() {
        let (texts, mut views) = (PodTexts::default(), vec![named("a"), named("b")]);
        shown(&texts, &views);
        let mut status = (*views[0].status).clone();
        status.message = Some("text".to_owned());
        views[0].status = Arc::new(status);
        assert_eq!(shown(&texts, &views)[0]["status"]["message"], "text");
        views[1].pod = pod("b2", "b").pod;
        assert_eq!(shown(&texts, &views)[1]["metadata"]["name"], "b2");
    }

    #[test]
    fn texts_of_deleted_pods_or_beyond_the_limit_are_not_cached() {
        let texts = PodTexts::default();
        let kept = || {
            let kept = texts.0.lock().expect("not poisoned");
            let sum: usize = kept.texts.values().map(PodText::bytes).sum();
            assert_eq!(kept.bytes, sum);
            kept.texts.len()
        };
        shown(&texts, &[named("a"), named("b")]);
        assert_eq!(kept(), 2);
        shown(&texts, &[named("a")]);
        assert_eq!(kept(), 1);
        let mut large = named("c");
        let mut status = (*large.status).clone();
        status.message = Some("x".repeat(BYTES_MAX));
        large.status = Arc::new(status);
        shown(&texts, &[named("a"), large.clone()]);
        assert_eq!(kept(), 1, "it is larger than all that may be kept");
        // One that grows beyond the limit is no longer kept.
        shown(&texts, &[named("a"), named("c")]);
        assert_eq!(kept(), 2);
        shown(&texts, &[named("a"), large]);
        assert_eq!(kept(), 1);
    }
}
