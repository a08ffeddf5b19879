mpiexec -l -n 2 IMB-MPI1 Allreduce -npmin 2 -iter 10 -iter_policy off -warm_up on -mem 8 -time 1000000 -msglog 0:30 -msglen /tmp/attempt/sizes
