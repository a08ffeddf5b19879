mpiexec -n 3 IMB-MPI1 Barrier -npmin 3 -iter 20 -iter_policy off -warm_up on -mem 8 -time 1000000
