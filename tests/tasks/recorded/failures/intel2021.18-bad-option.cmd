mpiexec --frobnicate -n 2 hostname
