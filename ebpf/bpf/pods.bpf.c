// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Life and death of the processes and cgroups of pods, as they happen.
 *
 * Input:  `tracked` (cgroup id -> pod slot; userspace adds a pod's cgroup, cgroup_mkdir adds its
 *         children here in the kernel) and `inits` (process id -> pod slot; first processes that
 *         are not pid 1 of a namespace of their own, for pods that share one).
 * Output: `events`, a ring of struct event, read by src/ring.rs and decoded by src/decode.rs.
 * Bounds: the maps and the ring have a size; what does not fit is counted in `counters`, never
 * waited for. A pod may have `cfg_pod_cgroups` of `tracked` that were made after it was tracked: a
 * container that can make cgroups fills its pod's share and no other one's (`shares`).
 *
 * A process or cgroup that belongs to no pod costs one hash lookup. Only direct BTF loads are used,
 * no bpf_probe_read*, so that the programs also load under lockdown=confidentiality. Each program
 * stands alone: the loader loads them one by one, and any may be absent.
 */
#include "kernel.h"

/* Some helpers are for GPL-compatible programs only. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Shared with src/decode.rs: the layout, the types and the flags. */
enum event_type {
	EVENT_EXEC = 1,
	EVENT_EXIT = 2,
	EVENT_OOM = 3,
	EVENT_CGROUP_CREATED = 4,
	EVENT_CGROUP_REMOVED = 5,
	EVENT_POPULATED = 6,
};
enum event_flags {
	FLAG_TRACKED = 1, /* slot is valid */
	FLAG_INIT = 2,    /* the process is a container's first one */
	FLAG_OOM = 4,     /* the OOM killer chose this process */
};
struct event {
	u64 time_ns; /* CLOCK_MONOTONIC */
	u64 cgroup;
	u64 slot;
	u32 type;
	u32 pid;  /* process id as the agent's pid namespace numbers it */
	s32 code; /* exit: wait status; populated: 0 or 1 */
	u32 flags;
	u64 comm[2];
};

/* Shared with src/load.rs. */
enum tracked_state {
	STATE_STARTED = 1, /* the container's entry point was executed */
	STATE_NAMED = 2,   /* userspace named its first process: no other one here is one */
	STATE_COUNTED = 4, /* the mkdir program added it, and counted it for its pod */
};
struct tracked {
	u64 slot;
	u64 state;
};
/* Tells a process apart from a later one with its number. */
struct process {
	u64 start_ns;
	u64 pid;
};
enum counter { COUNTER_RING_FULL, COUNTER_MAP_FULL, COUNTERS };

enum controller {
	UNIFIED = 0,
	CPUSET,
	CPU,
	CPUACCT,
	BLKIO,
	MEMORY,
	DEVICES,
	FREEZER,
	PIDS,
};

/* Set and frozen before the programs load: the verifier decides branches on them, once. */
volatile const u32 cfg_controller = UNIFIED; /* which hierarchy the pod cgroups are in */
volatile const u32 cfg_hierarchy = 0;        /* its cgroup_root.hierarchy_id */
volatile const u32 cfg_pid_namespace = 0;    /* inode of the agent's, 0 if it is the host's */
volatile const u32 cfg_pod_cgroups = 256;    /* cgroups that are followed because a pod made them */

/* The sizes below are defaults; src/load.rs sets the named limits. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, struct tracked);
} tracked SEC(".maps");

/* Pod slot -> its counted cgroups; userspace adds and removes the pod. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, u64);
} shares SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u64);
} inits SEC(".maps");

/* Processes whose end was reported; the oldest make room. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct process);
	__type(value, u64);
} ended SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

ALWAYS_INLINE void count(u32 index)
{
	u64 *value = bpf_map_lookup_elem(&counters, &index);

	if (value)
		(*value)++;
}

/* --- where a task is --- */

ALWAYS_INLINE u64 subsys_cgroup(struct css_set *set, u64 index)
{
	struct cgroup_subsys_state **slot = (void *)set + FIELD_OFFSET(set->subsys) + index * 8;
	struct cgroup_subsys_state *state = *slot;

	return state->cgroup->kn->id;
}

#define SUBSYS(number, name)                                                                       \
	if (cfg_controller == number)                                                              \
		return subsys_cgroup(set, ENUM_VALUE(enum cgroup_subsys_id, name))

ALWAYS_INLINE u64 task_cgroup(struct task_struct *task)
{
	struct css_set *set = task->cgroups;

	SUBSYS(CPUSET, cpuset_cgrp_id);
	SUBSYS(CPU, cpu_cgrp_id);
	SUBSYS(CPUACCT, cpuacct_cgrp_id);
	SUBSYS(BLKIO, io_cgrp_id);
	SUBSYS(MEMORY, memory_cgrp_id);
	SUBSYS(DEVICES, devices_cgrp_id);
	SUBSYS(FREEZER, freezer_cgrp_id);
	SUBSYS(PIDS, pids_cgrp_id);
	return set->dfl_cgrp->kn->id;
}

