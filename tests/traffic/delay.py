"""A switch that takes its time: what a host sends arrives so many seconds later.

`netem` would do that, but not all kernels have it. This process reads frames from the ends of the
hosts' links (packet sockets), and sends them on to where they belong when they are old enough. The
kernel hands over segments that it has not cut yet (up to 64 kB), so a link of 100 Mbit/s is a few
hundred of them per second. `network.delayed` starts it.

python -S delay.py SECONDS INTERFACE...
"""

import collections
import errno
import select
import socket
import sys
import time

# From Linux' if_packet.h and socket.h; Python does not name them.
_SOL_PACKET, _ETH_P_ALL = 263, 3
_VNET_HDR, _IGNORE_OUTGOING = 15, 23
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_BUFFER_BYTES = 64 * 1024**2
# The kernel's notes on checksums and segments, before each frame; then both addresses.
_NOTES = 10
_TO = slice(_NOTES, _NOTES + 6)
_FROM = slice(_NOTES + 6, _NOTES + 12)


def end_of_link(interface: str) -> socket.socket:
    """A socket with all frames that arrive at an interface."""
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    found.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
    found.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    for option in (_SO_SNDBUFFORCE, _SO_RCVBUFFORCE):
        found.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
    found.bind((interface, _ETH_P_ALL))
    return found


def send(link: socket.socket, frame: bytes) -> None:
    """Sends a frame, or loses it where the queue of the link is full, as a switch does."""
    try:
        link.send(frame)
    except OSError as error:
        if error.errno != errno.ENOBUFS:
            raise


def main() -> None:
    """Delays what comes, until the process that started this one closes the pipe, or ends."""
    seconds, links = float(sys.argv[1]), [end_of_link(name) for name in sys.argv[2:]]
    places: dict[bytes, socket.socket] = {}
    waiting: collections.deque[tuple[float, bytes, socket.socket]] = collections.deque()
    print("ready", flush=True)
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([sys.stdin, *links], [], [], pause)
        if sys.stdin in ready:
            return
        for link in ready:
            frame = link.recv(1 << 17)
            places[frame[_FROM]] = link
            waiting.append((time.monotonic() + seconds, frame, link))
        while waiting and waiting[0][0] <= time.monotonic():
            _, frame, came_from = waiting.popleft()
            known = places.get(frame[_TO])
            for link in [known] if known else links:
                if link is not came_from:
                    send(link, frame)


if __name__ == "__main__":
    main()
