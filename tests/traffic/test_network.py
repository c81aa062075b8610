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
