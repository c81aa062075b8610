"""The processes behind the table: what one of them does to a cell, it does to that cell only."""

import sys
import textwrap

import numpy as np
import pytest

from tests.equivalence import compare
from tests.equivalence.harness import Outcome
from tests.equivalence.job import Job
from tests.equivalence.ranks import JobError, JobHangsError, Limits, Ranks
from tests.equivalence.results import Result

# A rank without TensorFlow, whose features say what happens to it.
_RANK = """\
import faulthandler, json, os, pathlib, pickle, signal, sys, time

faulthandler.register(signal.SIGUSR1)
folder, rank = pathlib.Path(sys.argv[1]).parent, sys.argv[2]
for name in json.loads(pathlib.Path(sys.argv[1]).read_text())["features"]:
    print("begins", name, flush=True)
    if name == f"hangs in {rank}":
        time.sleep(600)
    if name == f"dies in {rank}":
        os.kill(os.getpid(), signal.SIGKILL)
    path = folder / f"{name}.{rank}".replace(" ", "%20")
    if name == f"raises in {rank}":
        path.with_name(f"{path.name}.error").write_text("ValueError: by itself")
        sys.exit(1)
    content = f"{len(list(folder.parent.glob('start-*')))}. start, rank {rank}"
    partial = folder / f"partial-{rank}"
    partial.write_bytes(pickle.dumps(content))
    partial.rename(path)
"""


@pytest.fixture
def start(tmp_path):
    """Starts a job of two such ranks with the features of the names given."""
    script = tmp_path / "rank.py"
    script.write_text(textwrap.dedent(_RANK))
    jobs = []

    def start(*features, seconds=60.0, failures=4):
        ranks = Ranks("none", "multi_worker", 2, program=(sys.executable, str(script)))
        limits = Limits(seconds, seconds, failures)
        jobs.append(Job(ranks, features, tmp_path / "results", limits))
        return jobs[-1]

    yield start
    for started in jobs:
        started.stop()


FIRST = ["1. start, rank 0", "1. start, rank 1"]
SECOND = ["2. start, rank 0", "2. start, rank 1"]


def failure(started, feature, kind=JobError):
    with pytest.raises(JobError) as caught:
        started.result(feature)
    assert caught.type is kind
    return str(caught.value)


def test_ranks_start_once_for_all_features(start, tmp_path):
    started = start("a", "b", "c")
    assert [started.result(name) for name in "abc"] == [FIRST] * 3
    assert len(list((tmp_path / "results").glob("start-*"))) == 1


def test_a_rank_that_dies_fails_its_own_feature(start):
    started = start("before", "dies in 1", "after")
    assert started.result("before") == FIRST
    message = failure(started, "dies in 1")
    assert "rank 1 ended with status -9" in message
    assert "begins dies in 1" in message
    assert started.result("after") == SECOND


def test_a_rank_that_hangs_fails_its_own_feature_and_shows_where(start):
    started = start("hangs in 0", "after", seconds=1.0)
    message = failure(started, "hangs in 0", JobHangsError)
    assert "rank 0 still runs after 2 s" in message
    assert "rank.py" in message and "in <module>" in message
    assert started.result("after") == SECOND


def test_an_error_is_shown_as_the_rank_saw_it(start):
    started = start("raises in 0", "after")
    assert "rank 0 failed:\nValueError: by itself" in failure(started, "raises in 0")
    assert started.result("after") == SECOND


def test_features_in_another_order_than_asked_for(start):
    started = start("a", "raises in 1", "b")
    assert started.result("b") == SECOND
    assert "ValueError: by itself" in failure(started, "raises in 1")


def test_a_job_that_always_fails_is_given_up(start, tmp_path):
    started = start("dies in 0", "raises in 0", "a", failures=2)
    assert "not tried after 2 failures in a row" in failure(started, "a")
    assert len(list((tmp_path / "results").glob("start-*"))) == 2


def test_another_process_of_the_session_reads_what_the_first_one_leaves(start, tmp_path):
    first, second = start("a", "b"), start("a", "b")
    assert first.result("a") == second.result("b") == FIRST
    assert len(list((tmp_path / "results").glob("start-*"))) == 1


def test_another_process_of_the_session_goes_on_when_the_first_one_stops(start):
    features = ("a", "hangs in 0", "b", "c", "d", "e")
    first, second = start(*features, seconds=2.0), start(*features, seconds=2.0)
    assert second.result("a") == first.result("a") == FIRST
    second.stop()
    assert "rank 0 still runs" in failure(first, "hangs in 0", JobHangsError)
    assert first.result("e") == ["3. start, rank 0", "3. start, rank 1"]


def result(weight, **variables):
    values = [(name, [np.float32(v) for v in parts]) for name, parts in variables.items()]
    return Result(Outcome([np.float32(weight)], {"loss": [1.0]}), values)


def test_problems_of_a_cell():
    good = result(1.0, w=[1.0, 1.0])
    assert compare.problems([good, good], good.outcome, good.outcome) == []
    one_bit = result(1.0, w=[1.0, np.nextafter(np.float32(1.0), np.float32(2.0))])
    assert compare.problems([one_bit], good.outcome) == ["not the same bits on all replicas: ['w']"]
    other_rank = result(1.0, w=[1.5, 1.5])
    assert "not the same bits" in compare.problems([good, other_rank], good.outcome)[0]
    wrong = result(1.1, w=[1.0, 1.0])
    texts = compare.problems([good, wrong], good.outcome, good.outcome)
    assert [text.split(" differ from ")[0] for text in texts] == ["rank 1: the weights"] * 2
    nan = result(np.nan, w=[1.0, 1.0])
    assert "by inf" in compare.problems([nan], good.outcome)[0]
    good_history = Result(Outcome(good.outcome.weights, {"loss": [1.001]}), good.variables)
    assert "the history is" in compare.problems([good_history], good.outcome)[0]
    assert compare.problems([good_history], good.outcome, history=False) == []
