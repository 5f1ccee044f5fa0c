//! Tests of the CronJob controller.

mod cases;
mod schedules;
mod vectors;
