//! Tests of sets of indexes.
// k8s: pkg/controller/job/indexed_job_utils_test.go

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::indexes::Indexes;

#[test]
fn indexes_that_succeeded_are_merged_into_those_of_the_status() {
    for (known, new, completions, merged) in [
        ("", &[1][..], 2, "1"),
        ("", &[5, 10], 11, "5,10"),
        ("", &[2, 3, 5, 6, 7], 8, "2,3,5-7"),
        ("", &[0, 2, 3, 4, 5], 6, "0,2-5"),
        ("0-5,8-10", &[], 8, "0-5"),
        ("0-5,8-10", &[], 10, "0-5,8,9"),
        ("0,4,5,10-12", &[2, 7, 8], 13, "0,2,4,5,7,8,10-12"),
        ("3,4,6", &[2, 7, 8], 9, "2-4,6-8"),
        ("2,7,8", &[3, 4, 6], 9, "2-4,6-8"),
        ("2-7", &[0, 3, 5, 9], 10, "0,2-7,9"),
        ("0,1-foo,bar", &[3], 4, "0,3"),
    ] {
        let known = Indexes::parse(known, completions);
        let all = known.union(&Indexes::of(new.iter().copied()));
        assert_eq!(all.to_string(), merged);
    }
}

#[test]
fn text_of_neighbours_has_a_dash_from_three_on() {
    for (indexes, text) in [
        (&[][..], ""),
        (&[5], "5"),
        (&[5, 6], "5,6"),
        (&[5, 6, 7], "5-7"),
        (&[0, 2, 3, 5, 6, 7, 9], "0,2,3,5-7,9"),
    ] {
        let set = Indexes::of(indexes.iter().copied());
        assert_eq!(set.to_string(), text);
        assert_eq!(set.total(), i64::try_from(indexes.len()).expect("a few"));
    }
}

#[test]
fn first_absent_indexes_are_the_lowest() {
    for (taken, count, completions, absent) in [
        ("", 0, 5, &[][..]),
        ("", 3, 5, &[0, 1, 2]),
        ("", 5, 3, &[0, 1, 2]),
        ("0,2", 5, 5, &[1, 3, 4]),
        ("1,2,4,5,7-9", 5, 20, &[0, 3, 6, 10, 11]),
        ("0-4", 5, 5, &[]),
        ("0-3,5,6", 5, 10, &[4, 7, 8, 9]),
    ] {
        assert_eq!(Indexes::parse(taken, 100).first_absent(count, completions), absent);
    }
}

proptest! {
    #[test]
    fn set_of_indexes_is_a_set(
        some in prop::collection::btree_set(0_i64..40, 0..20),
        more in prop::collection::btree_set(0_i64..40, 0..20),
        count in 0_usize..10,
    ) {
        let (one, other) = (Indexes::of(some.iter().copied()), Indexes::of(more.iter().copied()));
        let union = one.union(&other);
        let all: BTreeSet<_> = some.union(&more).copied().collect();
        for index in 0..41 {
            prop_assert_eq!(union.has(index), all.contains(&index));
        }
        prop_assert_eq!(union.total(), i64::try_from(all.len()).expect("a few"));
        prop_assert_eq!(&Indexes::parse(&union.to_string(), 41), &union);
        let absent: Vec<_> = (0..30).filter(|index| !all.contains(index)).take(count).collect();
        prop_assert_eq!(union.first_absent(count, 30), absent);
    }
}
