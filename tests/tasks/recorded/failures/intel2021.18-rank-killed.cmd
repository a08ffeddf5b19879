mpiexec -n 2 bash -c 'kill -9 $$'
