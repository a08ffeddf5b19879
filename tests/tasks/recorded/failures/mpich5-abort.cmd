LD_LIBRARY_PATH=/opt/mpich/lib mpiexec -n 3 IMB-MPI1 Uniband -msglen len -iter 5
