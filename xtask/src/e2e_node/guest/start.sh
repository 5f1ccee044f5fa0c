# Makes the guest a node with systemd, and runs the suite there. Arguments: its folder, the node's
# name and address, the registry's address, containerd's folder with images; then the command of the
# suite.
set -e
DIR=$1 NODE=$2 ADDRESS=$3 REGISTRY=$4 IMAGES=$5
shift 5
if [ -b /dev/vdb ]; then
  modprobe -a ext4 quota_v2 dummy overlay veth
  # Pods' state and the runtime's are on a disk of their own, with project quotas.
  mkdir -p /var/lib/node
  mount -o prjquota,discard /dev/vdb /var/lib/node
  for at in /var/lib/kubelet /var/lib/containerd /var/log/pods; do
    mkdir -p $at /var/lib/node/${at##*/}
    mount --bind /var/lib/node/${at##*/} $at
  done
  UNITS=/run/systemd/system
  DEVICE=eth0
  ip link add $DEVICE type dummy
else
  # These folders are file systems already, in memory; the device leads to the host. The image's own
  # containerd.service is in the folder of units that has precedence.
  cp -a $IMAGES/. /var/lib/containerd/
  UNITS=/etc/systemd/system
  DEVICE=vec0
fi
mkdir -p /etc/cni/net.d /etc/kubernetes /var/log/containers
cp $DIR/00-pods.conflist /etc/cni/net.d/
printf '127.0.0.1 localhost\n%s %s\n' $ADDRESS $NODE >/etc/hosts
: >/etc/resolv.conf
hostname $NODE
ip address add $ADDRESS/16 dev $DEVICE
ip address add $REGISTRY/32 dev $DEVICE
ip link set $DEVICE up
ip route replace default dev $DEVICE
echo 1 >/proc/sys/net/ipv4/ip_forward
cp $DIR/*.service $UNITS/
systemctl daemon-reload
systemctl start dbus systemd-logind registry containerd
[ ! -b /dev/vdb ] || exec "$@"
set +e
"$@"
code=$?
# Processes whose programs are in folders of the host would keep a guest from switching off.
systemctl kill --signal=KILL containerd
systemctl stop containerd registry kubepods.slice
exit $code
