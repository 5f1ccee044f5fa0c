//! Health checks by name: `/healthz`, `/livez`, `/readyz`, and each check below them.
//!
//! Input: functions that return a fault. Output: pages in upstream's words, and counts as metrics.
//! The page of all names failed checks without their reasons, because it needs no credentials; the
//! page of one check has the reason, and so has the log when it begins to fail. Checks must not
//! block.
// k8s: staging/src/k8s.io/apiserver/pkg/server/healthz/healthz.go handleRootHealth

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use super::answer::HttpAnswer;
use super::query::Query;

/// The fault that a check found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckFault {
    /// The lease was held, and its renewal is late.
    #[error("failed election to renew leadership on lease {0}")]
    LateLease(String),
    /// The deciding thread has made no turn for this long.
    #[error("the deciding thread is stuck: no turn for {0:?}")]
    StuckThread(Duration),
    /// The main loop is silent.
    #[error(
        "sync Loop took longer than expected: the main loop has not turned for {silence} s, \
         {allowed} s are allowed"
    )]
    SilentLoop {
        /// Seconds without a turn.
        silence: u64,
        /// Seconds that are allowed.
        allowed: u64,
    },
    /// The process ends.
    #[error("process is shutting down")]
    Ending,
    /// The first lists are not complete.
    #[error("handlers are not fully synchronized")]
    NotSynced,
    /// The words of a part of the process.
    #[error("{0}")]
    Part(String),
}

/// Returns the fault.
type Test = Box<dyn Fn() -> Result<(), CheckFault> + Send + Sync>;

/// The checks of one path.
pub struct Checks {
    /// `healthz`, `livez`, `readyz`.
    kind: &'static str,
    checks: Vec<NamedCheck>,
}

struct NamedCheck {
    name: &'static str,
    /// The check exists only while this returns true.
    is_there: Box<dyn Fn() -> bool + Send + Sync>,
    test: Test,
    good: AtomicU64,
    bad: AtomicU64,
    /// The last result: `UNKNOWN`, `FAILED`, `PASSED`.
    last: AtomicU8,
}

const UNKNOWN: u8 = 0;
const FAILED: u8 = 1;
const PASSED: u8 = 2;

impl Checks {
    /// None yet, for the path `/KIND`.
    pub fn new(kind: &'static str) -> Self {
        Self { kind, checks: Vec::new() }
    }

    /// Adds a check, which is run after the others.
    #[must_use]
    pub fn with(
        self,
        name: &'static str,
        test: impl Fn() -> Result<(), CheckFault> + Send + Sync + 'static,
    ) -> Self {
        self.with_while(name, || true, test)
    }

    /// Adds a check that exists only while `is_there` returns true: for a part of the process that
    /// may not have begun, or not run at all.
    #[must_use]
    pub fn with_while(
        mut self,
        name: &'static str,
        is_there: impl Fn() -> bool + Send + Sync + 'static,
        test: impl Fn() -> Result<(), CheckFault> + Send + Sync + 'static,
    ) -> Self {
        let (good, bad, last) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU8::new(UNKNOWN));
        let (is_there, test) = (Box::new(is_there), Box::new(test));
        self.checks.push(NamedCheck { name, is_there, test, good, bad, last });
        self
    }

    /// The checks that exist now.
    fn present(&self) -> impl Iterator<Item = &NamedCheck> {
        self.checks.iter().filter(|check| (check.is_there)())
    }

    /// Answers a path at or below `/KIND`; `None` for others.
    pub fn answer(&self, path: &str, query: &Query) -> Option<HttpAnswer> {
        let below = path.strip_prefix('/')?.strip_prefix(self.kind)?;
        if below.is_empty() || below == "/" {
            return Some(self.all(query));
        }
        let name = below.strip_prefix('/')?;
        let check = self.present().find(|check| check.name == name)?;
        Some(match (check.test)() {
            Ok(()) => HttpAnswer::text(200, "ok"),
            Err(error) => HttpAnswer::text(500, format!("internal server error: {error}\n")),
        })
    }

    fn all(&self, query: &Query) -> HttpAnswer {
        let mut excluded: BTreeSet<&str> = query.all("exclude").collect();
        let (mut text, mut failed) = (String::new(), false);
        for check in self.present() {
            let name = check.name;
            // To strings: cannot fail.
            let _ = match excluded.remove(name) {
                true => writeln!(text, "[+]{name} excluded: ok"),
                false if check.run(self.kind) => writeln!(text, "[+]{name} ok"),
                false => {
                    failed = true;
                    writeln!(text, "[-]{name} failed: reason withheld")
                }
            };
        }
        if !excluded.is_empty() {
            let names: Vec<_> = excluded.iter().map(|name| format!("{name:?}")).collect();
            let names = names.join(",");
            text += "warn: some health checks cannot be excluded: no matches for ";
            text += &names;
            text.push('\n');
        }
        let kind = self.kind;
        match failed {
            true => HttpAnswer::text(500, format!("{text}{kind} check failed\n")),
            false if query.first("verbose").is_none() => HttpAnswer::text(200, "ok"),
            false => HttpAnswer::text(200, format!("{text}{kind} check passed\n")),
        }
    }

    /// The results of the checks of these paths as metrics; empty until a check has run.
    // k8s: staging/src/k8s.io/component-base/metrics/prometheus/slis/metrics.go
    pub fn slis(of: &[&Self]) -> String {
        let (mut last, mut totals) = (String::new(), String::new());
        for (kind, check) in of.iter().flat_map(|one| one.checks.iter().map(|c| (one.kind, c))) {
            let labels = format!("name=\"{}\"", check.name);
            let passed = match check.last.load(Ordering::Relaxed) {
                UNKNOWN => continue,
                last => u8::from(last == PASSED),
            };
            last += &format!("kubernetes_healthcheck{{{labels},type=\"{kind}\"}} {passed}\n");
            for (status, count) in [("error", &check.bad), ("success", &check.good)] {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let labels = format!("{labels},status=\"{status}\",type=\"{kind}\"");
                    totals += &format!("kubernetes_healthchecks_total{{{labels}}} {count}\n");
                }
            }
        }
        if last.is_empty() {
            return last;
        }
        format!(
            "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single \
             healthcheck.\n# TYPE kubernetes_healthcheck gauge\n{last}\
             # HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all \
             healthcheck.\n# TYPE kubernetes_healthchecks_total counter\n{totals}"
        )
    }
}

