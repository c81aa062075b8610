"""`tfdist run --isolate`: the job has a network of its own, and nobody else reaches its servers."""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys

import pytest

from tests.cli.launching import messages
from tfdist.launcher import isolation

_ENTERS = "from tfdist.launcher import isolation; isolation.enter()"
_TRIED = subprocess.run(
    [sys.executable, "-c", _ENTERS], capture_output=True, text=True, check=False
)
isolates = pytest.mark.skipif(
    _TRIED.returncode != 0,
    reason=f"no network namespaces here: {_TRIED.stderr.splitlines()[-1:]}",
)
# <linux/prctl.h>, <linux/capability.h>: what root is without, is what other users are.
_WITHOUT_RIGHTS = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_NET_ADMIN, CAP_SYS_ADMIN = 24, 12, 21
for capability in (CAP_NET_ADMIN, CAP_SYS_ADMIN):
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
_TELLS = """
import socket
note(f"network-{rank}", json.dumps([os.readlink("/proc/self/ns/net"), socket.if_nameindex()]))
note(f"user-{rank}", json.dumps([os.getuid(), os.getgid()]))
"""
_SERVES = """
import socket
if rank == 0:
    with socket.create_server(("0.0.0.0", 0)) as server:
        note("port", server.getsockname()[1])
        connection, _ = server.accept()
        note("accepted", connection.recv(100).decode())
        wait_for("tried")
else:
    wait_for("port")
    with socket.create_connection(("127.0.0.1", int((here / "port").read_text()))) as connection:
        connection.sendall(b"from rank 1")
        wait_for("tried")
"""


def reaches(port):
    """Whether a stranger on this machine reaches the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def check_network(launcher):
    networks = [json.loads(launcher.note(f"network-{rank}")) for rank in range(2)]
    assert networks[0] == networks[1] == [networks[0][0], [[1, "lo"]]]
    assert networks[0][0] != os.readlink("/proc/self/ns/net")
    for rank in range(2):
        assert json.loads(launcher.note(f"user-{rank}")) == [os.getuid(), os.getgid()]


@isolates
def test_the_ranks_have_one_network_of_their_own(launcher):
    finished = launcher.run(_TELLS, "--isolate")
    assert finished.returncode == 0, finished.stderr
    check_network(launcher)


@isolates
def test_a_user_without_rights_has_it_too(launcher):
    command = launcher.command(_TELLS, "--isolate")
    finished = subprocess.run(
        [sys.executable, "-c", _WITHOUT_RIGHTS, *command],
        env=launcher.environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    if b"Operation not permitted" in finished.stderr or b"Permission denied" in finished.stderr:
        pytest.skip("only root may make namespaces here")
    assert finished.returncode == 0, finished.stderr
    check_network(launcher)


@pytest.mark.parametrize(
    ("options", "reached"), [pytest.param(["--isolate"], False, marks=isolates), ([], True)]
)
def test_only_the_job_reaches_its_servers(launcher, options, reached):
    process = launcher.start(_SERVES, *options)
    launcher.wait_for("accepted")
    found = reaches(int(launcher.note("port")))
    (launcher.directory / "tried").touch()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert launcher.note("accepted") == "from rank 1"
    assert found is reached


@isolates
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs the command unshare")
def test_where_it_is_forbidden_one_line_says_so(launcher):
    forbidding = "cd /proc/sys/user && echo 0 > max_net_namespaces && cd / && exec "
    command = shlex.join(launcher.command("", "--isolate"))
    finished = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", forbidding + command],
        env=launcher.environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 2
    (line,) = messages(finished)
    assert "may not make a network of the job's own" in line and "leave out --isolate" in line
    assert "docs/security.md. Received: [Errno " in line


def test_other_systems_are_told_that_they_have_none(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(OSError, match="needs Linux: leave out --isolate. Received: darwin"):
        isolation.enter()


@pytest.mark.full
@isolates
@pytest.mark.parametrize(
    "strategy",
    ["multi_worker", pytest.param("horovod", marks=pytest.mark.xdist_group("horovod"))],
)
def test_it_trains(launcher, strategy):
    if strategy == "horovod":
        pytest.importorskip("horovod.tensorflow", exc_type=ImportError, reason="make horovod")
    body = """
    import keras, numpy as np, tfdist
    strategy = tfdist.Strategy("auto")
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, verbose=0)
    note(f"trained-{rank}", strategy.num_replicas_in_sync)
    """
    options = ["--isolate", "--strategy", strategy, "--timeout", 100]
    finished = launcher.run(body, *options, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert [launcher.note(f"trained-{rank}") for rank in range(2)] == ["2", "2"]
