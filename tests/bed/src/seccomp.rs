//! A system call that the kernel refuses, as a node's hardening may.

use std::io;
use std::process::{Child, Command};
use std::thread;

use nix::libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, EPERM, PR_SET_SECCOMP,
    SECCOMP_MODE_FILTER, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SYS_io_uring_setup, c_ulong, prctl,
    sock_filter, sock_fprog,
};

/// Starts a program that gets EPERM for every io_uring that it creates.
pub fn spawn_without_io_uring(cmd: &mut Command) -> io::Result<Child> {
    // The filter applies to a thread and its children.
    let spawn = || {
        refuse_io_uring()?;
        cmd.spawn()
    };
    thread::scope(|scope| scope.spawn(spawn).join()).expect("the thread ends")
}

fn refuse_io_uring() -> io::Result<()> {
    let number = u32::try_from(SYS_io_uring_setup).expect("a small number");
    let mut filter = [
        statement(BPF_LD | BPF_W | BPF_ABS, 0, 0),
        statement(BPF_JMP | BPF_JEQ | BPF_K, 1, number),
        statement(BPF_RET | BPF_K, 0, SECCOMP_RET_ERRNO | EPERM.unsigned_abs()),
        statement(BPF_RET | BPF_K, 0, SECCOMP_RET_ALLOW),
    ];
    let len = u16::try_from(filter.len()).expect("four statements");
    let program = sock_fprog { len, filter: filter.as_mut_ptr() };
    // SAFETY: `program` names `filter` and its length; both live until the call returns, and the
    // kernel copies them. The call changes nothing but the system calls that this thread may make.
    let set =
        unsafe { prctl(PR_SET_SECCOMP, c_ulong::from(SECCOMP_MODE_FILTER), &raw const program) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// One statement; a comparison that fails skips the next `skip` statements. The word at offset 0 of
/// the filter's input is the system call's number.
fn statement(code: u32, skip: u8, value: u32) -> sock_filter {
    let code = u16::try_from(code).expect("a code of two bytes");
    sock_filter { code, jt: 0, jf: skip, k: value }
}
