mpiexec -l -n 2 python3 -m mpi4py.bench pingpong -m 4 -n 16 -a none -l 10 --loop-large 10 --loop-huge 10 -s 1 --skip-large 1 --skip-huge 1
