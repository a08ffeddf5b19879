mpiexec -n 2 /etc/passwd
