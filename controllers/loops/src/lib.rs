//! The controllers of kube-controller-manager, one file or folder each, as pure functions.

#![forbid(unsafe_code)]
