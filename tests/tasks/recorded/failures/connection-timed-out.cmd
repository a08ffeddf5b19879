python3 -c 'import socket
s=socket.socket(socket.AF_INET,socket.SOCK_STREAM)
s.setsockopt(socket.IPPROTO_TCP,socket.TCP_SYNCNT,1)
s.setsockopt(socket.IPPROTO_TCP,18,1000)
l=socket.socket();l.bind(('"'"'127.0.0.1'"'"',0));l.listen(0)
h=[]
for i in range(3):
    c=socket.socket();c.setblocking(False);c.connect_ex(l.getsockname());h.append(c)
s.connect(l.getsockname())'
