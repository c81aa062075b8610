"""One script, however it is started, gives the same weights."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.equivalence.compare import MAX_HISTORY_DIFFERENCE, MAX_WEIGHT_DIFFERENCE
from tests.traffic import network
from tfdist.cluster import Cluster
from tfdist.cluster.addresses import reserved_ports
from tfdist.strategies.horovod.backend import is_installed

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = str(pathlib.Path(__file__).with_name("launched.py"))
PYTHON = sys.executable
TFDIST_RUN = (PYTHON, "-m", "tfdist", "run", "-n", "2", "--timeout", "180")
COMMANDS = {
    "python": (PYTHON,),
    "tfdist run": (*TFDIST_RUN,),
    "tfdist run --strategy horovod": (*TFDIST_RUN, "--strategy", "horovod"),
    "horovodrun": (
        str(pathlib.Path(PYTHON).with_name("horovodrun")),
        *("--gloo", "-np", "2", PYTHON),
    ),
    "mpirun": ("mpirun", "-np", "2", "--oversubscribe", PYTHON),
}
HORO = "HorovodStrategy"
STRATEGIES = {
    "python": "MirroredStrategy",
    "TF_CONFIG": "MultiWorkerMirroredStrategy",
    "tfdist run": "MultiWorkerMirroredStrategy",
    "tfdist run --strategy horovod": HORO,
    "horovodrun": HORO,
    "mpirun": HORO,
    "rendezvous": "MultiWorkerMirroredStrategy",
    "rendezvous --strategy horovod": HORO,
}


def environment(**variables):
    """This environment, without what other launchers have left in it."""
    foreign = ("TF_CONFIG", "HOROVOD_", "OMPI_", "PMI", "SLURM_", "TFDIST_")
    kept = {n: value for n, value in os.environ.items() if not n.startswith(foreign)}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**kept, **root, **quiet, "PYTHONPATH": path, **variables}


def run(commands, environments):
    """Runs them at the same time; returns what they printed."""
    processes = [
        subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command, environ in zip(commands, environments)
    ]
    try:
        outputs = [process.communicate(timeout=200)[0] for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(OSError):
                process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(outputs)
    return "\n".join(outputs)


@pytest.fixture
def trained(shared, tmp_path):
    """Trains by a launcher, once in the test session: arrays by rank."""

    def train(name):
        if name == "TF_CONFIG":
            printed = with_tf_config(tmp_path)
        elif name.startswith("rendezvous"):
            printed = on_two_hosts(tmp_path, name.split()[1:])
        else:
            printed = run([(*COMMANDS[name], SCRIPT, str(tmp_path))], [environment()])
        assert f"trained under {STRATEGIES[name]}" in printed
        files = sorted(tmp_path.glob("*.npz"))
        ranks = [dict(np.load(file)) for file in files]
        for file in files:
            file.unlink()
        return ranks

    return lambda name: shared.get(("launched by", name), lambda: train(name))


def with_tf_config(folder):
    with reserved_ports(2) as ports:
        addresses = tuple(f"127.0.0.1:{port}" for port in ports)
        clusters = [Cluster({"worker": addresses}, "worker", rank) for rank in range(2)]
        environments = [environment(TF_CONFIG=cluster.to_tf_config()) for cluster in clusters]
        return run([(PYTHON, SCRIPT, str(folder))] * 2, environments)


def on_two_hosts(folder, options):
    """Starts the same command on hosts with networks of their own; the one that serves is last."""
    with network.hosts(2) as hosts:
        meeting = ["--rendezvous", f"{hosts[1].address}:2222", "--machines", "2"]
        command = (*TFDIST_RUN[:5], "1", *TFDIST_RUN[6:], *meeting, *options, SCRIPT, str(folder))
        inside = [("ip", "netns", "exec", host.name, *command) for host in hosts]
        return run(inside, [environment(TFDIST_SECRET="known to both hosts")] * 2)


def bits(arrays):
    return {name: (a.dtype.str, a.shape, a.tobytes()) for name, a in arrays.items()}


def _can_start(name):
    if STRATEGIES[name] == HORO and not is_installed():
        return False
    if name.startswith("rendezvous") and network.reason_against():
        return False
    return name != "mpirun" or bool(shutil.which("mpirun") and _horovod_has_mpi())


# tests/cli trains with the command too, and most tests of processes with TF_CONFIG.
@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "python"])
def test_every_launcher_gives_the_weights_of_one_device(name, trained):
    if not _can_start(name):
        pytest.skip("needs Horovod, for mpirun with MPI, or root for network namespaces")
    ranks = trained(name)
    assert len(ranks) == 2
    assert bits(ranks[0]) == bits(ranks[1])
    (alone,) = trained("python")
    assert alone.keys() == ranks[0].keys()
    for array, expected in alone.items():
        history = array.startswith("history")
        limits = (
            {"rtol": MAX_HISTORY_DIFFERENCE}
            if history
            else {"rtol": 0, "atol": MAX_WEIGHT_DIFFERENCE}
        )
        np.testing.assert_allclose(ranks[0][array], expected, **limits, err_msg=array)


@pytest.mark.full
def test_all_launchers_give_the_same_bits(trained):
    first, *others = (
        bits(trained(name)[0]) for name in STRATEGIES if name != "python" and _can_start(name)
    )
    assert all(other == first for other in others)


def _horovod_has_mpi():
    import horovod.tensorflow as hvd

    return hvd.mpi_built()
