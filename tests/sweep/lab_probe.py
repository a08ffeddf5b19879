"""A TCP receiver and sender for the hosts of a lab: `receive ADDRESS`, and `send ADDRESS BYTES`, which prints bit/s."""

from __future__ import annotations

import socket
import sys
import time

PORT = 5001


def receive(address: str) -> None:
    """Take one connection after the other; acknowledge each when its sender has sent everything."""
    with socket.create_server((address, PORT)) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            connection, _ = server.accept()
            with connection:
                while connection.recv(1 << 20):
                    pass
                connection.sendall(b"k")


def send(address: str, size: int) -> None:
    """Send that many bytes, and print the rate at which they arrived."""
    with socket.create_connection((address, PORT), timeout=2) as connection:
        connection.settimeout(60)
        begin = time.perf_counter()
        connection.sendall(bytes(size))
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"k"
        sys.stdout.write(f"{size * 8 / (time.perf_counter() - begin)}\n")


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2])
    else:
        send(sys.argv[2], int(sys.argv[3]))
