"""Connections whose other side vanishes are ended by the system, also those of a library."""

import contextlib
import socket
import subprocess
import sys
import time

import pytest

from tests.traffic import network
from tfdist.cluster import sockets, vanishing

REASON = network.reason_against()


def is_asked(one):
    """Whether the system asks the other side of a connection."""
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))


def test_only_connections_to_and_from_the_servers_of_a_job_are_asked():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socketpair()[0] as pair:
        other = socket.create_server(("127.0.0.1", 0))
        to = socket.create_connection(server.getsockname())
        to_other = socket.create_connection(other.getsockname())
        accepted, _ = server.accept()
        vanishing.watch([f"localhost:{server.getsockname()[1]}"])
        end = time.monotonic() + 10
        while not (is_asked(to) and is_asked(accepted)):
            assert time.monotonic() < end
            time.sleep(0.05)
        late = socket.create_connection(server.getsockname())
        while not is_asked(late):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert not is_asked(to_other) and not is_asked(pair)
        to.send(b"x")
        assert accepted.recv(1) == b"x"
        for one in (other, to, to_other, accepted, late):
            one.close()


def test_a_borrowed_socket_stays_as_it_is():
    ours, theirs = socket.socketpair()
    socket.setdefaulttimeout(5)
    try:
        with sockets.borrowed(ours.fileno()) as same:
            assert same.fileno() == ours.fileno()
    finally:
        socket.setdefaulttimeout(None)
    ours.send(b"x")
    assert theirs.recv(1) == b"x"
    assert ours.getblocking()
    ours.close()
    theirs.close()


_WAITS = """
import socket, sys, time
from tfdist.cluster import vanishing
vanishing._OPTIONS |= {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 2}
vanishing._SILENT = 4
connection = socket.create_connection((sys.argv[1], 2222))
vanishing.watch([f"{sys.argv[1]}:2222"])
print("connected", flush=True)
time.sleep(2)
print("goes on", flush=True)
if sys.argv[2] == "idle":
    connection.recv(1)
while True:
    connection.send(bytes(100))
    time.sleep(0.2)
"""
_ANSWERS = """
import socket, time
server = socket.create_server(("", 2222))
print("listens", flush=True)
connection = server.accept()[0]
time.sleep(60)
"""


@pytest.mark.job
@pytest.mark.skipif(bool(REASON), reason=REASON)
@pytest.mark.parametrize(
    ("fault", "does"),
    [
        ("cut", "sends"),
        ("mute", "idle"),
        pytest.param("cut", "idle", marks=pytest.mark.full),
        pytest.param("mute", "sends", marks=pytest.mark.full),
    ],
)
def test_a_connection_to_a_machine_that_has_vanished_ends(fault, does):
    text = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with network.hosts(2) as (here, there):
        server = there.start([sys.executable, "-c", _ANSWERS], **text)
        assert server.stdout.readline() == "listens\n"
        ours = here.start([sys.executable, "-c", _WAITS, there.address, does], **text)
        try:
            assert [ours.stdout.readline() for _ in range(2)] == ["connected\n", "goes on\n"]
            time.sleep(3)
            assert ours.poll() is None, "a machine that answers is waited for"
            getattr(there, fault)()
            _, error = ours.communicate(timeout=20)
        finally:
            for process in (server, ours):
                process.kill()
                process.communicate()
    assert {"idle": "TimeoutError", "sends": "BrokenPipeError"}[does] in error


def test_a_process_that_reads_nothing_is_not_silent():
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        ours.setblocking(False)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                ours.send(bytes(1 << 20))
            assert not vanishing.is_silent(ours, 0.5)
            time.sleep(0.05)
        ours.close()
        theirs.close()
