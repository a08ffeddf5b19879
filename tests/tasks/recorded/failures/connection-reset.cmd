python3 -c 'import socket,struct
s=socket.create_server(('"'"'127.0.0.1'"'"',0))
c=socket.create_connection(s.getsockname())
p,_=s.accept()
p.setsockopt(socket.SOL_SOCKET,socket.SO_LINGER,struct.pack('"'"'ii'"'"',1,0))
p.close()
c.recv(1)'
