"""Workers that make their updates themselves: the same weights, and no update twice or never."""

import functools
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.parameter_server.counting import BATCHES, SAMPLES
from tests.parameter_server.own_equal import CASES, SEVERAL_SERVERS

BY_CHIEF = {
    "no metrics": "the step returns other logs than the metrics' results",
    "dynamic": "the chief reads the data",
    "scaled loss": "the loss is scaled",
    "accumulation": "gradients are accumulated",
}


ON_ANOTHER = "the update of a variable needs variable, which is on another parameter server"
OWN_WAY = "MultiOptimizer applies gradients in a way of its own"
# With one server. The first list is that of the weights: with two optimizers, there are two.
FLAT = {
    "dense, sgd": [41, 41],
    "dense, schedule": [41, 41],
    "dense, warm-up": [41],
    "dense, flat": [41] * 4,
    "dense, decay": [41] * 3,
    "batch normalization": [19, 19],
    "embedding, flat": [13] * 3,  # without the table, whose gradients are sparse
    "frozen": [18, 18],
    "policy": [41, 41],
    "endless": [41, 41],
    "two optimizers": [5, 5, 5, 28, 28],
    "mixed precision": [41, 41],
    "pulled differences": [18, 18],
}
# With two servers. The others, and all with one server, are `full`.
QUICK = ("dense, warm-up", "two optimizers")
OF_SERVERS = {1: tuple(CASES), 2: SEVERAL_SERVERS}


def _is_quick(servers, name):
    return servers == 2 and name in QUICK