/* --- who a task is --- */

/* The pid's number at one level, by a constant offset: see FIELD_OFFSET and OPAQUE. */
#define NUMBER_AT(n)                                                                               \
	if (level == n) {                                                                          \
		void *at = (void *)pid + FIELD_OFFSET(pid->numbers) + n * sizeof(struct upid);     \
		OPAQUE(at);                                                                        \
		return *(int *)at;                                                                 \
	}

ALWAYS_INLINE u32 number_at(struct pid *pid, u32 level)
{
	NUMBER_AT(0)
	NUMBER_AT(1)
	NUMBER_AT(2)
	NUMBER_AT(3)
	NUMBER_AT(4)
	NUMBER_AT(5)
	return 0;
}

#define NAMESPACE_AT(n)                                                                            \
	if (pid->level >= n) {                                                                     \
		void *at = (void *)pid + FIELD_OFFSET(pid->numbers) + n * sizeof(struct upid) + 8; \
		OPAQUE(at);                                                                        \
		struct pid_namespace *ns = *(struct pid_namespace **)at;                           \
		if (ns->ns.inum == cfg_pid_namespace)                                              \
			return n;                                                                  \
	}

/* Level of the agent's pid namespace in this process' chain; 0, the host's, if it is not in it. */
ALWAYS_INLINE u32 agent_level(struct pid *pid)
{
	if (cfg_pid_namespace == 0)
		return 0;
	NAMESPACE_AT(1)
	NAMESPACE_AT(2)
	NAMESPACE_AT(3)
	return 0;
}

struct who {
	u32 pid;
	u32 flags;
};

/*
 * A container's first process is pid 1 of a namespace made directly under the agent's: one made
 * inside a container (docker in docker) is not meant. With a shared namespace userspace names the
 * process; in the host's, what a container makes itself lies directly under the agent's as well, so
 * that there only the named process counts.
 */
ALWAYS_INLINE struct who identify(struct task_struct *task, struct tracked *pod)
{
	struct pid *pid = task->group_leader->thread_pid;
	u32 level = agent_level(pid);
	struct who who = { .pid = number_at(pid, level), .flags = 0 };

	u64 *slot = bpf_map_lookup_elem(&inits, &who.pid);

	int named = pod && (pod->state & STATE_NAMED);

	if (!named && pid->level == level + 1 && number_at(pid, level + 1) == 1)
		who.flags = FLAG_INIT;
	else if (pod && slot && *slot == pod->slot)
		who.flags = FLAG_INIT;
	return who;
}

/* --- events --- */

ALWAYS_INLINE void emit(u32 type, u64 cgroup, struct tracked *pod, struct who who, s32 code,
			struct task_struct *task)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		count(COUNTER_RING_FULL);
		return;
	}
	event->time_ns = bpf_ktime_get_ns();
	event->cgroup = cgroup;
	event->slot = pod ? pod->slot : 0;
	event->type = type;
	event->pid = who.pid;
	event->code = code;
	event->flags = who.flags | (pod ? FLAG_TRACKED : 0);
	event->comm[0] = 0;
	event->comm[1] = 0;
	if (task) {
		u64 *comm = (void *)task + FIELD_OFFSET(task->comm);

		event->comm[0] = comm[0];
		event->comm[1] = comm[1];
	}
	bpf_ringbuf_submit(event, 0);
}

/* Only the first: it is the entry point taking over from the runtime's own init. */
SEC("tp_btf/sched_process_exec")
int pod_exec(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	u64 cgroup = task_cgroup(task);
	struct tracked *pod = bpf_map_lookup_elem(&tracked, &cgroup);

	if (!pod || (pod->state & STATE_STARTED))
		return 0;
	struct who who = identify(task, pod);

	if (!(who.flags & FLAG_INIT))
		return 0;
	pod->state |= STATE_STARTED;
	emit(EVENT_EXEC, cgroup, pod, who, 0, task);
	return 0;
}

/* Whether this is the first report of its end. Two threads that end at the same instant may both
 * find that no other lives; creating an entry is atomic, so only one of them succeeds. */
ALWAYS_INLINE int first_report(struct task_struct *leader)
{
	struct process process = { .start_ns = leader->start_boottime, .pid = leader->tgid };
	u64 yes = 1;

	return bpf_map_update_elem(&ended, &process, &yes, BPF_NOEXIST) != -17 /* EEXIST */;
}

