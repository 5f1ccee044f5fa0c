#!/bin/busybox sh
# The guest's first program: loads the few modules that reach the host's files, and hands over.
# Root is an overlay: our modules over the host's root, writes into memory.
B=/bin/busybox
for m in /m/*.ko; do $B insmod $m; done
$B mount -t proc proc /proc
$B mount -t devtmpfs dev /dev
for w in $($B cat /proc/cmdline); do case $w in vm.*) eval ${w#vm.} ;; esac; done
$B mount -t virtiofs root /l
$B mount -t ext4 -o ro /dev/vda /k
$B mount -t tmpfs -o size=75% rw /rw
$B mkdir /rw/u /rw/w
$B mount -t overlay -o lowerdir=/k:/l,upperdir=/rw/u,workdir=/rw/w root /new
for d in $share $run; do $B mount --bind /l$d /new$d; done
$B umount /proc
$B mount --move /dev /new/dev
exec $B switch_root /new /bin/bash $run/guest.sh $run $share
