"""Workers that make their updates themselves: the same weights, and no update twice or never."""

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


def results(servers, folder):
    path = folder / "found.json"
    command = [sys.executable, "-m", "tests.parameter_server.own_equal", str(path), str(servers)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    assert path.exists(), done.stderr[-5000:]
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return results(1, tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def trained_on_two(tmp_path_factory):
    return results(2, tmp_path_factory.mktemp("own"))


@pytest.mark.xdist_group("own_updates")
@pytest.mark.parametrize("case", CASES)
def test_the_weights_are_those_of_one_device_whoever_makes_the_updates(trained, case):
    assert trained[case]["why chief"] == BY_CHIEF.get(case)
    assert trained[case]["to the chief's"] <= 1e-7
    check(trained[case])


@pytest.mark.xdist_group("own_updates_on_two")
@pytest.mark.parametrize("case", SEVERAL_SERVERS)
def test_on_several_servers_the_weights_are_those_of_one_device(trained_on_two, case):
    found = trained_on_two[case]
    norm = "the norm of gradients on several parameter servers is needed"
    assert found["why chief"] == (norm if case == "dense, adam" else None)
    check(found)


def check(found):
    assert found["why chief, at rest"] == "AtRest acts in each batch"
    assert found["to the chief's"] <= 1e-7
    assert found["to one device's"] <= 1e-6
    assert len(set(found["iterations"])) == 1


@pytest.mark.xdist_group("own_updates_on_two")
def test_an_update_that_one_server_has_made_is_made_by_all(trained_on_two):
    found = trained_on_two["half"]
    assert found["said"]
    assert found["made"] >= 3
    assert found["counted"] == [found["made"]] * 2
    assert found["to one device's"] <= 1e-6
    assert found["after"] == [13, 13]
    assert all(found["only begun"].values())


@pytest.mark.xdist_group("own_updates")
def test_updates_before_a_step_that_fails_are_counted(trained):
    errors(trained)


@pytest.mark.xdist_group("own_updates_on_two")
def test_on_several_servers_updates_before_a_step_that_fails_are_counted(trained_on_two):
    errors(trained_on_two)


def errors(trained):
    assert trained["error"] == {
        "said": True,
        "why chief": None,
        "failed": [29, 29, 1],
        "after": [36, 36, 7],
    }


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


def test_staleness_is_counted_and_acted_upon_where_updates_are_made(start, tmp_path):
    facts = run(start, tmp_path, 0, 20)
    assert facts["reported"] == sorted(facts["staleness"])
    assert max(facts["staleness"]) >= 2
    factors = [1 / max(staleness, 1) for staleness in facts["staleness"]]
    np.testing.assert_allclose(facts["rates"], factors)
    assert facts["reported rate"] == pytest.approx(np.mean(factors))
    assert set(facts["workers"]) == {0, 1, 2}


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.full)])
def test_each_sample_is_trained_on_once_though_workers_are_killed_in_updates(
    start, tmp_path, kills, servers
):
    facts = run(start, tmp_path, kills, 2, servers)
    assert facts["reported"] == sorted(facts["staleness"])
    said = (tmp_path / "chief-0.log").read_text()
    assert said.count("is lost; training goes on with the others") >= kills
    assert said.count("is back.") >= kills
