"""`tfdist test`, with real ranks on this machine."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

from tests.cluster import test_environments as launchers
from tests.equivalence import test_launchers
from tfdist import environment
from tfdist.checkup import judging
from tfdist.cli.main import main
from tfdist.plan.machine import read_cluster
from tfdist.strategies.horovod.backend import is_installed

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_DEADLINE = 200
_NO_HOROVOD = pytest.mark.skipif(not is_installed(), reason="make horovod")
_ENGINES = ["multi_worker", pytest.param("horovod", marks=[_NO_HOROVOD, pytest.mark.full])]


def environ(**changes):
    return {**os.environ, "PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **changes}


def call(*arguments, **changes):
    """Runs a Python program; the outputs are text."""
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        env=environ(**changes),
        capture_output=True,
        text=True,
        timeout=_DEADLINE,
        check=False,
    )


def test_it_starts_two_ranks_by_itself(tmp_path):
    path = tmp_path / "cluster.json"
    done = call("tfdist", "test", "--json", path)
    found = json.loads(path.read_text())
    assert done.returncode == bool(found["problems"]), done.stderr
    assert "no launcher, so 2 ranks are started here" in done.stderr
    assert (found["ranks"], found["ranks_per_host"], found["strategy"]) == (2, 2, "multi_worker")
    assert 0 < found["link"]["latency_seconds"] < 1
    planned = read_cluster(path)
    assert (planned.ranks, planned.per_host) == (2, 2)
    assert planned.link.alpha == found["link"]["latency_seconds"]
    assert 1e6 < found["link"]["bandwidth_bytes_per_second"] < 1e12
    assert [row["ranks"] for row in found["links"]] == [[0, 1]]
    assert found["all_reduce"][0]["bytes"] == 1000 and len(found["all_reduce"]) >= 3
    assert [row["difference"] <= row["tolerance"] for row in found["equality"]] == [True] * 8
    assert 0 < found["clocks"][1]["error_seconds"] < 1
    assert abs(found["clocks"][1]["offset_seconds"]) <= found["clocks"][1]["error_seconds"]
    described = [row["versions"] for row in found["machines"]]
    assert list(judging.versions(described)) == []
    described[1]["TensorFlow"] = "2.20.0"
    (problem,) = judging.versions(described)
    assert problem.startswith("TensorFlow is 2.") and "but 2.20.0 in rank 1:" in problem
    for heading in ("Versions", "Links between ranks", "Equality with one device", "Problems"):
        assert f"{heading}" in done.stdout
    assert "an embedding, batches of many sizes  equal" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("engine", _ENGINES)
def test_a_wrong_weight_of_one_rank_is_noticed(engine, tmp_path):
    job = ["tfdist", "run", "-n", "3", "--strategy", engine, "-m", "tests.checkup.rank"]
    done = call(*job, "2", "1", engine, tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    assert done.returncode == 1, done.stderr
    wrong = [problem for problem in found["problems"] if problem.startswith("Training with ")]
    assert len(wrong) == 2
    assert all(" in rank 1" in problem for problem in wrong)
    assert {row["rank"] for row in found["equality"]} == {1}


@pytest.mark.full
@pytest.mark.parametrize("engine", _ENGINES)
def test_a_drill_kills_a_rank_and_the_weights_stay_those_of_one_device(engine, tmp_path):
    done = call("tfdist", "test", "--strategy", engine, "--faults", "--json", tmp_path / "found")
    found = json.loads((tmp_path / "found").read_text())
    assert "A rank of an elastic job killed and replaced" in done.stdout
    assert found["faults"]["problem"] == ""
    assert found["faults"]["difference"] <= 1e-6


@pytest.mark.full
def test_tasks_of_slurm_find_each_other(tmp_path):
    host = os.uname().nodename
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.checkup.rank", "1", "-1", "multi_worker", str(tmp_path)],
            env=environ(**launchers.srun(rank, host, (2,))),
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            rank.wait(_DEADLINE)
    finally:
        for rank in ranks:
            rank.kill()
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["ranks"], found["strategy"]) == (2, "multi_worker")


@_NO_HOROVOD
@pytest.mark.full
def test_ranks_of_horovodrun_find_each_other(tmp_path):
    path = tmp_path / "found.json"
    command = [*test_launchers.COMMANDS["horovodrun"], "-m", "tfdist", "test", "--json", path]
    done = subprocess.run(
        list(map(str, command)),
        env=test_launchers.environment(),
        capture_output=True,
        text=True,
        timeout=_DEADLINE,
        check=False,
    )
    found = json.loads(path.read_text())
    assert bool(done.returncode) == bool(found["problems"]), done.stderr
    assert (found["ranks"], found["ranks_per_host"], found["strategy"]) == (2, 2, "horovod")
    assert [row["ranks"] for row in found["links"]] == [[0, 1]]
    assert [row["difference"] <= row["tolerance"] for row in found["equality"]] == [True] * 8
    assert "Equality with one device" in done.stdout


_OF_WORKER = launchers.kubeflow("worker", 0, worker=2)


@pytest.mark.parametrize(
    ("variables", "arguments", "message"),
    [
        (_OF_WORKER, ["-n", "2"], "TF_CONFIG has started this process as one of 2, so leave out"),
        ({environment.ELASTIC: "3:0"}, [], "leave out --min, and give --faults"),
        (launchers.kubeflow("worker", 0, worker=1, ps=1), [], "with parameter servers or an eval"),
        (launchers.kubeflow("evaluator", 0, worker=2), [], "with parameter servers or an eval"),
        ({environment.REDUCERS: "1"}, [], "Received: {}, TFDIST_REDUCERS='1'"),
        ({"TF_CONFIG": "{"}, [], "TF_CONFIG"),
        ({}, ["--json", "/no/such/folder/file"], "No such file or directory. Received: --json /no"),
        ({}, ["--json", "/proc/found.json"], "cannot be written: "),
        ({}, ["-n", "1"], "'-n'"),
        ({}, ["--strategy", "parameter_server"], "'--strategy'"),
    ],
)
def test_what_cannot_be_tested_is_refused(variables, arguments, message, monkeypatch, capsys):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["test", *arguments]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("tfdist test: ") and message in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("variables", "found"),
    [({}, "no launcher"), (launchers.kubeflow("worker", 0, worker=1), "one rank by TF_CONFIG")],
)
def test_it_says_why_it_starts_ranks(variables, found, monkeypatch, capsys):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tfdist.cli.test._started", lambda *_: 0)
    assert main(["test"]) == 0
    assert f"tfdist test: {found}, so 2 ranks are started here" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("at", ["measuring each pair", "measuring all-reduces"])
def test_the_loss_of_a_rank_is_a_problem_that_names_it(at, tmp_path):
    with contextlib.ExitStack() as sockets:
        bound = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in bound]
    ranks = []
    for index in range(2):
        cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-m", "tfdist", "test"],
                env=environ(TF_CONFIG=json.dumps(cluster)),
                stdout=subprocess.PIPE,
                stderr=(tmp_path / f"{index}").open("w"),
                text=True,
            )
        )
    try:
        begun = time.monotonic()
        while at not in (tmp_path / "0").read_text() and time.monotonic() - begun < _DEADLINE:
            time.sleep(0.02)
        ranks[1].kill()
        shown, _ = ranks[0].communicate(timeout=_DEADLINE)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert ranks[0].returncode == 1
    assert "Problems\n  the ranks cannot train together: Rank 0 lost its connection to " in shown
    assert "Traceback" not in (tmp_path / "0").read_text()


def test_ranks_that_cannot_come_together_are_a_problem():
    with socket.create_server(("127.0.0.1", 0)) as found:
        free = found.getsockname()[1]
    workers = [f"127.0.0.1:{free}", "nobody.invalid:2222"]
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 0}}
    done = call("tfdist", "test", TF_CONFIG=json.dumps(config), TFDIST_CONNECT_TIMEOUT="1")
    assert done.returncode == 1
    assert "Problems\n  the ranks cannot train together: " in done.stdout
    assert "could not be reached within 1 s" in done.stdout
