"""The meeting place stays usable whatever comes to it."""

import contextlib
import dataclasses
import socket
import threading
import time

import pytest

from tfdist.cluster.machines import Machine, clustered_across, interface_of
from tfdist.rendezvous.channel import Channel, NotAuthenticatedError
from tfdist.rendezvous.end import End
from tfdist.rendezvous.server import Server
from tfdist.rendezvous.terms import FixedTerms

SECRET = b"known to all launchers"


@contextlib.contextmanager
def served(machines=1, across=clustered_across):
    """A server; gives its address, and what it has said."""
    listener = socket.create_server(("127.0.0.1", 0))
    address, lines = listener.getsockname(), []
    terms = FixedTerms("", SECRET, 20.0, {"--strategy": "x"}, lines.append, machines, across)
    server = Server(listener, terms)
    yield address, lines
    server.stop(End(1, "the test is over"))


def channel_to(address, secret=SECRET):
    return Channel(socket.create_connection(address), secret, serves=False)


def joining(ports=(1, 2), strategy="x"):
    machine = dataclasses.asdict(Machine("127.0.0.1", "lo", ports, ()))
    return {"machine": machine, "serves": False, "terms": {"--strategy": strategy}}


def test_malformed_messages_of_a_launcher_are_no_end():
    with served() as (address, _):
        for message in ({}, {"machine": {"newer": 1}}, 5, None, {"machine": None}):
            channel = channel_to(address)
            channel.send(message)
            with pytest.raises(ConnectionError):
                channel.receive()
        channel = channel_to(address)
        channel.send(joining())
        assert channel.receive()["ranks"] == 2
        channel.send(dataclasses.asdict(End()))
        assert channel.receive() == {"end": dataclasses.asdict(End())}


def test_strangers_do_not_keep_launchers_away():
    with served() as (address, _):
        silent = [socket.create_connection(address) for _ in range(10)]
        loud = [socket.create_connection(address) for _ in range(5)]
        for connection in loud:
            connection.sendall(b"x" * 100_000)
        with pytest.raises(NotAuthenticatedError, match="another secret"):
            channel_to(address, b"guessed by a stranger")
        channel = channel_to(address)
        channel.send(joining())
        assert channel.receive()["first"] == 0
        for connection in silent + loud:
            connection.close()


def test_an_error_of_the_server_reaches_the_launchers():
    @contextlib.contextmanager
    def fails(machines):
        raise ValueError("no such cluster")
        yield

    with served(across=fails) as (address, _):
        channel = channel_to(address)
        channel.send(joining())
        assert channel.receive() == {"refused": "no such cluster"}


def test_who_comes_and_leaves_is_said():
    with served(machines=2) as (address, lines):
        channel = channel_to(address)
        channel.send(joining())
        deadline = time.monotonic() + 10
        while len(lines) < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        channel.close()
        while len(lines) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lines == [
            "127.0.0.1 has come with 2 process(es) (1 of 2 machines)",
            "127.0.0.1 has left (0 of 2 machines)",
        ]


@pytest.fixture
def pair():
    """Two channels that are connected, the server's first, and their sockets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        coming = socket.create_connection(listener.getsockname())
        ends, made = (listener.accept()[0], coming), []
    serving = threading.Thread(target=lambda: made.append(Channel(ends[0], SECRET, serves=True)))
    serving.start()
    client = Channel(ends[1], SECRET, serves=False)
    serving.join()
    yield made[0], client, *ends
    client.close()
    made[0].close()


def test_each_message_is_taken_once(pair):
    server, client, at_server, _ = pair
    server.send("first")
    line = client._line(1000, None)
    at_server.sendall(line + b"\n" + line + b"\n")
    assert client.receive() == "first"
    with pytest.raises(NotAuthenticatedError):
        client.receive()


def test_a_message_that_comes_back_is_none(pair):
    server, client, at_server, at_client = pair
    client.send("first")
    line = server._line(1000, None)
    at_server.sendall(line + b"\n")
    with pytest.raises(NotAuthenticatedError):
        client.receive()
    at_client.sendall(line + b"\n")
    assert server.receive() == "first"


def test_interfaces_are_found_by_their_addresses():
    assert interface_of("127.0.0.2") == interface_of("::1") == "lo"
    assert interface_of("192.0.2.1") == ""