impl NamedCheck {
    fn run(&self, kind: &str) -> bool {
        let outcome = (self.test)();
        let (counter, now) = match outcome {
            Ok(()) => (&self.good, PASSED),
            Err(_) => (&self.bad, FAILED),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let before = self.last.swap(now, Ordering::Relaxed);
        if let Err(reason) = &outcome
            && before != FAILED
        {
            tracing::warn!(check = self.name, %reason, "{kind} fails");
        }
        now == PASSED
    }
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.checks.iter().map(|check| check.name);
        f.debug_list().entries(names).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn checks() -> (Checks, Arc<AtomicBool>) {
        let broken = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&broken);
        let test = move || match told.load(Ordering::Relaxed) {
            true => Err(CheckFault::Part("no turn for 400 s".to_owned())),
            false => Ok(()),
        };
        (Checks::new("readyz").with("ping", || Ok(())).with("loop", test), broken)
    }

    fn text(checks: &Checks, path: &str, query: &str) -> Option<(u16, String)> {
        let answer = checks.answer(path, &Query::parse(query))?;
        Some((answer.status, String::from_utf8_lossy(&answer.body).into_owned()))
    }

    #[test]
    fn pages_are_upstreams() {
        let (checks, broken) = checks();
        let unknown = "warn: some health checks cannot be excluded: no matches for \"x\",\"y\"\n";
        for (is_broken, path, query, status, page) in [
            (false, "/readyz", "", 200, "ok".to_owned()),
            (false, "/readyz/", "", 200, "ok".to_owned()),
            (false, "/readyz/loop", "", 200, "ok".to_owned()),
            (
                false,
                "/readyz",
                "verbose",
                200,
                "[+]ping ok\n[+]loop ok\nreadyz check passed\n".into(),
            ),
            (
                true,
                "/readyz",
                "",
                500,
                "[+]ping ok\n[-]loop failed: reason withheld\nreadyz check failed\n".into(),
            ),
            (true, "/readyz/loop", "", 500, "internal server error: no turn for 400 s\n".into()),
            (true, "/readyz/ping", "", 200, "ok".into()),
            (
                true,
                "/readyz",
                "exclude=loop&verbose=1",
                200,
                "[+]ping ok\n[+]loop excluded: ok\nreadyz check passed\n".into(),
            ),
            (
                false,
                "/readyz",
                "verbose&exclude=y&exclude=x",
                200,
                format!("[+]ping ok\n[+]loop ok\n{unknown}readyz check passed\n"),
            ),
        ] {
            broken.store(is_broken, Ordering::Relaxed);
            assert_eq!(text(&checks, path, query), Some((status, page)), "{path}?{query}");
        }
        for other in ["/readyz/other", "/readyzz", "/livez", "readyz", "/"] {
            assert_eq!(text(&checks, other, ""), None, "{other}");
        }
    }

    #[test]
    fn check_that_is_not_there_is_neither_run_nor_shown() {
        let (checks, is_there) = (Checks::new("healthz"), Arc::new(AtomicBool::new(false)));
        let there = Arc::clone(&is_there);
        let fails = || Err(CheckFault::Part("broken".to_owned()));
        let checks = checks.with_while("part", move || there.load(Ordering::Relaxed), fails);
        assert_eq!(text(&checks, "/healthz", ""), Some((200, "ok".to_owned())));
        assert_eq!(text(&checks, "/healthz/part", ""), None);
        is_there.store(true, Ordering::Relaxed);
        assert_eq!(text(&checks, "/healthz", "").map(|page| page.0), Some(500));
        assert_eq!(text(&checks, "/healthz/part", "").map(|page| page.0), Some(500));
    }

    #[test]
    fn only_requested_checks_are_counted_in_slis() {
        let (checks, broken) = checks();
        assert_eq!(Checks::slis(&[&checks]), "");
        text(&checks, "/readyz", "");
        broken.store(true, Ordering::Relaxed);
        text(&checks, "/readyz", "exclude=ping");
        let metrics = Checks::slis(&[&checks]);
        let samples: Vec<_> = metrics.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "kubernetes_healthcheck{name=\"ping\",type=\"readyz\"} 1",
                "kubernetes_healthcheck{name=\"loop\",type=\"readyz\"} 0",
                "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"readyz\"} 1",
                "kubernetes_healthchecks_total{name=\"loop\",status=\"error\",type=\"readyz\"} 1",
                "kubernetes_healthchecks_total{name=\"loop\",status=\"success\",type=\"readyz\"} 1",
            ]
        );
    }
}
