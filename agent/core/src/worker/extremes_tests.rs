//! No number that a tenant may write, and no clock, makes the core panic or wait for ever.
//!
//! The API bounds few of a pod's numbers. Here each of them is as large, as small or as negative
//! as it can be written.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::status::PodVerdict;
use crate::sync::plan::Action;
use crate::sync::stop_order;
use crate::worker::testing::{Host, plain, settings};
use crate::worker::{Failure, PodsInput};
use pintle_api_types::ids::{Mono, UnixNanos};
use pintle_api_types::pod;

fn any_i64() -> impl Strategy<Value = i64> {
    let edges = vec![
        i64::MIN,
        i64::MIN + 1,
        -400_000_000_000,
        -1,
        0,
        1,
        2,
        30,
        400_000_000_000,
        i64::MAX / 1_000_000_000,
        i64::MAX / 2 + 1,
        i64::MAX - 1,
        i64::MAX,
    ];
    prop_oneof![4 => prop::sample::select(edges), 1 => any::<i64>()]
}

fn any_i32() -> impl Strategy<Value = i32> {
    let edges = vec![i32::MIN, -1, 0, 1, 3, 10, i32::MAX - 1, i32::MAX];
    prop_oneof![4 => prop::sample::select(edges), 1 => any::<i32>()]
}

fn any_quantity() -> impl Strategy<Value = String> {
    let texts = [
        "0",
        "1",
        "-1",
        "100m",
        "9223372036854775807",
        "-9223372036854775808",
        "1e30",
        "100E",
        "8Ei",
        "-8Ei",
        "1n",
        "99999999999999999999999999",
        "0.000000001",
        "1Ki",
    ];
    prop::sample::select(texts.to_vec()).prop_map(str::to_owned)
}

#[derive(Clone, Debug)]
struct Numbers {
    long: Vec<i64>,
    short: Vec<i32>,
    quantities: Vec<String>,
    policy: &'static str,
}

fn any_numbers() -> impl Strategy<Value = Numbers> {
    let policy = prop::sample::select(vec!["Always", "OnFailure", "Never"]);
    let long = prop::collection::vec(any_i64(), 12);
    let short = prop::collection::vec(any_i32(), 16);
    let quantities = prop::collection::vec(any_quantity(), 8);
    (long, short, quantities, policy).prop_map(|(long, short, quantities, policy)| Numbers {
        long,
        short,
        quantities,
        policy,
    })
}

impl Numbers {
    fn probe(&self, at: usize) -> Value {
        let of = |back: usize| self.short[(at + back) % self.short.len()];
        json!({"exec": {"command": ["x"]}, "initialDelaySeconds": of(0), "periodSeconds": of(1),
            "timeoutSeconds": of(2), "failureThreshold": of(3), "successThreshold": of(4),
            "terminationGracePeriodSeconds": self.long[at % self.long.len()]})
    }

    fn resources(&self, at: usize) -> Value {
        let of = |back: usize| &self.quantities[(at + back) % self.quantities.len()];
        let list =
            |at: usize| json!({"cpu": of(at), "memory": of(at + 1), "example.com/x": of(at)});
        json!({"requests": list(0), "limits": list(2)})
    }

    fn pod(&self) -> Pod {
        let container = json!({"name": "c", "image": "i", "resources": self.resources(0),
            "livenessProbe": self.probe(0), "readinessProbe": self.probe(3),
            "startupProbe": self.probe(5),
            "ports": [{"containerPort": self.short[0], "hostPort": self.short[1]}],
            "lifecycle": {"preStop": {"sleep": {"seconds": self.long[6]}}}});
        let spec = json!({"restartPolicy": self.policy, "containers": [container],
            "initContainers": [{"name": "s", "image": "i", "restartPolicy": "Always",
                "livenessProbe": self.probe(7), "resources": self.resources(3)}],
            "terminationGracePeriodSeconds": self.long[0],
            "activeDeadlineSeconds": self.long[1], "priority": self.short[2],
            "resources": self.resources(5), "overhead": {"cpu": self.quantities[7]},
            "tolerations": [{"operator": "Exists", "tolerationSeconds": self.long[2]}]});
        let status = json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "",
            "ready": false, "restartCount": self.short[3], "state": {"terminated":
                {"exitCode": self.short[4]}}}]});
        let meta = json!({"uid": "p", "name": "p", "namespace": "ns", "generation": self.long[3]});
        let pod = json!({"metadata": meta, "spec": spec, "status": status});
        let mut pod = serde_json::from_value(pod).expect("a pod");
        pod::defaults::apply(&mut pod);
        pod
    }

    fn removed(&self) -> Pod {
        let mut pod = self.pod();
        let at = UnixNanos(self.long[4]).to_timestamp();
        let at = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at);
        pod.metadata.deletion_timestamp = Some(at);
        pod.metadata.deletion_grace_period_seconds = Some(self.long[5]);
        pod
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn killed_pod_becomes_overdue_for_any_grace_period(numbers in any_numbers()) {
        let mut host = Host::new();
        host.want(plain("p", "100m"));
        host.stubborn = true;
        let text = |text: &str| text.to_owned();
        let verdict =
            PodVerdict { phase: text("Failed"), reason: text("Evicted"), message: text("why") };
        let grace_seconds = Some(numbers.long[0]);
        host.send(PodsInput::Kill { uid: "p".into(), verdict, grace_seconds });
        host.take();
        // A year, and half a year more.
        host.wait(Duration::from_secs(3600 * 24 * 548));
        prop_assert_eq!(host.take(), "ExceededGracePeriod p");
    }

    #[test]
    fn pod_with_any_numbers_in_its_spec_settles_and_can_be_removed(numbers in any_numbers(), other in any_numbers()) {
        let mut host = Host::with(settings(Duration::from_secs(60)));
        host.want(numbers.pod());
        host.wait(Duration::from_secs(3600));
        host.want(other.pod());
        host.wait(Duration::from_secs(3600));
        host.restart(vec![numbers.pod()]);
        host.wait(Duration::from_secs(3600));
        host.want(numbers.removed());
        host.remove("p");
        host.wait(Duration::from_secs(3600));
        prop_assert_eq!(host.stage("p"), None, "{}", host.take());
    }

    #[test]
    fn a_stop_has_a_time_that_can_be_waited_for(numbers in any_numbers(), grace in any_i64()) {
        let mut record = crate::observed::ObservedPod::empty("p".into(), "ns", "p");
        record.containers = ["s", "c"].map(|name| {
            crate::status::testing::container(name, name)
        }).into();
        for pod in [Some(numbers.pod()), Some(numbers.removed()), None] {
            for stop in stop_order::stop_pod(pod.as_ref(), &record, Some(grace))
                .into_iter().chain(stop_order::stop_pod(pod.as_ref(), &record, None))
            {
                prop_assert!((0..=pod::GRACE_SECONDS_MAX).contains(&stop.grace_seconds));
            }
        }
    }

    #[test]
    fn failure_with_any_retry_delay_is_retried(seconds in any::<u64>()) {
        let mut host = Host::new();
        let mut failure = Failure::new("ErrImagePull", "no");
        failure.retry_after = Some(Duration::from_secs(seconds));
        host.failing.insert("c".to_owned(), failure);
        host.want(plain("p", "100m"));
        let wake = host.pods.next_wake().expect("it is looked at again");
        prop_assert!(wake > host.now.mono && wake < Mono::NEVER);
        prop_assert!(!host.take().contains(Action::Prepare.verb()));
    }
}
