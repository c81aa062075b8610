"""Ranks die, stop and leave at named moments: the others end with the weights of one device."""

import concurrent.futures
import csv
import os
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

from tfdist.launcher import spare
from tfdist.strategies.horovod.backend import is_installed

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEADLINE = 300
NEEDS = {
    "multi_worker": (),
    "horovod": (pytest.mark.skipif(not is_installed(), reason="make horovod"),),
}
ENGINES = [pytest.param(engine, marks=marks) for engine, marks in NEEDS.items()]
_FIRST, *_OTHERS = ENGINES
# For tests that the default suite runs with one engine only.
ONE_USUAL = [
    _FIRST,
    *(pytest.param(*e.values, marks=[*e.marks, pytest.mark.full]) for e in _OTHERS),
]

# What happens to which of three ranks; which of them are left. Step 3 and 8 are in the middle of an
# accumulation: an epoch has 5 batches, and an update takes 2.
FAULTS = {
    "the first rank dies in a step": (["0:SIGKILL:step 3"], [1, 2]),
    "one dies, one leaves": (["0:SIGKILL:step 8", "2:SIGTERM:evaluate"], [1]),
    "dies at the start": (["1:SIGKILL:start"], [0, 2]),
    "dies when it has its strategy": (["1:SIGKILL:strategy"], [0, 2]),
    "dies while it traces": (["1:SIGKILL:trace"], [0, 2]),
    "dies between micro-batches": (["1:SIGKILL:micro 7"], [0, 2]),
    "dies in evaluate": (["1:SIGKILL:evaluate"], [0, 2]),
    "the first rank dies before it saves": (["0:SIGKILL:epoch 2"], [1, 2]),
    "dies at the end": (["1:SIGKILL:end"], [0, 2]),
    "leaves in a step": (["1:SIGTERM:step 4"], [0, 2]),
    "the first rank leaves at an epoch's end": (["0:SIGTERM:epoch 1"], [1, 2]),
    "leaves while it traces": (["1:SIGTERM:trace"], [0, 2]),
    "is stopped for ever": (["1:SIGSTOP:step 6"], [0, 2]),
    "two die at once": (["0:SIGKILL:step 6", "1:SIGKILL:step 6"], [2]),
    "dies while the others form a group": (["0:SIGKILL:step 6", "1:SIGKILL:form 1"], [2]),
    "two leave at once": (["0:SIGTERM:step 6", "1:SIGTERM:step 6"], [2]),
}
USUAL = {"one dies, one leaves"}

# The same for ranks that are replaced by new ones (3, then 4), for which the others wait.
REPLACED = {
    "dies in a step": (["1:SIGKILL:step 3"], [0, 2, 3]),
    "the first rank dies between micro-batches": (["0:SIGKILL:micro 7"], [1, 2, 3]),
    "the first rank dies before it saves": (["0:SIGKILL:epoch 2"], [1, 2, 3]),
    "dies in evaluate": (["1:SIGKILL:evaluate"], [0, 2, 3]),
    "dies at the start": (["1:SIGKILL:start"], [0, 2, 3]),
    "dies while it traces": (["1:SIGKILL:trace"], [0, 2, 3]),
    "is stopped for ever": (["1:SIGSTOP:step 6"], [0, 2, 3]),
    "two die at once": (["0:SIGKILL:step 6", "2:SIGKILL:step 6"], [1, 3, 4]),
    "the new one dies too": (["1:SIGKILL:step 3", "3:SIGKILL:step 8"], [0, 2, 4]),
    "the new one dies before it joins": (["1:SIGKILL:step 3", "3:SIGKILL:strategy"], [0, 2, 4]),
    "dies at the end": (["1:SIGKILL:end"], [0, 2]),
    "all of the first ranks die": (
        ["0:SIGKILL:step 3", "1:SIGKILL:step 6", "2:SIGKILL:step 9"],
        [3, 4, 5],
    ),
}
USUALLY_REPLACED = "the first rank dies between micro-batches"


def launch(folder: pathlib.Path, *options: str, **environ: str) -> subprocess.CompletedProcess:
    """Runs a command of Python in a folder of its own; the outputs are text."""
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", *options],
        env=os.environ | {"PYTHONPATH": path} | environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE + 30,
        check=False,
    )


@pytest.fixture
def one_device(shared, tmp_path_factory):
    """What training on one device comes to; called with the number of epochs."""

    def trained(epochs=3):
        def compute():
            folder = tmp_path_factory.mktemp("one_device")
            done = launch(folder, "tests.elastic.job", str(folder), EPOCHS=str(epochs))
            assert done.returncode == 0, done.stderr
            return pickle.loads((folder / "rank-0.pickle").read_bytes())

        return shared.get(("elastic", f"one device, {epochs} epochs"), compute)

    return trained


def train(folder, engine, *faults, count=3, least=1, restarts=0, options=(), stall=3, **environ):
    job = ["tfdist", "run", "-n", str(count), "--min", str(least), "--strategy", engine]
    job += ["--restarts", str(restarts), *options]
    job += ["--stall-timeout", str(stall), "--timeout", str(DEADLINE)]
    return launch(folder, *job, "-m", "tests.elastic.job", str(folder), *faults, **environ)


