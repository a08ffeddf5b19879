mpiexec -n 2 IMB-MPI1 PingPong -msglen len -iter 5
