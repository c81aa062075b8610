"""Sends bytes to the next host and receives from the previous host; prints bytes per second.

python rate_check.py ADDRESS NEXT_ADDRESS NOT_COUNTED SIZE
"""

import socket
import sys
import threading
import time

PORT = 3400
BLOCK = 1 << 20


def send(address: str, size: int) -> None:
    """Connects as soon as the other host listens, and sends."""
    until = time.monotonic() + 30
    while True:
        try:
            connection = socket.create_connection((address, PORT), timeout=30)
            break
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
    with connection:
        block = bytes(BLOCK)
        for left in range(size, 0, -BLOCK):
            connection.sendall(block[:left])


def main() -> None:
    """Prints the rate at which the bytes arrived."""
    own, following = sys.argv[1:3]
    not_counted, size = map(int, sys.argv[3:5])
    with socket.create_server((own, PORT)) as server:
        sender = threading.Thread(target=send, args=(following, size))
        sender.start()
        server.settimeout(30)
        connection, _ = server.accept()
        with connection:
            buffer = bytearray(BLOCK)
            came, counted_from, start = 0, 0, 0.0
            while count := connection.recv_into(buffer):
                came += count
                if not start and came >= not_counted:
                    start, counted_from = time.perf_counter(), came
            seconds = time.perf_counter() - start
        sender.join()
    assert came == size, f"{came} of {size} bytes came"
    print((came - counted_from) / seconds)


if __name__ == "__main__":
    main()
