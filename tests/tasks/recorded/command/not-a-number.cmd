/bin/echo bandwidth=N/A
