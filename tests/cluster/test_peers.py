"""Workers find each other, say who is missing, and leave their ports to TensorFlow's servers."""

import gc
import os
import selectors
import socket
import threading
import time

import pytest
import tensorflow as tf

from tests.cluster import workers
from tfdist.cluster import check_port_free, peers, reaching, wait_for_peers
from tfdist.cluster.addresses import listen, reserved_ports

# Sockets that are not closed.
pytestmark = [
    pytest.mark.filterwarnings("error::ResourceWarning"),
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def addresses():
    """Three addresses whose ports nobody else takes."""
    with reserved_ports(3) as ports:
        yield [f"127.0.0.1:{port}" for port in ports]


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_all_are_found_however_late_they_start(addresses):
    text = ",".join(addresses)
    started = [workers.start("wait", rank, text, rank * 0.7) for rank in range(3)]
    for code, out, err in workers.finish(started):
        assert (code, out.splitlines()[0]) == (0, "all there"), err


def test_a_missing_worker_is_named_with_its_address(addresses):
    text = ",".join(addresses)
    started = [workers.start("wait", rank, text, 0, 2) for rank in (0, 2)]
    for rank, (code, out, _) in zip((0, 2), workers.finish(started)):
        line, seconds = out.splitlines()
        assert code == 0
        assert line.startswith(
            f"TimeoutError Worker 1 ({addresses[1]}: connection refused) could not be reached "
            f"within 2 s by worker {rank} ({addresses[rank]}), which is one of 3."
        )
        assert "Received: addresses=" in line
        assert 2 <= float(seconds) < 3


def test_a_port_in_use_is_an_error_at_once(addresses):
    with listen(int(addresses[0].rpartition(":")[2])):
        started = time.monotonic()
        with pytest.raises(OSError, match="in use by another process.* Received: 127") as caught:
            wait_for_peers(addresses, 0, 30)
        assert time.monotonic() - started < 1
        assert len(str(caught.value).splitlines()) == 1
        with pytest.raises(OSError, match="in use by another process"):
            check_port_free(addresses[0])
    check_port_free(addresses[0])


def test_a_peer_that_runs_tensorflow_already_counts(addresses):
    server = tf.distribute.Server({"worker": addresses[:2]}, job_name="worker", task_index=1)
    wait_for_peers(addresses[:2], 0, 10)
    del server


def test_a_silent_peer_counts_as_one_that_cannot_be_reached(addresses):
    """A full backlog answers no connection, as a firewall that drops packets."""
    host, port = addresses[1].split(":")
    with socket.create_server((host, int(port)), backlog=0) as server, socket.socket() as first:
        first.connect(server.getsockname())
        with pytest.raises(TimeoutError, match=rf"Worker 1 \({addresses[1]}: no answer\)"):
            wait_for_peers(addresses[:2], 0, 1)
    gc.collect()


def test_an_unknown_name_says_so(addresses):
    with pytest.raises(TimeoutError, match=r"Worker 1 \(nobody.invalid:2222: the name is not kno"):
        wait_for_peers([addresses[0], "nobody.invalid:2222"], 0, 0.5)


def test_many_missing_workers_still_make_one_line_that_can_be_read(addresses):
    many = [*addresses[:1], *(f"127.0.0.1:{port}" for port in range(2, 102))]
    with pytest.raises(TimeoutError, match="Workers 1 .*, 92 more could not be reached") as caught:
        wait_for_peers(many, 0, 0.5)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 1000


def test_nothing_is_left_behind(addresses):
    gc.collect()  # what other tests have left
    files, threads = open_files(), threading.active_count()
    for _ in range(3):
        wait_for_peers(addresses[:1], 0)
        with pytest.raises(TimeoutError):
            wait_for_peers(addresses, 0, 0.2)
        gc.collect()
    assert (open_files(), threading.active_count()) == (files, threads)


def test_the_own_connection_is_no_peer():
    """While nobody listens on a port, Linux may connect a socket on that port to itself."""
    with socket.socket() as attempt:
        attempt.bind(("127.0.0.1", 0))
        host, port = attempt.getsockname()
        attempt.connect((host, port))
        peer = reaching.Peer("1", f"{host}:{port}", host, port, attempt=attempt)
        with selectors.DefaultSelector() as selector:
            peer.finish(selector)
    assert not peer.reached


def test_the_timeout_comes_from_the_environment(addresses, monkeypatch):
    monkeypatch.setenv("TFDIST_CONNECT_TIMEOUT", "0.3")
    with pytest.raises(TimeoutError, match=r"within 0.3 s"):
        wait_for_peers(addresses, 0)
    with pytest.raises(TimeoutError, match=r"within 0.2 s"):
        wait_for_peers(addresses, 0, 0.2)
    monkeypatch.delenv("TFDIST_CONNECT_TIMEOUT")
    assert peers.connect_timeout() == 60


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf", "1e7"])
def test_a_timeout_that_is_none_is_refused(value, addresses, monkeypatch):
    monkeypatch.setenv("TFDIST_CONNECT_TIMEOUT", value)
    with pytest.raises(ValueError, match=f"TFDIST_CONNECT_TIMEOUT.*Received: .*'{value}'"):
        wait_for_peers(addresses, 0)


@pytest.mark.parametrize("rank", [-1, 3, None, True, "0"])
def test_a_rank_that_is_none_is_refused(rank, addresses):
    with pytest.raises(ValueError, match=f"`rank` must be .* Received: rank={rank!r}"):
        wait_for_peers(addresses, rank)


@pytest.mark.full
def test_tensorflow_gets_the_ports_again_and_again():
    """Three real processes, twenty starts of TensorFlow's server, and a strategy at the end."""
    with reserved_ports(3 * 21) as ports:
        groups = [ports[start : start + 3] for start in range(0, len(ports), 3)]
        rounds = [",".join(f"127.0.0.1:{port}" for port in group) for group in groups]
        started = [workers.start("serve_and_train", rank, *rounds) for rank in range(3)]
        for code, out, err in workers.finish(started, timeout=120):
            assert (code, out.splitlines()[-1:]) == (0, ["sum 6.0"]), err


def test_a_missing_reducer_is_called_one(addresses):
    with (
        listen(int(addresses[1].rpartition(":")[2])),
        pytest.raises(TimeoutError, match=r"^reducer 0 \(.*by worker 0 .*workers and reducers"),
    ):
        wait_for_peers(addresses, 0, timeout=0.5, reducers=1)
