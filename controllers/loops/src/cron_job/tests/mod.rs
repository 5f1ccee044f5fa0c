//! Tests of the CronJob controller.
