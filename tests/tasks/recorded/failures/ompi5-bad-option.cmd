LD_LIBRARY_PATH=/opt/openmpi/lib mpiexec --allow-run-as-root --frobnicate -n 2 hostname
