mpiexec -n 2 bash -c 'exit 3'
