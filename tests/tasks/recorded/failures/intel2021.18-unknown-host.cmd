mpiexec -hosts nosuchhost -n 2 hostname
