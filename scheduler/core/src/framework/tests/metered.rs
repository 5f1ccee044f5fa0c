//! Plugin calls are counted, and one attempt of ten is timed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::super::Meter;
use super::super::*;
use super::{EVERYWHERE, HEAD, Script, registry};
use crate::config;
use crate::cycle::Scheduler;
use crate::cycle::tests::{decide, deliver_lists, node, pod, without_second_look};

#[derive(Default)]
struct MeteredCalls {
    timed: RefCell<BTreeMap<(&'static str, &'static str), usize>>,
    asked: RefCell<BTreeMap<&'static str, usize>>,
}

impl Meter for MeteredCalls {
    fn ran(&self, plugin: &str, point: &'static str, status: &'static str, _: Duration) {
        assert_eq!(plugin, "Script");
        *self.timed.borrow_mut().entry((point, status)).or_default() += 1;
    }

    fn evaluated(&self, plugin: &str, point: &'static str, times: usize) {
        assert_eq!(plugin, "Script");
        *self.asked.borrow_mut().entry(point).or_default() += times;
    }
}

#[test]
fn calls_are_counted_and_one_attempt_of_ten_is_timed() {
    let script = Rc::<Script>::default();
    script.rejects.borrow_mut().insert("a", Rejection::Unschedulable("no".to_owned()));
    let all = |s: Rc<Script>| {
        let points = Points::default().pre_filter(s.clone()).filter(s.clone());
        points.score(s.clone()).reserve(s.clone()).permit(s)
    };
    let registry = registry(&script, all);
    let file = format!("{HEAD}{EVERYWHERE}\n");
    let (profiles, chosen) = config::profiles_with(&file, &registry).expect("a good file");
    let (handle, counts) = (Handle::default(), Rc::<MeteredCalls>::default());
    let plugins = registry.plugins(&chosen[0], &handle).expect("good plugins");
    let plugins = plugins.metered(counts.clone());
    let scheduler = Scheduler::new(profiles, without_second_look(), 1);
    let mut scheduler = scheduler.with_plugins(vec![Some(Rc::new(plugins))], handle);
    let mut things = vec![node("a", "80"), node("b", "80"), node("c", "80")];
    things.extend((0..12).map(|at| pod(&format!("p{at}"), "1")));
    deliver_lists(&mut scheduler, &things);
    decide(&mut scheduler, 0);
    let asked = [("Filter", 36), ("PreFilter", 12), ("Score", 24)];
    assert_eq!(*counts.asked.borrow(), asked.into());
    let timed = [
        (("Filter", "Success"), 4),
        (("Filter", "Unschedulable"), 2),
        (("Permit", "Success"), 2),
        (("PreFilter", "Success"), 2),
        (("Reserve", "Success"), 2),
        (("Score", "Success"), 4),
    ];
    assert_eq!(*counts.timed.borrow(), timed.into());
}
