/bin/echo bandwidth=4096
