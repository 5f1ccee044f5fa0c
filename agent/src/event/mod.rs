//! Hints: reasons to look at a pod, from the kernel, from CRI, from containerd.
//!
//! Every source turns what it hears into `Input::Hint` and nothing else; state always comes from
//! a CRI read. A source may be missing, late, or wrong without harm: the slow relist is behind all
//! of them. `kernel` owns the eBPF source, `cri` the runtime's event stream, `containerd` its task events.

pub mod containerd;
pub mod cri;
pub mod kernel;
