"""When lost processes count as back."""

import socket
import threading

import pytest

from tfdist.parameter_server.snapshots.servers import wait_for


@pytest.fixture
def address():
    """A port that nobody listens at."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        return reserved.getsockname()


def listening(address):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen()
    return listener


def test_who_is_being_killed_and_still_takes_connections_is_not_back(address):
    listener = listening(address)
    named = {"worker 0": f"{address[0]}:{address[1]}"}
    waiting = threading.Thread(target=wait_for, args=[named], daemon=True)
    waiting.start()
    taken, _ = listener.accept()
    taken.close()
    listener.close()
    waiting.join(2.0)
    assert waiting.is_alive()
    with listening(address):
        waiting.join(30)
        assert not waiting.is_alive()
