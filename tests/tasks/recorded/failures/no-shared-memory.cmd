unshare -rm bash -c 'mount -t tmpfs -o size=64k none /dev/shm; LD_LIBRARY_PATH=/opt/mpich/lib mpiexec -n 2 IMB-MPI1 PingPong -msglen len -iter 5'
