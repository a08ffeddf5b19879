mpiexec -n 2 python3 -m mpi4py.bench pingpong -m 1 -n 1024 -a none -l 50 --loop-large 50 --loop-huge 50 -s 5 --skip-large 5 --skip-huge 5
