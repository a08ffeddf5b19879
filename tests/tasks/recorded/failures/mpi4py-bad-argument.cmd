LD_LIBRARY_PATH=/opt/mpich/lib mpiexec -n 3 python3 -m mpi4py.bench ringtest -n x
