mpiexec -n 2 /usr/bin/python3 -m mpi4py.bench pingpong
