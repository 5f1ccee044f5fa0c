# Makes the emulated guest an iSCSI initiator and a target, then runs a command there.
# Arguments: a folder with Debian's packages (docs/TESTING.md names them), the command.
set -e
D=$1
shift
for d in "$D"/*.deb; do
  dpkg-deb --fsys-tarfile "$d" | tar -x --keep-directory-symlink -C /
done
modprobe -a loop ext4 sd_mod iscsi_tcp configfs target_core_file iscsi_target_mod dm_multipath dm_round_robin dm_service_time
mountpoint -q /sys/kernel/config || mount -t configfs c /sys/kernel/config
mkdir -p /run/lock /run/udev /var/lib/iscsi
/lib/systemd/systemd-udevd --daemon
udevadm trigger
udevadm settle
echo InitiatorName=iqn.1993-08.org.debian:01:guest >/etc/iscsi/initiatorname.iscsi
# iscsiadm would start it through systemd.
sed -i '/^iscsid.startup/d' /etc/iscsi/iscsid.conf
iscsid
# Disks with two paths become one device.
printf 'defaults {\n find_multipaths yes\n polling_interval 2\n}\n' >/etc/multipath.conf
multipathd
set +e
"$@"
rc=$?
[ $rc = 0 ] || { dmesg | tail -30; ls -l /dev/disk/by-path; multipathd show paths; multipathd show maps; }
exit $rc
