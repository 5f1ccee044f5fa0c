//! Waits and limits that upstream's integration tests change in their own process.
//!
//! Input: `PINTLE_JOB_SETTINGS`, as `failure_backoff_ms=100,uncounted_max=10`. Output: settings of
//! the Job controller. Only in programs that are built with the feature `suites`:
//! kube-controller-manager has no such option, so ours has none for users.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use pintle_controllers_loops::job::JobSettings;

const JOB_SETTINGS: &str = "PINTLE_JOB_SETTINGS";

/// The settings with what the environment says.
///
/// # Errors
/// When it names a setting that there is not, or no number.
pub(crate) fn job_settings(settings: JobSettings) -> Result<JobSettings> {
    let text = std::env::var(JOB_SETTINGS).unwrap_or_default();
    change(settings, &text).context(JOB_SETTINGS)
}

fn change(mut settings: JobSettings, text: &str) -> Result<JobSettings> {
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').context("NAME=NUMBER")?;
        let number: u64 = value.parse().with_context(|| format!("{name} is {value:?}"))?;
        let time = Duration::from_millis(number);
        let count = usize::try_from(number)?;
        match name {
            "batch_period_ms" => settings.batch_period = time,
            "failure_backoff_ms" => settings.failure_backoff.first = time,
            "failure_backoff_max_ms" => settings.failure_backoff.longest = time,
            "uncounted_max" => settings.uncounted_max = count,
            "pods_per_sync_max" => settings.pods_per_sync_max = count,
            _ => bail!("no setting {name}"),
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_settings_change_and_other_settings_keep_their_values() {
        let changed = change(JobSettings::default(), "failure_backoff_ms=100,uncounted_max=10")
            .expect("settings");
        let mut expected = JobSettings { uncounted_max: 10, ..JobSettings::default() };
        expected.failure_backoff.first = Duration::from_millis(100);
        assert_eq!(changed, expected);
        for wrong in ["x=1", "uncounted_max=many", "uncounted_max"] {
            assert!(change(JobSettings::default(), wrong).is_err(), "{wrong}");
        }
    }
}