def check(folder, left, expected):
    """Checks that the ranks in `left` have one result, which is the expected one."""
    results = {n: pickle.loads((folder / f"rank-{n}.pickle").read_bytes()) for n in left}
    for result in results.values():
        assert result["iterations"] == expected["iterations"]
        for ours, theirs in zip(result["weights"], expected["weights"]):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
        for key, values in expected["history"].items():
            np.testing.assert_allclose(result["history"][key], values, rtol=1e-5, atol=1e-6)
        first = results[left[0]]["weights"]
        assert all((ours == same).all() for ours, same in zip(result["weights"], first))
    with (folder / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    epochs = len(expected["history"]["loss"])
    assert [int(row["epoch"]) for row in rows] == list(range(epochs))
    losses = [float(row["loss"]) for row in rows]
    np.testing.assert_allclose(losses, expected["history"]["loss"], rtol=1e-5)
    assert len(list(folder.glob("*.weights.h5"))) == epochs


@pytest.mark.parametrize("engine", ONE_USUAL)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in USUAL else pytest.mark.full) for n in FAULTS]
)
def test_the_result_is_that_of_one_device(name, engine, tmp_path, one_device):
    faults, left = FAULTS[name]
    done = train(tmp_path, engine, *faults)
    assert done.returncode == 0, done.stderr
    for number in sorted({0, 1, 2} - set(left)):
        fault = next(fault for fault in faults if fault.startswith(f"{number}:"))
        if "SIGTERM" in fault:
            assert f"rank {number} was asked to leave" in done.stderr
        else:
            assert f"rank {number} was killed by SIGKILL" in done.stderr
    check(tmp_path, left, one_device())


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("step", ["function", "eager function"])
def test_a_step_that_is_a_function_is_traced_for_each_group(step, engine, tmp_path, one_device):
    done = train(tmp_path, engine, "1:SIGKILL:step 3", STEP=step)
    assert done.returncode == 0, done.stderr
    check(tmp_path, [0, 2], one_device())


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_two_jobs_at_the_same_time_do_not_disturb_each_other(engine, tmp_path, one_device):
    faults = {"first": "0:SIGKILL:step 3", "second": "1:SIGTERM:step 6"}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        jobs = {n: pool.submit(train, tmp_path / n, engine, fault) for n, fault in faults.items()}
    for name, left in {"first": [1, 2], "second": [0, 2]}.items():
        done = jobs[name].result()
        assert done.returncode == 0, done.stderr
        check(tmp_path / name, left, one_device())


def _replacements():
    for engine, marks in NEEDS.items():
        for name in REPLACED:
            usual = engine == "horovod" and name == USUALLY_REPLACED
            yield pytest.param(name, engine, marks=marks if usual else (*marks, pytest.mark.full))


@pytest.mark.parametrize(("name", "engine"), list(_replacements()))
def test_a_rank_is_replaced(name, engine, tmp_path, one_device):
    faults, there = REPLACED[name]
    done = train(tmp_path, engine, *faults, least=3, restarts=len(faults))
    assert done.returncode == 0, done.stderr
    for number in range(3, 1 + max(there)):
        assert f"rank {number} is started in the place of rank" in done.stderr
    check(tmp_path, there, one_device())


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_one_that_was_started_before_takes_the_place(engine, tmp_path, one_device):
    faults = ("1:SIGKILL:step 3", "0:SIGKILL:step 8")
    done = train(tmp_path, engine, *faults, least=3, restarts=3, options=("--spares", "1"))
    assert done.returncode == 0, done.stderr
    assert "rank 3 is started in the place of rank 1" in done.stderr
    assert "rank 4 is started in the place of rank 0" in done.stderr
    assert "while it waited" not in done.stderr
    check(tmp_path, [2, 3, 4], one_device())
    for number in (3, 4):
        result = pickle.loads((tmp_path / f"rank-{number}.pickle").read_bytes())
        assert result["program"] == spare.__file__


@pytest.mark.full
def test_one_that_cannot_be_started_does_not_end_the_job(tmp_path, one_device):
    logs = tmp_path / "logs"
    (logs / "rank-3.log").mkdir(parents=True)
    options = ("--spares", "1", "--log-dir", str(logs))
    fault = "1:SIGKILL:step 3"
    done = train(tmp_path, "multi_worker", fault, restarts=1, options=options)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("rank 3 cannot be started: [Errno 21]") == 2
    check(tmp_path, [0, 2], one_device())


def test_too_few_ranks_end_the_job(tmp_path):
    done = train(tmp_path, "multi_worker", "1:SIGKILL:start", count=2, least=2)
    assert done.returncode == 75
    assert "1 rank is left, and the job needs 2 (--min)" in done.stderr


@pytest.mark.full
def test_too_few_ranks_wait_for_others_so_long_and_no_longer(tmp_path):
    waits = ("--rejoin-timeout", "0.5")
    done = train(
        tmp_path, "multi_worker", "1:SIGKILL:step 2", count=2, least=2, restarts=1, options=waits
    )
    assert done.returncode == 75
    assert "fewer than 2 ranks (--min) were there for 0.5 s (--rejoin-timeout)" in done.stderr


def test_an_error_of_the_script_ends_the_job(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import tfdist\ntfdist.Strategy()\nraise ValueError('broken')\n")
    options = ("--min", "1", "--restarts", "1", "--spares", "1")
    done = launch(tmp_path, "tfdist", "run", "-n", "2", *options, str(script))
    assert done.returncode == 1
    assert "ValueError: broken" in done.stderr
    assert "rank 2" not in done.stderr
