"""Servers notice the end of the chief, and nothing else: not a closed connection, not a pause."""

import contextlib
import select
import signal
import socket
import threading
import time

import pytest

from tests.cluster import workers
from tfdist.cluster import chief, wait_for_peers
from tfdist.cluster.addresses import listen, reserved_ports

pytestmark = [
    pytest.mark.filterwarnings("error::ResourceWarning"),
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def address():
    with reserved_ports(1) as (port,):
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def watching(address, timeout=30.0):
    """Waits for the chief's end in a thread; yields the event of having noticed it."""
    noticed = threading.Event()

    def watch():
        chief.wait_for_end(address, timeout)
        noticed.set()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield noticed
    thread.join(20)
    assert noticed.is_set()


@contextlib.contextmanager
def serving(address):
    """Listens as the chief does; yields what accepts the next connection."""
    with listen(int(address.rpartition(":")[2])) as server:
        server.settimeout(20)
        yield lambda: server.accept()[0]


def greet(connection):
    """What gRPC's server does, and `wait_for_peers` does not."""
    connection.sendall(b"hello")
    return connection


def test_processes_that_were_stopped_go_on_until_the_chief_is_killed(address):
    leader, server = workers.start("greet", address, 600), workers.start("watch", address)
    try:
        assert select.select([leader.stdout], [], [], 20)[0]  # they have met
        for process in (leader, server):
            process.send_signal(signal.SIGSTOP)
            time.sleep(1.5)
            process.send_signal(signal.SIGCONT)
        time.sleep(0.5)
        assert server.poll() is None
    finally:
        leader.kill()
    (_, (code, out, err)) = workers.finish([leader, server])
    assert (code, out, err) == (0, "the chief has ended", "")


def test_a_connection_that_is_closed_is_not_the_end(address):
    """gRPC closes one on which nothing is sent after a minute."""
    with watching(address) as noticed, serving(address) as accept:
        for _ in range(4):
            greet(accept()).close()
        assert not noticed.is_set()


def test_a_chief_that_is_late_and_waits_for_its_peers_has_not_ended(address):
    with watching(address) as noticed, reserved_ports(1) as (missing,):
        time.sleep(0.3)
        with pytest.raises(TimeoutError):
            wait_for_peers([address, f"127.0.0.1:{missing}"], 0, 0.5)
        time.sleep(chief._REFUSED + 0.5)  # until TensorFlow's server listens
        with serving(address) as accept:
            greet(accept()).close()
            assert not noticed.is_set()


def test_a_machine_that_does_not_answer_for_a_while_is_not_the_end(address, monkeypatch):
    """A full backlog answers no connection, as a network that fails."""
    monkeypatch.setattr(chief, "_ATTEMPT", 0.2)
    host, port = address.split(":")
    with watching(address) as noticed, socket.socket() as filling:
        with socket.create_server((host, int(port)), backlog=0) as server:
            server.settimeout(20)
            connection = greet(server.accept()[0])
            filling.connect(server.getsockname())
            connection.close()
            time.sleep(chief._REFUSED + 1)
            server.accept()[0].close()
            greet(server.accept()[0]).close()
            assert not noticed.is_set()


def test_a_machine_that_does_not_answer_for_long_is(address, monkeypatch):
    monkeypatch.setattr(chief, "_ATTEMPT", 0.2)
    host, port = address.split(":")
    with socket.create_server((host, int(port)), backlog=0) as server, socket.socket() as filling:
        with watching(address, timeout=1):
            server.settimeout(20)
            connection = greet(server.accept()[0])
            filling.connect(server.getsockname())
            connection.close()


@pytest.mark.parametrize("met", [False, True])
def test_a_chief_that_does_not_come_is_named(address, met):
    with listen(int(address.rpartition(":")[2])) as server:
        leaves = threading.Timer(0.3 if met else 0, server.close)
        leaves.start()
        leaves.join(0 if met else None)
        with pytest.raises(TimeoutError) as caught:
            chief.wait_for_end(address, 0.4)
    message = str(caught.value)
    assert message.startswith(f"The chief ({address}: connection refused) could not be reached")
    assert "within 0.4 s" in message and f"Received: chief={address}" in message
    assert len(message.splitlines()) == 1


def test_an_unknown_name_says_so():
    with pytest.raises(TimeoutError, match=r"nobody.invalid:2222: the name is not known"):
        chief.wait_for_end("nobody.invalid:2222", 0.1)


def test_the_own_connection_is_no_chief(address, monkeypatch):
    """While nobody listens on a port, Linux may connect a socket on that port to itself."""

    def connect_to_itself(target, timeout):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.bind(target)
        connection.connect(target)
        return connection

    monkeypatch.setattr(chief.socket, "create_connection", connect_to_itself)
    with pytest.raises(TimeoutError, match="connection refused"):
        chief.wait_for_end(address, 0.2)


def test_a_machine_that_vanishes_is_noticed():
    """By the system, which asks for signs of life; machines do not vanish in tests."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as connection:
            server.accept()[0].close()
            assert not chief._stay(connection)
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 30
