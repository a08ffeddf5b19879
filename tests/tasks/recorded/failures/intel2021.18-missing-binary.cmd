mpiexec -n 2 IMB-NONE
