unshare -rm bash -c 'mount -t tmpfs -o size=64k none /mnt; dd if=/dev/zero of=/mnt/x bs=1M count=1'
