mpiexec -n 3 python3 -m mpi4py.bench ringtest -n 64 -l 50 -s 5
