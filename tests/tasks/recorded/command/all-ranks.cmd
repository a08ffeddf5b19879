mpiexec -n 2 bash -c 'echo rank=$PMI_RANK pid=$$'
