//! Messages of the protocols between a node and its plugins: registration v1 and CSI v1.
//!
//! Generated at build time from protocol files of our own, with the wire numbers of Kubernetes 1.36
//! and CSI 1.9. Without a network library by default: `pintle-agent-plugins` has the calls. The
//! feature `server` adds what a plugin serves, for fakes and for the CSI driver of the tests, and
//! `controller` CSI's Controller service. Debug never prints a secret or a token.

#![forbid(unsafe_code)]
#![allow(missing_docs, unreachable_pub, clippy::all, rustdoc::all)]

mod redact;

/// Registration of plugins.
pub mod registration {
    include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
}

/// Container Storage Interface v1.
pub mod csi {
    include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
}
