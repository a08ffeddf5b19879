mpiexec -n 1 python3 -m mpi4py.bench ringtest -n 64 -l 10 -s 1
