LD_LIBRARY_PATH=/opt/mpich/lib mpiexec --allow-run-as-root -n 2 IMB-MPI1 PingPong -msglen len -iter 5
