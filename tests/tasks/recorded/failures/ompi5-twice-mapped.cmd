LD_LIBRARY_PATH=/opt/openmpi/lib mpiexec --allow-run-as-root --map-by :OVERSUBSCRIBE --map-by core -n 2 hostname
