python3 -c 'import socket
a=socket.create_server(('"'"'127.0.0.1'"'"',0))
socket.create_server(a.getsockname())'
