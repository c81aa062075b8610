"""Reducers of elastic jobs: they and ranks come and go, and the result stays that of one device."""

import contextlib
import os
import pickle
import signal
import time

import pytest

from tests.elastic import machines as machines_of_job
from tests.elastic.test_faults import check, launch, train
from tests.elastic.test_faults import one_device as one_device  # a fixture
from tfdist.elastic.formation import Formation
from tfdist.strategies.multi_worker import group_engine

# Ranks 0 to 2, and reducers 3 and 4. What happens; which ranks and reducers are left.
FAULTS = {
    "nothing": ([], [0, 1, 2], [3, 4]),
    "a reducer dies in a step": (["0:SIGKILL@3:step 3"], [0, 1, 2], [4]),
    "a reducer dies between micro-batches": (["1:SIGKILL@4:micro 7"], [0, 1, 2], [3]),
    "a reducer dies in evaluate": (["0:SIGKILL@3:evaluate"], [0, 1, 2], [4]),
    "a reducer dies while ranks trace": (["1:SIGKILL@3:trace"], [0, 1, 2], [4]),
    "a reducer dies at its start": (["3:SIGKILL:start"], [0, 1, 2], [4]),
    "a reducer is asked to end": (["0:SIGTERM@4:step 4"], [0, 1, 2], [3]),
    "a reducer is stopped for ever": (["2:SIGSTOP@3:step 6"], [0, 1, 2], [4]),
    "all reducers die": (["0:SIGKILL@3:step 3", "1:SIGKILL@4:step 8"], [0, 1, 2], []),
    "all reducers die at once": (["0:SIGKILL@3:step 6", "1:SIGKILL@4:step 6"], [0, 1, 2], []),
    "a rank dies": (["1:SIGKILL:step 3"], [0, 2], [3, 4]),
    "the first rank dies while it traces": (["0:SIGKILL:trace"], [1, 2], [3, 4]),
    "the first rank dies between micro-batches": (["0:SIGKILL:micro 7"], [1, 2], [3, 4]),
    "a rank leaves": (["2:SIGTERM:step 4"], [0, 1], [3, 4]),
    "both die at once": (["1:SIGKILL:step 6", "2:SIGKILL@3:step 6"], [0, 2], [4]),
    "one rank is left": (["0:SIGKILL:step 3", "1:SIGKILL:step 8"], [2], []),
    "a reducer dies while ranks form a group": (
        ["1:SIGKILL:step 6", "0:SIGKILL@4:form 1"],
        [0, 2],
        [3],
    ),
}
USUAL = {"a reducer dies in a step"}


def reduced(folder, *faults, **options):
    return train(
        folder, "multi_worker", *faults, options=("--reducers", "2"), SUMMED="all", **options
    )


def check_sums(folder, left, by_reducers):
    """Whether the reducers have summed for the last group, if it had any."""
    for number in left:
        result = pickle.loads((folder / f"rank-{number}.pickle").read_bytes())
        assert (result["sums"] > 0) == by_reducers, number


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in USUAL else pytest.mark.full) for n in FAULTS]
)
def test_the_result_is_that_of_one_device(name, tmp_path, one_device):
    faults, left, reducers = FAULTS[name]
    done = reduced(tmp_path, *faults)
    assert done.returncode == 0, done.stderr
    for number in {0, 1, 2} - set(left):
        assert f"rank {number} was " in done.stderr
    if len(left) > 1:
        for number in {3, 4} - set(reducers):
            assert f"reducer {number} was killed by SIG" in done.stderr
    check(tmp_path, left, one_device())
    check_sums(tmp_path, left, by_reducers=bool(reducers))


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "left", "said"),
    [
        ("0:SIGKILL@3:step 3", [0, 1, 2], "reducer 5 is started in the place of reducer 3"),
        ("1:SIGKILL:step 3", [0, 2, 5], "rank 5 is started in the place of rank 1"),
    ],
)
def test_what_is_lost_is_replaced(fault, left, said, tmp_path, one_device):
    done = reduced(tmp_path, fault, restarts=1, least=3, EPOCHS="8", SECONDS="0.2")
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    assert f"{said.partition(' is')[0]} joins; training goes on with" in done.stderr
    check(tmp_path, left, one_device(8))
    check_sums(tmp_path, left, by_reducers=True)


@pytest.mark.full
def test_reducers_of_one_rank_sum_when_another_one_has_come(tmp_path, one_device):
    done = train(
        tmp_path,
        "multi_worker",
        "0:launcher SIGUSR1:step 2",
        count=1,
        options=("--max", "2", "--reducers", "1"),
        EPOCHS="8",
        SECONDS="0.5",
        SUMMED="all",
    )
    assert done.returncode == 0, done.stderr
    assert "rank 2 joins; training goes on with ranks 0, 2 and reducer 1" in done.stderr
    check(tmp_path, [0, 2], one_device(8))
    check_sums(tmp_path, [0, 2], by_reducers=True)


@pytest.mark.full
def test_a_machine_that_only_sums_comes_and_goes(tmp_path, one_device):
    job = machines_of_job.Machines(
        tmp_path, "multi_worker", (), EPOCHS="8", SECONDS="0.5", SUMMED="all"
    )
    with contextlib.closing(job):
        job.start(2, "--min", "2")
        job.wait_for(0, "Epoch 2/8")
        for _ in range(2):
            job.start(0, "--min", "2", "--reducers", "1")
        job.wait_for(0, "training goes on with ranks 0, 1 and reducers 2, 3")
        job.wait_for(0, "Epoch 4/8")
        job.launchers[1].send_signal(signal.SIGTERM)
        job.wait_for(0, "as its launcher was asked to end; training goes on with")
        job.wait_for(0, "Epoch 5/8")
        job.launchers[2].kill()
        job.wait_for(0, "training goes on with ranks 0, 1, after")
        assert job.ends() == [0, 143, -9], job.log(0)
    check(tmp_path, [0, 1], one_device(8))


def test_no_proxy_is_between_ranks_and_reducers(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    monkeypatch.setenv("no_grpc_proxy", "")
    monkeypatch.setattr(group_engine.compat, "form_group", lambda *_: None)
    places = {"members": [0, 1], "addresses": ["a:1", "b:1"]}
    formation = Formation(2, **places, reducers=[2], reducer_addresses=["c:1"])
    group_engine.CollectivesConnection("a:1").form(formation, 0)
    assert os.environ["no_grpc_proxy"] == "a,b,c"


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("local=tfdist.LocalSGD(4)", "which `local` does not do. Leave out the reducers, or"),
        pytest.param(
            "exchange='ring'",
            "`exchange` must be 'auto'. Leave out the reducers, or",
            marks=pytest.mark.full,
        ),
    ],
)
def test_what_reducers_cannot_do_is_refused(option, text, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"import tfdist; tfdist.Strategy('auto', {option})")
    job = ["tfdist", "run", "-n", "2", "--min", "1", "--reducers", "1", "--timeout", "100"]
    done = launch(tmp_path, *job, str(script))
    assert done.returncode == 1
    assert text in done.stderr


def test_the_machine_that_serves_has_a_rank(tmp_path):
    job = machines_of_job.Machines(tmp_path, "multi_worker", ())
    with contextlib.closing(job):
        begun = time.monotonic()
        job.start(0, "--min", "1", "--reducers", "1")
        assert job.ends() == [2]
        assert "so its -n must be at least 1" in job.log(0)
        assert time.monotonic() - begun < 60
