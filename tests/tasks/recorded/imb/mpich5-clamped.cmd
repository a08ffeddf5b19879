mpiexec -n 2 IMB-MPI1 PingPong -npmin 2 -iter 3 -iter_policy off -warm_up on -mem 8 -time 1000000 -msglen /tmp/attempt/sizes