def written(module, folder, *arguments):
    path = folder / "found.json"
    command = [sys.executable, "-m", f"tests.parameter_server.{module}", path, *arguments]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    assert path.exists(), done.stderr[-5000:]
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What `results(servers, quick)` returns: the results of the quick cases, or of the others."""

    @functools.cache
    def of(servers, quick):
        names = [name for name in OF_SERVERS[servers] if _is_quick(servers, name) == quick]
        return written("own_equal", tmp_path_factory.mktemp("own"), str(servers), *names)

    return of


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    return functools.cache(
        lambda servers: written("own_failing", tmp_path_factory.mktemp("own"), str(servers))
    )


def _cases():
    for servers, names in OF_SERVERS.items():
        for name in names:
            quick = _is_quick(servers, name)
            group = pytest.mark.xdist_group(f"own_updates {servers} {quick}")
            marks = [group] if quick else [group, pytest.mark.full]
            yield pytest.param(servers, name, marks=marks, id=f"{servers}-{name}")


@pytest.mark.parametrize(("servers", "case"), list(_cases()))
def test_the_weights_are_those_of_one_device_whoever_makes_the_updates(results, servers, case):
    found = results(servers, _is_quick(servers, case))[case]
    norm = "the norm of gradients on several parameter servers is needed"
    several = {"dense, adam": norm, "dense, nadam": ON_ANOTHER, "several rates": OWN_WAY}
    assert found["why chief"] == (BY_CHIEF | (several if servers > 1 else {})).get(case)
    if servers == 1:
        assert found["flat"] == FLAT.get(case, [])
    else:
        assert bool(found["flat"]) == (case in FLAT)
    check(found)


def check(found):
    assert found["why chief, at rest"] == "AtRest acts in each batch"
    assert found["to the chief's"] <= 1e-7
    assert found["to one device's"] <= 1e-6
    assert len(set(found["iterations"])) == 1


@pytest.mark.full
@pytest.mark.xdist_group("own_updates failing 2")
def test_an_update_that_one_server_has_made_is_made_by_all(failed):
    found = failed(2)["half"]
    assert found["said"]
    assert found["made"] >= 3
    assert found["counted"] == [found["made"]] * 2
    assert found["to one device's"] <= 1e-6
    assert found["after"] == [13, 13]
    assert all(found["only begun"].values())


@pytest.mark.parametrize(
    "servers",
    [
        pytest.param(1, marks=[pytest.mark.full, pytest.mark.xdist_group("own_updates failing 1")]),
        pytest.param(2, marks=pytest.mark.xdist_group("own_updates failing 2")),
    ],
)
def test_updates_before_a_step_that_fails_are_counted(failed, servers):
    assert failed(servers)["error"] == {
        "said": True,
        "why chief": None,
        "failed": [29, 29, 1],
        "after": [36, 36, 7],
    }


@pytest.mark.full
@pytest.mark.parametrize("servers", [1, 2])
def test_calls_that_end_after_a_fit_keep_no_worker_and_change_nothing(tmp_path, servers):
    found = written("own_late", tmp_path, str(servers))
    assert found["why chief"] is None and found["said"] == [True, True]
    assert found["same"] == [BATCHES, BATCHES, BATCHES, 1, 1]
    assert found["other"] == [7, 7]
    assert found["workers"] == [0, 1, 2]
    assert found["threads"] == 0


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory):
    return functools.cache(
        lambda servers: written("own_flat", tmp_path_factory.mktemp("own"), str(servers))
    )


_SERVERS = pytest.mark.parametrize(
    "servers",
    [
        pytest.param(1, marks=pytest.mark.xdist_group("own_flat 1")),
        pytest.param(2, marks=[pytest.mark.full, pytest.mark.xdist_group("own_flat 2")]),
    ],
)


@_SERVERS
def test_weights_are_in_their_variables_wherever_somebody_looks(looked_at, servers):
    found = looked_at(servers)
    assert found["why chief"] is None and found["said"]
    assert found["updates"] == 301
    assert len(found["flat"]) == 3 * servers
    assert len(found["seen"]) > 10 and max(found["seen"]) < 301
    assert max(found["differences"].values()) <= 1e-6


@_SERVERS
def test_a_callback_may_swap_the_weights_for_a_validation(looked_at, servers):
    history, expected = looked_at(servers)["at validation"]
    assert history.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(history[key], values, rtol=1e-5)
    assert len(set(expected["val_loss"])) == 1 < len(set(expected["loss"]))


@_SERVERS
def test_nothing_is_flat_where_a_callback_may_look_after_batches(looked_at, servers):
    found = looked_at(servers)["in batches"]
    assert found.pop("seen") > 3  # of 8: workers may be some batches ahead of the callback
    assert found == {"watched": 0, "not watched": 3 * servers}


@_SERVERS
def test_weights_that_a_snapshot_has_restored_are_kept(looked_at, servers):
    assert looked_at(servers)["after a loss"] == [7.0]


@_SERVERS
def test_the_gradients_of_a_policy_are_those_that_are_used(looked_at, servers):
    assert looked_at(servers)["compensated"] == 0.0


def run(start, tmp_path, kills, epochs, servers=1):
    processes, _ = start(3, servers, str(kills), str(epochs), job="tests.parameter_server.own_job")
    assert processes["chief", 0].wait(300) == 0, (tmp_path / "chief-0.log").read_text()
    facts = json.loads((tmp_path / "facts").read_text())
    assert facts["why chief"] is None
    epochs = len(facts["counted"])
    assert facts["seen"] == [epochs] * SAMPLES
    assert facts["counted"] == [SAMPLES] * epochs
    updates = epochs * BATCHES
    assert facts["updates"] == facts["iterations"] == facts["version"] == updates
    return facts


@pytest.mark.full
def test_staleness_is_counted_and_acted_upon_where_updates_are_made(start, tmp_path):
    facts = run(start, tmp_path, 0, 20)
    assert facts["reported"] == sorted(facts["staleness"])
    assert max(facts["staleness"]) >= 2
    factors = [1 / max(staleness, 1) for staleness in facts["staleness"]]
    np.testing.assert_allclose(facts["rates"], factors)
    assert facts["reported rate"] == pytest.approx(np.mean(factors))
    assert set(facts["workers"]) == {0, 1, 2}


@pytest.mark.full
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("kills", [2, 6])
def test_each_sample_is_trained_on_once_though_workers_are_killed_in_updates(
    start, tmp_path, kills, servers
):
    facts = run(start, tmp_path, kills, 2, servers)
    assert facts["reported"] == sorted(facts["staleness"])
    assert len(facts["at rest"]) == kills // 2
    assert all(before == after for before, after in facts["at rest"])
    said = (tmp_path / "chief-0.log").read_text()
    assert said.count("is lost; training goes on with the others") >= kills
    assert said.count("is back.") >= kills
