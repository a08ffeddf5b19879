LD_LIBRARY_PATH=/opt/intelmpi/lib mpiexec -genv I_MPI_FABRICS ofi -genv FI_PROVIDER nosuch -n 2 IMB-MPI1 PingPong -msglen len -iter 5
