"""The limits of the hosts' links."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.traffic import network

_REASON = network.reason_against()
_SIZE = 200_000
_RECEIVER = f"""
import socket
server = socket.create_server(("0.0.0.0", 5000))
print("ready", flush=True)
connection, _ = server.accept()
left = {_SIZE}
while left:
    left -= len(connection.recv(left))
connection.sendall(b".")
"""
_SENDER = f"""
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000))
time.sleep(0.5)
start = time.perf_counter()
connection.sendall(bytes({_SIZE}))
connection.recv(1)
print(time.perf_counter() - start)
"""


@pytest.mark.skipif(bool(_REASON), reason=_REASON)
def test_a_message_that_is_longer_than_the_burst_meets_the_limit():
    with network.hosts(2, "20mbit", "16kb") as (here, there):
        receiver = here.start([sys.executable, "-c", _RECEIVER], stdout=subprocess.PIPE)
        assert receiver.stdout.readline() == b"ready\n"
        command = [sys.executable, "-c", _SENDER, here.address]
        sender = there.start(command, stdout=subprocess.PIPE, text=True)
        seconds = float(sender.communicate(timeout=60)[0])
        receiver.communicate(timeout=60)
    # Two limits, one after the other, each of which lets its burst through at once.
    assert seconds >= (_SIZE - 2 * 16 * 1024) / 2.5e6


@pytest.mark.skipif(bool(_REASON), reason=_REASON)
def test_hosts_have_the_usual_burst_unless_told():
    with network.hosts(1, "20mbit") as (host,):
        show = ["tc", "-n", host.name, "qdisc", "show", "dev", "eth0"]
        shown = subprocess.run(show, check=True, capture_output=True, text=True).stdout
    assert re.search(r"rate 20Mbit burst 256Kb", shown)


_ANSWERING = """
import socket
server = socket.create_server(("0.0.0.0", 5000))
print("ready", flush=True)
connection, _ = server.accept()
while data := connection.recv(1):
    connection.sendall(data)
"""
_ASKING = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000), 20)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in sys.stdin:
    start = time.perf_counter()
    connection.sendall(b".")
    connection.recv(1)
    print(time.perf_counter() - start, flush=True)
"""
# Bytes per second, without the second in which TCP looks for the speed of the link.
_RECEIVER_OF_MUCH = """
import socket, time
server = socket.create_server(("0.0.0.0", 5000))
print("ready", flush=True)
server.settimeout(20)
connection, _ = server.accept()
came, start = 0, 0.0
while data := connection.recv(1 << 20):
    came += len(data)
    if not start and came > 20_000_000:
        start, counted_from = time.perf_counter(), came
print((came - counted_from) / (time.perf_counter() - start))
"""
_SENDER_OF_MUCH = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 5000), 20)
connection.sendall(bytes(60_000_000))
"""


@pytest.mark.skipif(bool(_REASON), reason=_REASON)
def test_a_delay_begins_and_ends_under_an_open_connection():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with network.hosts(3) as (here, there, other):
        answering = here.start([sys.executable, "-c", _ANSWERING], **pipes)
        assert answering.stdout.readline() == "ready\n"
        with there.start([sys.executable, "-c", _ASKING, here.address], **pipes) as asking:

            def seconds() -> float:
                """There and back; the shortest of some, as other things run here too."""
                found = []
                for _ in range(5):
                    asking.stdin.write("\n")
                    asking.stdin.flush()
                    found.append(float(asking.stdout.readline()))
                return min(found)

            before = seconds()
            with network.delayed([here, there, other], 0.05):
                during = seconds()
            after = seconds()
            asking.stdin.close()
        answering.communicate(timeout=60)
    assert 0.1 <= during < 0.15
    assert max(before, after) < 0.05


@pytest.mark.skipif(bool(_REASON), reason=_REASON)
def test_a_delay_costs_no_speed():
    with network.hosts(2, "200mbit") as made, network.delayed(made, 0.05):
        here, there = made
        receiver = here.start([sys.executable, "-c", _RECEIVER_OF_MUCH], stdout=subprocess.PIPE)
        assert receiver.stdout.readline() == b"ready\n"
        sender = there.start([sys.executable, "-c", _SENDER_OF_MUCH, here.address])
        carried = float(receiver.communicate(timeout=60)[0])
        sender.wait(60)
    assert carried > 0.7 * 25e6


@pytest.mark.skipif(bool(_REASON), reason=_REASON)
def test_a_delay_that_cannot_begin_says_why():
    with network.hosts(1) as made:
        with pytest.raises(RuntimeError, match="(?s)Nothing is delayed: .*could not convert"):
            with network.delayed(made, "soon"):
                pytest.fail("begun")
