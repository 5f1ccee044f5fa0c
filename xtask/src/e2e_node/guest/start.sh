# Makes the guest a node with systemd, and runs the suite there. Arguments: its folder, the node's
# name and address, the registry's address; then the command of the suite.
set -e
DIR=$1 NODE=$2 ADDRESS=$3 REGISTRY=$4
shift 4
modprobe -a ext4 quota_v2 dummy overlay veth
# Pods' state and the runtime's are on a disk of their own, with project quotas.
mkdir -p /var/lib/node
mount -o prjquota,discard /dev/vdb /var/lib/node
for at in /var/lib/kubelet /var/lib/containerd /var/log/pods; do
  mkdir -p $at /var/lib/node/${at##*/}
  mount --bind /var/lib/node/${at##*/} $at
done
mkdir -p /etc/cni/net.d /etc/kubernetes /var/log/containers
cp $DIR/00-pods.conflist /etc/cni/net.d/
printf '127.0.0.1 localhost\n%s %s\n' $ADDRESS $NODE >/etc/hosts
: >/etc/resolv.conf
hostname $NODE
ip link add eth0 type dummy
ip address add $ADDRESS/16 dev eth0
ip address add $REGISTRY/32 dev eth0
ip link set eth0 up
ip route add default dev eth0
echo 1 >/proc/sys/net/ipv4/ip_forward
cp $DIR/*.service /run/systemd/system/
systemctl daemon-reload
systemctl start dbus systemd-logind registry containerd
exec "$@"
