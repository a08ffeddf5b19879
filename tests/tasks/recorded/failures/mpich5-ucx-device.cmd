LD_LIBRARY_PATH=/opt/mpich/lib mpiexec -genv UCX_NET_DEVICES nosuch0 -genv UCX_TLS tcp,self -n 2 IMB-MPI1 PingPong -msglen len -iter 5
