mpiexec -n 2 python3 -m mpi4py.bench pingpong -m 1 -n 2 -a none -l 1 --loop-large 1 --loop-huge 1 -s 0 --skip-large 0 --skip-huge 0
