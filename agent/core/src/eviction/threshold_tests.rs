//! The meaning of eviction settings: tables.

use super::*;

const MI: u64 = 1 << 20;

fn texts(pairs: &[(&str, &str)]) -> TextMap {
    pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn kubelet() -> KubeletConfiguration {
    KubeletConfiguration {
        eviction_hard: texts(&[("memory.available", "100Mi"), ("nodefs.available", "10%")]),
        eviction_soft: texts(&[("memory.available", "200Mi"), ("imagefs.available", "20%")]),
        eviction_soft_grace_period: texts(&[
            ("memory.available", "1m30s"),
            ("imagefs.available", "30s"),
        ]),
        eviction_minimum_reclaim: texts(&[
            ("memory.available", "50Mi"),
            ("nodefs.available", "5%"),
        ]),
        ..KubeletConfiguration::default()
    }
}

fn reading(available: u64, capacity: u64) -> ResourceReading {
    ResourceReading { available, capacity, ..ResourceReading::default() }
}

fn shown(thresholds: &[Threshold]) -> Vec<String> {
    let one = |t: &Threshold| {
        let level = |level: ThresholdLevel| match level {
            ThresholdLevel::Amount(amount) => amount.canonical(),
            ThresholdLevel::Part(part) => format!("{part}"),
        };
        let reclaim = t.min_reclaim.map(|l| format!("+{}", level(l))).unwrap_or_default();
        let grace = if t.is_hard() { String::new() } else { format!(" for {:?}", t.grace) };
        format!("{}<{}{reclaim}{grace}", t.signal, level(t.level))
    };
    thresholds.iter().map(one).collect()
}

#[test]
fn thresholds_are_parsed_as_in_the_kubelet() {
    let want = [
        "memory.available<100Mi+50Mi",
        "nodefs.available<0.1+0.05",
        "imagefs.available<0.2 for 30s",
        "memory.available<200Mi+50Mi for 90s",
        "allocatableMemory.available<100Mi+50Mi",
    ];
    assert_eq!(shown(&thresholds(&kubelet(), false)), want);
    let mut none = kubelet();
    none.enforce_node_allocatable = vec!["none".to_owned()];
    assert_eq!(thresholds(&none, false).len(), 4);
    assert_eq!(shown(&thresholds(&kubelet(), true)), want[..4], "pods may take all there is");
}

#[test]
fn zero_full_and_invalid_levels_disable_a_threshold() {
    for off in ["0%", "100%", "0", "what", "0.0%", "101%"] {
        let texts = texts(&[("pid.available", off), ("memory.available", "1")]);
        assert_eq!(hard(&texts).len(), 1, "{off}");
    }
    let all = hard(&texts(&[("pid.available", "100.0%")]));
    assert_eq!(
        all,
        [(Signal::PidAvailable, ThresholdLevel::Part(1.0))],
        "only that very text does"
    );
    assert_eq!(
        ThresholdLevel::parse("10%%"),
        ThresholdLevel::parse("10%"),
        "as the kubelet reads it"
    );
    assert_eq!(ThresholdLevel::parse("%"), None);
}

#[test]
fn containerfs_thresholds_follow_nodefs_or_imagefs_by_disk_layout() {
    let settings = Settings {
        thresholds: vec![
            Threshold { signal: Signal::NodeFsAvailable, ..of("10%") },
            Threshold { signal: Signal::ImageFsInodesFree, ..of("5%") },
            Threshold { signal: Signal::ContainerFsAvailable, ..of("1%") },
        ],
        ..Settings::default()
    };
    let on = |images_apart, layers_apart| {
        let all = settings.on(DiskLayout { images_apart, layers_apart });
        shown(&all)[2..].join(", ")
    };
    assert_eq!(on(false, false), "containerfs.available<0.1");
    assert_eq!(on(true, false), "containerfs.inodesFree<0.05");
    assert_eq!(on(true, true), "containerfs.available<0.1");
    assert_eq!(on(false, true), "");
}

fn of(level: &str) -> Threshold {
    let level = ThresholdLevel::parse(level).expect("a level");
    let signal = Signal::MemoryAvailable;
    Threshold { signal, level, grace: Duration::ZERO, min_reclaim: None }
}

// k8s: pkg/kubelet/eviction/helpers_test.go TestThresholdsMet
#[test]
fn threshold_is_met_below_its_level_and_resolved_at_the_minimum_reclaim() {
    let hard = Threshold { min_reclaim: ThresholdLevel::parse("500Mi"), ..of("1Gi") };
    for (available, met, unresolved) in [
        (500 * MI, true, true),
        (1024 * MI - 1, true, true),
        (1024 * MI, false, true),
        (1524 * MI - 1, false, true),
        (1524 * MI, false, false),
    ] {
        let reading = reading(available, 4096 * MI);
        assert_eq!(hard.is_met(&reading, false), met, "{available}");
        assert_eq!(hard.is_met(&reading, true), unresolved, "{available}");
    }
    let part = of("10%");
    assert!(part.is_met(&reading(99, 1000), false) && !part.is_met(&reading(100, 1000), false));
}

#[test]
fn threshold_figures_have_the_unit_of_their_signal() {
    assert_eq!(of("50%").least(&reading(0, 2 * 1024 * MI)).canonical(), "1Gi");
    assert_eq!(of("1Gi").shown(1536 * MI).canonical(), "1536Mi");
    let inodes = Threshold { signal: Signal::NodeFsInodesFree, ..of("5%") };
    assert_eq!(inodes.shown(12_000).canonical(), "12k");
}

#[test]
fn memory_stall_counts_only_with_the_psi_eviction_flag() {
    let settings = |flags: &[&str]| {
        let line = ["pintle-agent"].iter().chain(flags).map(|word| (*word).into());
        match pintle_agent_config::parse(line) {
            Ok(pintle_agent_config::Command::Run(config)) => Settings::of(&config),
            other => panic!("{flags:?} gives {other:?}"),
        }
    };
    assert_eq!(settings(&[]).stall_min, None);
    assert_eq!(settings(&["--pintle-psi-eviction"]).stall_min, Some(STALL_MIN));
    assert_eq!(settings(&["--pintle-psi-eviction=false"]).stall_min, None);
}

#[test]
fn allocatable_threshold_is_absent_when_allocatable_ignores_eviction() {
    let of = |more: &[&str]| {
        let line = ["pintle-agent", "--eviction-hard=memory.available<1Gi"];
        let line = line.iter().chain(more).map(Into::into);
        match pintle_agent_config::parse(line) {
            Ok(pintle_agent_config::Command::Run(config)) => {
                shown(&Settings::of(&config).thresholds)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(of(&[]), ["memory.available<1Gi", "allocatableMemory.available<1Gi"]);
    let ignores = of(&["--experimental-allocatable-ignore-eviction"]);
    assert_eq!(ignores, ["memory.available<1Gi"]);
}
