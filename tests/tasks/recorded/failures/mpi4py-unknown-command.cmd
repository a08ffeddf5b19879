LD_LIBRARY_PATH=/opt/mpich/lib mpiexec -n 2 python3 -m mpi4py.bench alltoall
