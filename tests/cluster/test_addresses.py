"""Ports that are said to be free are free, and stay so."""

import socket

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfdist.cluster import addresses
from tfdist.cluster.addresses import check_port_free, free_ports, is_local, reserved_ports


def test_reserved_ports_are_kept_for_a_server_that_is_told_of_them():
    with reserved_ports(3) as ports:
        assert len(set(ports)) == 3
        for port in ports:
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("", port))
            with pytest.raises(OSError, match="in use"):
                addresses._reserve(port)
            addresses.listen(port).close()
        cluster = {"worker": [f"localhost:{ports[0]}"]}
        server = tf.distribute.Server(cluster, job_name="worker", task_index=0)
        assert server.target == f"grpc://localhost:{ports[0]}"
    with socket.socket() as other:
        other.bind(("", ports[1]))


def test_ports_are_not_those_of_outgoing_connections():
    first = int(addresses._EPHEMERAL_PORTS.read_text().split()[0])
    assert all(10000 <= port < first for port in free_ports(50))


def test_ports_without_knowledge_of_the_range(monkeypatch, tmp_path):
    monkeypatch.setattr(addresses, "_EPHEMERAL_PORTS", tmp_path / "missing")
    assert all(10000 <= port < 32768 for port in free_ports(10))
    everything = tmp_path / "range"
    everything.write_text("1024\t65535\n")
    monkeypatch.setattr(addresses, "_EPHEMERAL_PORTS", everything)
    assert all(10000 <= port < 65536 for port in free_ports(10))


def test_no_port_is_left(monkeypatch):
    monkeypatch.setattr(addresses, "_candidates", lambda: [])
    with pytest.raises(OSError, match="no 2 free ports"):
        free_ports(2)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", socket.gethostname()])
def test_this_machine_is_local(host):
    assert is_local(host)


@pytest.mark.parametrize("host", ["192.0.2.77", "nobody.invalid", "2001:db8::1", "\ud800"])
def test_others_are_not(host):
    assert not is_local(host)


def test_the_ports_of_others_are_not_checked():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        check_port_free(f"192.0.2.77:{port}")
        with pytest.raises(OSError, match=rf"^Port {port} is in use .* Received: localhost:{port}"):
            check_port_free(f"localhost:{port}")


@given(st.text())
def test_any_text_is_an_address_or_refused(text):
    try:
        host, port = addresses.split_address(text)
    except ValueError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert text in (f"{host}:{port}", f"[{host}]:{port}")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {}),
        ({"no_proxy": "x"}, {}),
        ({"http_proxy": "http://p:1"}, {"no_grpc_proxy": "a,b"}),
        ({"https_proxy": "p", "no_proxy": "x,a"}, {"no_grpc_proxy": "x,a,b"}),
        ({"grpc_proxy": "p", "no_proxy": "x", "no_grpc_proxy": "y"}, {"no_grpc_proxy": "y,a,b"}),
    ],
)
def test_peers_are_reached_without_the_proxy(environ, expected):
    assert addresses.without_proxy(environ, ["a:1", "b:2", "b:3"]) == expected
