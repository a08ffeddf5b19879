unshare -rn bash -c 'ip link set lo up; ip route add unreachable 192.0.2.0/24; exec 3<>/dev/tcp/192.0.2.1/1'
