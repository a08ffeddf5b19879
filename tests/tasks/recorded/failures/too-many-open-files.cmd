bash -c 'ulimit -n 10; python3 -c '"'"'f=[open("/dev/null") for _ in range(20)]'"'"''
