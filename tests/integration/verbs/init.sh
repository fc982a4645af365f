#!/bin/sh
# First process of the virtual machine: loads the modules, makes two soft-RoCE devices with a wire between them, and runs the ranks.
export PATH=/bin:/usr/bin
# The shell would take its own.
ip() { /usr/bin/ip "$@"; }
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mkdir -p /dev/shm /run
mount -t tmpfs shm /dev/shm
for module in $(cat /modules/order); do insmod /modules/$module || echo "cannot load $module"; done
echo machine${MACHINE:+-$MACHINE} > /proc/sys/kernel/hostname
ip link set lo up
# What the kernel has of each device; a line begins with the word given.
resources() { rdma resource | while read -r line; do echo "@$1 $line"; done; }
if [ -n "$MACHINE" ]; then
    # One of two machines, joined by a network card.
    ip addr add 10.9.0.$((MACHINE + 1))/24 dev eth0
    ip link set eth0 up
    rdma link add rxea type rxe netdev eth0 || echo "cannot add a device"
    export NCCL_SOCKET_IFNAME=eth0
    resources before
    verbs_ranks host $MACHINE
else
    ip link add va type veth peer name vb
    for side in a b; do
        ip addr add 10.8.0.$([ $side = a ] && echo 1 || echo 2)/24 dev v$side
        ip link set v$side up
        rdma link add rxe$side type rxe netdev v$side || echo "cannot add a device"
    done
    # What one side sends to the other goes over the wire, though both are here.
    for i in all va vb; do
        echo 1 > /proc/sys/net/ipv4/conf/$i/accept_local
        echo 0 > /proc/sys/net/ipv4/conf/$i/rp_filter
    done
    ip rule add pref 10 iif va lookup local
    ip rule add pref 10 iif vb lookup local
    ip route add 10.8.0.2/32 dev va src 10.8.0.1 table 101
    ip route add 10.8.0.1/32 dev vb src 10.8.0.2 table 102
    ip rule add pref 11 to 10.8.0.2 lookup 101
    ip rule add pref 11 to 10.8.0.1 lookup 102
    ip rule add pref 100 lookup local
    ip rule del pref 0
    resources before
    verbs_ranks
fi
resources after
poweroff -f
