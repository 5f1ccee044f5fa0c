//! Tests of the CronJob controller.

mod schedules;
mod vectors;
