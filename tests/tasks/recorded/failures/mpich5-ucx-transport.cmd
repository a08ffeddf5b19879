LD_LIBRARY_PATH=/opt/mpich/lib mpiexec -genv UCX_TLS nosuch -n 2 IMB-MPI1 PingPong -msglen len -iter 5
