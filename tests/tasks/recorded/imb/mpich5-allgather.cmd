mpiexec -n 3 IMB-MPI1 Allgather -npmin 3 -iter 20 -iter_policy off -warm_up on -mem 8 -time 1000000 -msglog 0:30 -msglen /tmp/attempt/sizes
