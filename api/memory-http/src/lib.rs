//! The API server in memory as clients reach it: over HTTP, or through a client in this process.
//!
//! ```text
//!   kinds, route      paths, and the kinds that they name
//!   request           a request of HTTP as one of `pintle-memory-api`
//!   fields            field selectors
//!   shared            the server, its clock, its faults, a log of requests
//!   watch             the stream of a watch
//!   answer            answers, lists in pages
//!   client, serve     clients in this process, with lossy connections; a thread that serves a port
//! ```
//! Input: requests of the Kubernetes API as JSON, and what a test does to the server. Output: the
//! answers of [`pintle_memory_api::Server`], which decides all of them. Owner: a test. Bounds: the
//! history grows with the test; a request has at most 8 MiB. Effects: a port, the clock.
//!
//! Every client is an administrator. Not modelled: protobuf, TLS, discovery, label selectors of
//! watches, bookmarks other than the one that ends the initial events.

#![forbid(unsafe_code)]

mod answer;
mod client;
mod fields;
mod kinds;
mod request;
mod route;
mod serve;
mod shared;
mod watch;

pub use client::Passage;
pub use serve::HttpServer;
pub use shared::SharedServer;

#[cfg(test)]
mod tests;
