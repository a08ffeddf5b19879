bash -c 'ulimit -v 200000; python3 -c '"'"'import mmap; mmap.mmap(-1, 1 << 30)'"'"''
