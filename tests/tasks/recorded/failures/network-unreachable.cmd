unshare -rn bash -c 'exec 3<>/dev/tcp/192.0.2.1/1'
