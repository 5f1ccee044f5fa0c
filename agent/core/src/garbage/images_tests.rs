//! Selection of images for removal: tables and a property.

use proptest::prelude::*;

use super::*;

const POLICY: Policy = Policy {
    high_percent: 85,
    low_percent: 80,
    min_age: Duration::from_secs(120),
    max_age: Duration::ZERO,
};

fn at(seconds: i64) -> UnixNanos {
    UnixNanos(seconds * 1_000_000_000)
}

fn image(id: &str) -> ImageFacts {
    ImageFacts { id: id.to_owned(), bytes: 10, pinned: false, in_use: false }
}

fn uses(all: &[(&str, i64, i64)]) -> Uses {
    let of = |(id, first, last): &(&str, i64, i64)| {
        ((*id).to_owned(), ImageUse { first_seen: at(*first), last_used: at(*last) })
    };
    Uses(all.iter().map(of).collect())
}

fn shown(judged: &[Judged]) -> String {
    let words: Vec<_> = judged.iter().map(|j| format!("{}:{:?}", j.id, j.verdict)).collect();
    words.join(" ")
}

#[test]
fn a_disk_is_freed_from_the_high_threshold_down_to_the_low_one() {
    for (capacity, available, expected) in [
        (1000, 151, Some(49)),
        (1000, 160, None),
        (1000, 150, Some(50)),
        (1000, 0, Some(200)),
        // A disk's figures may be wrong.
        (1000, 2000, None),
        (0, 0, Some(0)),
        (u64::MAX, 0, Some(u64::MAX / 5)),
    ] {
        assert_eq!(bytes_to_free(&POLICY, capacity, available), expected, "{available}/{capacity}");
    }
    assert_eq!(used_percent(1000, 151), 85, "rounded up, as upstream does");
}

#[test]
fn least_recently_used_image_is_removed_first_then_the_first_seen() {
    let images = ["a", "b", "c", "d"].map(image);
    let uses = uses(&[("a", 5, 50), ("b", 4, 20), ("c", 3, 0), ("d", 2, 0)]);
    let judged = judge(&images, &uses, &POLICY, at(1000), Duration::MAX);
    assert_eq!(shown(&judged), "d:Spare c:Spare b:Spare a:Spare");
}

#[test]
fn each_image_that_stays_has_its_reason() {
    let mut images = ["a", "b", "c", "d"].map(image);
    images[0].pinned = true;
    images[1].in_use = true;
    let uses = uses(&[("a", 1, 0), ("b", 2, 1000), ("c", 881, 0), ("d", 880, 0)]);
    let judged = judge(&images, &uses, &POLICY, at(1000), Duration::MAX);
    assert_eq!(shown(&judged), "a:Pinned d:Spare c:TooYoung b:InUse");
    let unused: Vec<_> = judged.iter().map(|j| j.unused_for.as_secs()).collect();
    assert_eq!(unused, [999, 120, 119, 0]);
    let unknown = judge(&[image("x")], &Uses::default(), &POLICY, at(1000), Duration::MAX);
    assert_eq!(shown(&unknown), "x:TooYoung", "one that was never seen is new");
}

#[test]
fn age_counts_from_the_last_use_and_not_before_the_agent_ran_as_long() {
    let policy = Policy { max_age: Duration::from_secs(300), ..POLICY };
    let images = ["used", "unused", "fresh"].map(image);
    let uses = uses(&[("used", 1, 699), ("unused", 600, 0), ("fresh", 900, 0)]);
    for (running, expected) in [
        (300, "unused:Spare fresh:TooYoung used:Spare"),
        (301, "unused:TooOld fresh:TooYoung used:TooOld"),
    ] {
        let judged = judge(&images, &uses, &policy, at(1000), Duration::from_secs(running));
        assert_eq!(shown(&judged), expected, "{running}");
    }
    assert!(policy.is_on() && POLICY.is_on());
    assert!(!Policy { high_percent: 100, ..POLICY }.is_on());
}

#[test]
fn image_in_use_is_marked_used_now_and_a_removed_image_is_forgotten() {
    let mut uses = uses(&[("a", 1, 2), ("gone", 1, 2)]);
    let busy = ImageFacts { in_use: true, ..image("b") };
    uses.see(&[image("a"), busy.clone()], at(10));
    assert_eq!(uses, super::tests::uses(&[("a", 1, 2), ("b", 10, 10)]));
    uses.still(&[image("a"), busy], at(20));
    assert_eq!(uses, super::tests::uses(&[("a", 1, 2), ("b", 10, 20)]));
    uses.see(&[image("a"), image("b")], at(5));
    assert_eq!(uses, super::tests::uses(&[("a", 1, 2), ("b", 5, 5)]), "the clock was set back");
}

#[test]
fn insufficient_disk_space_message_equals_the_kubelets() {
    assert_eq!(
        not_enough(10 << 30, 1 << 30, 7),
        "Insufficient free disk space on the node's image filesystem (90% of 10.0 GiB used). \
         Failed to free sufficient space by deleting unused images (freed 7 bytes). Investigate \
         disk usage, as it could be used by active images, logs, volumes, or other data."
    );
    for (bytes, text) in [(5, "5 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (1 << 41, "2.0 TiB")]
    {
        assert_eq!(size(bytes), text);
    }
}

proptest! {
    #[test]
    fn pinned_or_used_image_is_never_removed(
        all in prop::collection::vec((any::<bool>(), any::<bool>(), 0..2000i64, 0..2000i64), 0..20),
        now in 0..3000i64, max_age in 0..500u64, running in 0..1000u64,
    ) {
        let mut images = Vec::new();
        let mut uses = Uses::default();
        for (index, (pinned, in_use, first, last)) in all.iter().enumerate() {
            let id = format!("i{index}");
            uses.0.insert(id.clone(), ImageUse { first_seen: at(*first), last_used: at(*last) });
            images.push(ImageFacts { id, bytes: 1, pinned: *pinned, in_use: *in_use });
        }
        let policy = Policy { max_age: Duration::from_secs(max_age), ..POLICY };
        let running = Duration::from_secs(running);
        let judged = judge(&images, &uses, &policy, at(now), running);
        prop_assert_eq!(judged.len(), images.len());
        for one in &judged {
            let image = images.iter().find(|i| i.id == one.id).expect("of these");
            let goes = matches!(one.verdict, ImageVerdict::TooOld | ImageVerdict::Spare);
            prop_assert!(!(goes && (image.pinned || image.in_use)));
            let young = at(now).since(uses.0[&one.id].first_seen) < POLICY.min_age;
            prop_assert!(!(one.verdict == ImageVerdict::Spare && young));
            prop_assert!(one.verdict != ImageVerdict::TooOld || running > policy.max_age);
        }
        let order: Vec<_> = judged.iter().map(|j| uses.0[&j.id].last_used).collect();
        prop_assert!(order.is_sorted());
    }
}
