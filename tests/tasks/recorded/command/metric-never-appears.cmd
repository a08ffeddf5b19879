/bin/echo hello
