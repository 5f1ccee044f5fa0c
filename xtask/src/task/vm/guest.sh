# Process 1 of the guest (or, with systemd, its only service): a plain host with cgroup v2.
# Arguments: the run folder, the shared folder, and "go" when systemd has started already.
R=$1 SHARE=$2
# A command that shuts the guest down lives to its end: bash waits for it, and systemd tells only bash.
trap : TERM
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root TERM=dumb
if [ "${3:-}" != go ]; then
  mount -t proc proc /proc
  mount -t sysfs sys /sys
  for d in run tmp var/tmp var/lib; do mount -t tmpfs -o mode=755 t /$d; done
  chmod 1777 /tmp /var/tmp
  rm -f /etc/fstab
  mkdir -p /dev/shm /dev/pts
  hostname vmnode
  if [ -e $R/systemd ]; then
    U=/etc/systemd/system
    mkdir -p $U /var/lib/systemd
    rm -rf $U/*.wants
    uname -n >/etc/hostname
    printf '%s\n' '[Unit]' 'After=basic.target dbus.socket' 'Requires=basic.target dbus.socket' \
      '[Service]' 'Type=oneshot' 'TimeoutStartSec=infinity' 'Delegate=yes' \
      'KillMode=mixed' 'TimeoutStopSec=1800' \
      "ExecStart=/bin/bash $R/guest.sh $R $SHARE go" >$U/xtask-vm.service
    for m in udev-trigger timesyncd firstboot update-utmp binfmt hwdb-update journal-flush \
      random-seed sysusers; do ln -sf /dev/null $U/systemd-$m.service; done
    ln -sf /dev/null $U/ldconfig.service
    exec /lib/systemd/systemd --unit=xtask-vm.service
  fi
  mount -t cgroup2 -o nsdelegate,memory_recursiveprot cg /sys/fs/cgroup
  mount -t tmpfs t /dev/shm
  mount -t devpts pts /dev/pts
  mount -t bpf bpf /sys/fs/bpf
  mount -t tracefs t /sys/kernel/tracing
  ip link set lo up
  echo "+cpu +cpuset +io +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
fi
echo 3 >/proc/sys/kernel/printk
cd $SHARE
bash $R/cmd.sh >$R/out 2>&1 </dev/null
echo $? >$R/rc
sync
echo o >/proc/sysrq-trigger
sleep 60