/* The end of a process: its last thread. The status is taken as wait_task_zombie() takes it. */
ALWAYS_INLINE int process_exit(u64 *ctx, int report_oom)
{
	struct task_struct *task = (void *)ctx[0];
	struct signal_struct *signal = task->signal;

	if (signal->live.counter != 0)
		return 0;
	u64 cgroup = task_cgroup(task);
	struct tracked *pod = bpf_map_lookup_elem(&tracked, &cgroup);
	u64 oom = signal->oom_mm != NULL; /* set for good when the OOM killer marks the process */

	OPAQUE(oom); /* or clang tests both pointers by or-ing them, which the verifier refuses */
	report_oom = report_oom && oom;
	if (!pod && !report_oom)
		return 0;
	struct who who = identify(task, pod);
	int init = pod && (who.flags & FLAG_INIT);

	if ((!init && !report_oom) || !first_report(task->group_leader))
		return 0;
	if (oom)
		who.flags |= FLAG_OOM;
	if (report_oom)
		emit(EVENT_OOM, cgroup, pod, who, 0, task);
	if (!init)
		return 0;
	bpf_map_delete_elem(&inits, &who.pid);
	int killed = signal->flags & SIGNAL_GROUP_EXIT;

	emit(EVENT_EXIT, cgroup, pod, who,
	     killed ? signal->group_exit_code : task->group_leader->exit_code, task);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int pod_exit(u64 *ctx)
{
	return process_exit(ctx, 0);
}

/* Instead of pod_exit where pod_oom cannot load: the victim is reported when it ends. */
SEC("tp_btf/sched_process_exit")
int pod_exit_oom(u64 *ctx)
{
	return process_exit(ctx, 1);
}

/*
 * Kernel 6.8 and newer pass the victim's task; older ones pass a bare process id, from which the
 * victim's cgroup cannot be found (the current task is the one that allocated). There the verifier
 * refuses this program and pod_exit_oom takes its place. Victims outside any pod are reported as
 * well.
 */
SEC("tp_btf/mark_victim")
int pod_oom(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	u64 cgroup = task_cgroup(task);
	struct tracked *pod = bpf_map_lookup_elem(&tracked, &cgroup);
	struct who who = identify(task, pod);

	who.flags |= FLAG_OOM;
	emit(EVENT_OOM, cgroup, pod, who, 0, task);
	return 0;
}

/* --- cgroups --- */

static const struct who nobody = { 0, 0 };

SEC("tp_btf/cgroup_mkdir")
int pod_mkdir(u64 *ctx)
{
	struct cgroup *cgroup = (void *)ctx[0];

	if ((u32)cgroup->root->hierarchy_id != cfg_hierarchy)
		return 0;
	u64 parent = cgroup->self.parent->cgroup->kn->id;
	struct tracked *pod = bpf_map_lookup_elem(&tracked, &parent);

	if (!pod)
		return 0;
	u64 id = cgroup->kn->id;
	struct tracked child = { .slot = pod->slot, .state = pod->state & STATE_NAMED };
	u64 *share = bpf_map_lookup_elem(&shares, &child.slot);

	if (share) {
		if (*share >= cfg_pod_cgroups) {
			count(COUNTER_MAP_FULL);
			return 0;
		}
		child.state |= STATE_COUNTED;
	}
	long error = bpf_map_update_elem(&tracked, &id, &child, BPF_NOEXIST);

	if (error == -7 /* E2BIG */)
		count(COUNTER_MAP_FULL);
	else if (!error && share)
		__sync_fetch_and_add(share, 1);
	emit(EVENT_CGROUP_CREATED, id, pod, nobody, 0, NULL);
	return 0;
}

SEC("tp_btf/cgroup_rmdir")
int pod_rmdir(u64 *ctx)
{
	struct cgroup *cgroup = (void *)ctx[0];

	if ((u32)cgroup->root->hierarchy_id != cfg_hierarchy)
		return 0;
	u64 id = cgroup->kn->id;
	struct tracked *pod = bpf_map_lookup_elem(&tracked, &id);

	if (!pod)
		return 0;
	emit(EVENT_CGROUP_REMOVED, id, pod, nobody, 0, NULL);
	if (pod->state & STATE_COUNTED) {
		u64 slot = pod->slot;
		u64 *share = bpf_map_lookup_elem(&shares, &slot);

		if (share)
			__sync_fetch_and_add(share, -1);
	}
	bpf_map_delete_elem(&tracked, &id);
	return 0;
}

SEC("tp_btf/cgroup_notify_populated")
int pod_populated(u64 *ctx)
{
	struct cgroup *cgroup = (void *)ctx[0];

	if ((u32)cgroup->root->hierarchy_id != cfg_hierarchy)
		return 0;
	u64 id = cgroup->kn->id;
	struct tracked *pod = bpf_map_lookup_elem(&tracked, &id);

	if (!pod)
		return 0;
	emit(EVENT_POPULATED, id, pod, nobody, (u32)ctx[2] != 0, NULL);
	return 0;
}
