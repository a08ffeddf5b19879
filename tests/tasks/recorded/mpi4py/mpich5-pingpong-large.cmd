mpiexec -n 2 python3 -m mpi4py.bench pingpong -m 16384 -n 65536 -a none -l 20 --loop-large 20 --loop-huge 20 -s 2 --skip-large 2 --skip-huge 2
