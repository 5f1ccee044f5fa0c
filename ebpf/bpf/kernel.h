/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The part of the kernel that pods.bpf.c reads, and nothing else.
 *
 * Every struct is marked preserve_access_index: the field offsets written here are only
 * placeholders which the loader replaces by those of the running kernel (CO-RE), so neither
 * vmlinux.h nor kernel headers are needed to build. Field names and nesting must match the
 * kernel's; order and gaps need not. Enum values likewise: the number here is a placeholder, the
 * name is what counts.
 */
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;

#define SEC(n) __attribute__((section(n), used))
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define CORE __attribute__((preserve_access_index))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
#define NULL ((void *)0)

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_F_NO_PREALLOC = 1,
	BPF_NOEXIST = 1,
};

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value,
					 u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static void *(*const bpf_ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, u64 flags) = (void *)132;

/* Byte offset of a field in the running kernel, for arrays the loader's accessor check refuses. */
#define FIELD_OFFSET(f) __builtin_preserve_field_info(f, 0)
/* Value of an enumerator in the running kernel. */
#define ENUM_VALUE(type, name) __builtin_preserve_enum_value(*(type *)name, 1)
/* Hides where a pointer came from, so that each branch keeps its own constant offset: the verifier
 * refuses variable offsets on kernel pointers. */
#define OPAQUE(p) asm volatile("" : "+r"(p))

typedef struct {
	int counter;
} atomic_t;

enum cgroup_subsys_id {
	cpuset_cgrp_id = 1,
	cpu_cgrp_id,
	cpuacct_cgrp_id,
	io_cgrp_id,
	memory_cgrp_id,
	devices_cgrp_id,
	freezer_cgrp_id,
	pids_cgrp_id,
};

struct mm_struct;
struct cgroup;

struct kernfs_node {
	u64 id;
} CORE;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
} CORE;

struct cgroup_root {
	int hierarchy_id;
} CORE;

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
	struct cgroup_root *root;
} CORE;

struct css_set {
	struct cgroup_subsys_state *subsys[16];
	struct cgroup *dfl_cgrp;
} CORE;

struct ns_common {
	u32 inum;
} CORE;

struct pid_namespace {
	struct ns_common ns;
} CORE;

struct upid {
	int nr;
	struct pid_namespace *ns;
} CORE;

struct pid {
	u32 level;
	struct upid numbers[1];
} CORE;

#define SIGNAL_GROUP_EXIT 0x4

struct signal_struct {
	atomic_t live;
	int group_exit_code;
	u32 flags;
	struct mm_struct *oom_mm;
} CORE;

struct task_struct {
	int tgid;
	int exit_code;
	u64 start_boottime;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	char comm[16];
	struct signal_struct *signal;
	struct css_set *cgroups;
} CORE;
