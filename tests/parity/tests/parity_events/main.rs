//! Events about pods, against those of the Go kubelet.
//!
//! Each recorded pod is run again, in real time, on an agent whose runtime and API server are
//! fakes: the runtime's containers end when and how the recorded ones did, its calls fail with the
//! recorded messages, probes meet ports that answer as recorded. The agent must emit the recorded
//! events: type, reason, message, container, order, and all other fields. Counts that follow from
//! container state changes are compared. An event that only repeats with the kubelet's retries and
//! syncs must be emitted at least once, and as one event.
//!
//! `PINTLE_RECORDED=DIR` plays another folder of recordings. Needs root: volumes are mounted.

#[path = "../replay/mod.rs"]
mod replay;

mod again;
mod ports;
mod script;
mod story;

use std::sync::Mutex;
use std::thread;

use pintle_parity::stand::{Stand, StandSetup};
use story::Story;

/// Recorded pods that live at the same time.
const AT_ONCE: usize = 24;

#[test]
fn exactly_the_recorded_events_are_emitted() {
    let recordings = replay::recordings();
    let mut stories: Vec<Story> =
        recordings.iter().filter_map(|(name, recording)| Story::of(name, recording)).collect();
    if stories.is_empty() {
        return;
    }
    let node = stories[0].node();
    let Some(stand) = Stand::start(&StandSetup { node, ..StandSetup::default() }) else { return };
    script::prepare(&stand, &recordings);
    for (index, story) in stories.iter_mut().enumerate() {
        story.settle(&stand, index);
    }
    let (alone, together): (Vec<_>, Vec<_>) = stories.into_iter().partition(Story::is_alone);
    let differences = Mutex::new(Vec::new());
    let play = |story: Story| {
        let found = story.play(&stand);
        differences.lock().expect("no panic").extend(found);
    };
    let count = alone.len() + together.len();
    let queue = Mutex::new(together.into_iter());
    let next = || queue.lock().expect("no panic").next();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(story) = next() {
                    play(story);
                }
            });
        }
    });
    // They want a part of the node for themselves.
    alone.into_iter().for_each(play);
    let differences = differences.into_inner().expect("no panic");
    println!("{count} pods");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
