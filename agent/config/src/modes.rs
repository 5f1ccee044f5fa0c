//! The closed sets of words a KubeletConfiguration field may hold, one enum each.
//!
//! Input and output: the exact words of the v1beta1 API. An unknown word is refused while the
//! file or flag is read, with the list of the allowed ones, so that no later stage has to handle
//! it. Each enum's `Default` is the kubelet's default.

use pintle_config::words;

words! {
    /// Authorization mode of the agent's HTTPS server.
    AuthorizationMode {
        /// Asks the API server with a SubjectAccessReview.
        Webhook = "Webhook",
        /// Lets every authenticated request through.
        AlwaysAllow = "AlwaysAllow",
    }
}

words! {
    /// The creator of cgroups: the agent by writing files, or systemd.
    CgroupDriver {
        /// Plain files under the cgroup file system.
        Cgroupfs = "cgroupfs",
        /// Slices created over systemd's D-Bus interface.
        Systemd = "systemd",
    }
}

words! {
    /// CPU manager policy.
    CpuManagerPolicy {
        /// All containers share all CPUs.
        None = "none",
        /// Guaranteed containers with whole CPUs get their own.
        Static = "static",
    }
}

words! {
    /// Memory manager policy.
    MemoryManagerPolicy {
        /// No NUMA pinning.
        None = "None",
        /// Guaranteed pods are pinned to NUMA nodes.
        Static = "Static",
    }
}

words! {
    /// Topology manager policy.
    TopologyManagerPolicy {
        /// NUMA is not considered.
        None = "none",
        /// Aligned when possible.
        BestEffort = "best-effort",
        /// Refused unless aligned optimally.
        Restricted = "restricted",
        /// Refused unless on one NUMA node.
        SingleNumaNode = "single-numa-node",
    }
}

words! {
    /// The unit that the topology manager aligns.
    TopologyManagerScope {
        /// Each container alone.
        Container = "container",
        /// The pod as a whole.
        Pod = "pod",
    }
}

words! {
    /// The way in which a pod reaches itself through its own Service.
    HairpinMode {
        /// The bridge is made promiscuous.
        PromiscuousBridge = "promiscuous-bridge",
        /// The hairpin flag is set on the container's veth.
        HairpinVeth = "hairpin-veth",
        /// Nothing is done.
        None = "none",
    }
}

words! {
    /// The way in which ConfigMaps and Secrets are kept up to date.
    ChangeDetectionStrategy {
        /// One watch per object in use.
        Watch = "Watch",
        /// Read again when a time to live has passed.
        Cache = "Cache",
        /// Read on every use.
        Get = "Get",
    }
}

words! {
    /// Use of swap by workloads.
    SwapBehavior {
        /// The field is not set, which means `NoSwap`.
        Unset = "",
        /// Workloads may not swap.
        NoSwap = "NoSwap",
        /// Burstable workloads swap in proportion to their memory request.
        LimitedSwap = "LimitedSwap",
    }
}

words! {
    /// When a present image needs its pull credentials checked again.
    ImageVerificationPolicy {
        /// Not for images that something else than this agent pulled.
        NeverVerifyPreloadedImages = "NeverVerifyPreloadedImages",
        /// Never.
        NeverVerify = "NeverVerify",
        /// Not for images on the allow-list.
        NeverVerifyAllowlistedImages = "NeverVerifyAllowlistedImages",
        /// Always.
        AlwaysVerify = "AlwaysVerify",
        /// The field is not set; only valid with its feature gate off.
        Unset = "",
    }
}

words! {
    /// Protection of memory requests on cgroup v2.
    MemoryReservationPolicy {
        /// Not at all.
        None = "None",
        /// `memory.min` for Guaranteed and `memory.low` for Burstable pods.
        TieredReservation = "TieredReservation",
    }
}

words! {
    /// Form of the log lines.
    LogFormat {
        /// klog's text lines.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

words! {
    /// Effect of a taint on pods that do not tolerate it.
    TaintEffect {
        /// New pods are not scheduled here.
        NoSchedule = "NoSchedule",
        /// New pods are scheduled elsewhere when possible.
        PreferNoSchedule = "PreferNoSchedule",
        /// Running pods are evicted, too.
        NoExecute = "NoExecute",
    }
}
