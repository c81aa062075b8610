"""Timeline in real processes: one file, in which no exchange ends before all have begun it."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import tfdist
from tests.callbacks import timeline_rank
from tests.devices import DEVICES
from tfdist.strategies.horovod.backend import is_installed

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_NO_HOROVOD = pytest.mark.skipif(not is_installed(), reason="make horovod")
_STEPS = list(range(*timeline_rank.STEPS))
ENGINES = ["multi_worker", pytest.param("horovod", marks=[_NO_HOROVOD, pytest.mark.full])]
ALL_FULL = [pytest.param("multi_worker", marks=pytest.mark.full), ENGINES[1]]


def started(engine, path, *more, options=("-n", "2")):
    """The file that a job has written, and what it has said."""
    job = [sys.executable, "-m", "tfdist", "run", *options, "--strategy", engine]
    done = subprocess.run(
        [*job, "-m", "tests.callbacks.timeline_rank", engine, str(path), *more],
        env={**os.environ, "PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text()), done.stderr


def spans_of(found, name):
    """The spans of a name, by rank and step; each is there once."""
    events = [e for e in found["traceEvents"] if e["ph"] == "X" and e["name"] == name]
    by_place = {(event["pid"], event["args"]["step"]): event for event in events}
    assert len(by_place) == len(events), name
    return by_place


def assert_no_exchange_ends_before_all_have_begun_it(found, prefix="exchange"):
    error = found["metadata"]["largest_clock_error_seconds"]
    rounding = 2  # microseconds, which are the unit of a trace
    exchanged = {}
    for event in found["traceEvents"]:
        if event["ph"] == "X" and event["name"].startswith(prefix):
            key = event["name"], event["args"]["step"]
            exchanged.setdefault(key, {})[event["pid"]] = event
    for by_rank in exchanged.values():
        assert set(by_rank) == {0, 1}
        last_begin = max(event["ts"] for event in by_rank.values())
        first_end = min(event["ts"] + event["dur"] for event in by_rank.values())
        assert first_end >= last_begin - 2e6 * error - rounding
    return exchanged


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_share_a_file_and_a_clock(engine, tmp_path):
    found, _ = started(engine, tmp_path / "trace.json")
    # The ranks are processes of one machine, so they have one clock.
    assert found["metadata"]["largest_clock_error_seconds"] == 0
    assert found["metadata"]["clock_offset_seconds"] == [0, 0]
    exchanged = assert_no_exchange_ends_before_all_have_begun_it(found)
    assert len(exchanged) >= 2 * 4  # two buckets or more, in each of four steps


@pytest.mark.parametrize("engine", ALL_FULL)
def test_ranks_exchange_where_a_round_ends(engine, tmp_path):
    found, _ = started(engine, tmp_path / "trace.json", "round")
    exchanged = assert_no_exchange_ends_before_all_have_begun_it(found)
    assert {step for _, step in exchanged} == {3, 5}


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_an_exchange_beside_steps_is_seen_with_the_step_before(engine, tmp_path):
    found, _ = started(engine, tmp_path / "trace.json", "overlap")
    exchanged = spans_of(found, "exchange of fragment 1")
    assert set(exchanged) == {(0, 5), (1, 5)}
    assert_no_exchange_ends_before_all_have_begun_it(found)
    steps = spans_of(found, "step")
    assert set(steps) == {(rank, step) for rank in (0, 1) for step in _STEPS}
    for place, event in exchanged.items():
        assert event["ts"] >= steps[place]["ts"] + steps[place]["dur"] - 1


def assert_weights_are_those_of_one_device(folder, ranks):
    strategy = tfdist.MirroredStrategy(DEVICES[:1])
    expected = timeline_rank.train(strategy, []).get_weights()[3:]
    for rank in ranks:
        own = json.loads((folder / f"trace.json.{rank}").read_text())
        for ours, theirs in zip(own, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_a_repeated_step_is_there_once(engine, tmp_path):
    options = ["-n", "3", "--min", "2", "--restarts", "0"]
    found, _ = started(engine, tmp_path / "trace.json", "5", options=options)
    assert found["metadata"]["memberships"] == 2
    assert found["metadata"]["steps_of_ranks"] == [_STEPS, _STEPS]
    exchanged = assert_no_exchange_ends_before_all_have_begun_it(found)
    assert len(exchanged) >= 2 * 4
    for name in ("step", "wait for data", "compute", "update", "exchange 0"):
        assert set(spans_of(found, name)) == {(r, s) for r in (0, 1) for s in _STEPS}, name
    assert_weights_are_those_of_one_device(tmp_path, [0, 1])


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_joins_has_the_steps_that_it_has_made(engine, tmp_path):
    options = ["-n", "3", "--min", "3", "--restarts", "1"]
    found, _ = started(engine, tmp_path / "trace.json", "5", options=options)
    assert found["metadata"]["memberships"] >= 2
    assert found["metadata"]["steps_of_ranks"] == [_STEPS, _STEPS, [5, 6]]
    assert {step for rank, step in spans_of(found, "update") if rank == 2} == {5, 6}
    assert_weights_are_those_of_one_device(tmp_path, [0, 1, 2])


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_is_lost_while_clocks_are_compared_is_not_in_the_file(engine, tmp_path):
    options = ["-n", "3", "--min", "2", "--restarts", "0"]
    found, _ = started(engine, tmp_path / "trace.json", "end", options=options)
    assert found["metadata"]["memberships"] == 1
    assert found["metadata"]["steps_of_ranks"] == [_STEPS, _STEPS]
    assert len(found["metadata"]["clock_offset_seconds"]) == 2
    assert_weights_are_those_of_one_device(tmp_path, [0, 1])


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_a_group_exchanges_where_a_round_ends(engine, tmp_path):
    options = ["-n", "3", "--min", "2", "--restarts", "0"]
    found, _ = started(engine, tmp_path / "trace.json", "round", "5", options=options)
    assert found["metadata"]["memberships"] == 2
    assert found["metadata"]["steps_of_ranks"] == [_STEPS, _STEPS]
    assert set(spans_of(found, "step")) == {(r, s) for r in (0, 1) for s in _STEPS}
    exchanged = spans_of(found, "exchange of the round")
    assert set(exchanged) == {(r, s) for r in (0, 1) for s in (3, 5)}


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_joins_where_a_round_ends_has_this_exchange(engine, tmp_path):
    options = ["-n", "3", "--min", "3", "--restarts", "1"]
    found, _ = started(engine, tmp_path / "trace.json", "round", "5", options=options)
    assert found["metadata"]["steps_of_ranks"] == [_STEPS, _STEPS, [6]]
    exchanged = spans_of(found, "exchange of the round")
    assert set(exchanged) == {(0, 3), (1, 3), (0, 5), (1, 5), (2, 5)}
