"""What an answer says besides its figures."""

import json

import keras
import pytest

from tfdist.plan import models, question, table
from tfdist.plan.alpha_beta import Link
from tfdist.plan.machine import CPU_COSTS, GPU_COSTS, INSIDE, Cluster, link_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "model.keras"
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    model.save(path)
    return str(path)


def notes(path, **options):
    asked = question.Question(path, bandwidth=1e9, device_step=1.0, **options)
    found = question.answer(asked)
    return {p.workers for p in found.predictions}, "\n".join(found.notes)


def test_workers_without_a_sample_are_left_out_with_a_note(saved):
    counts, found = notes(saved, batch_size=4, strong=True, workers=[2, 4, 8, 16])
    assert counts == {2, 4}
    assert "Left out: 8, 16 workers, as --strong divides one batch among them" in found
    _, found = notes(saved, batch_size=4, strong=True, workers=range(2, 30))
    assert "Left out: 5, 6, 7, 8, ..., 29 workers" in found
    assert "--strong divides" not in notes(saved, batch_size=16, strong=True, workers=[2, 16])[1]


def test_workers_with_few_updates_are_shown_with_a_note(saved):
    counts, found = notes(saved, batch_size=4, samples=1000, workers=[2, 8, 16, 64])
    assert counts == {2, 8, 16, 64}
    expected = "Not recommended: 16, 64 workers, as an epoch of 1,000 samples has less than 20"
    assert expected in found
    assert "Not recommended" not in notes(saved, batch_size=4, workers=[2, 64])[1]


def test_workers_that_make_as_many_updates_as_one_device_are_recommended(saved):
    few = "Also on one device an epoch of 40 samples has less than 20 updates"
    _, found = notes(saved, batch_size=8, samples=40, strong=True, workers=[2, 4])
    assert few in found and "Not recommended" not in found
    _, found = notes(saved, batch_size=8, samples=40, workers=[2, 4])
    assert few in found and "Not recommended: 2, 4 workers" in found
    assert few not in notes(saved, batch_size=2, samples=40, workers=[2, 4])[1]


SCRIPT = """
import keras, numpy as np
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(np.zeros((3000, 3)), np.zeros((3000, 2)), batch_size=10)
"""


def test_the_samples_of_a_script_count_if_no_others_are_given(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    for given, used in (({}, 3000), ({"samples": 50}, 50)):
        asked = question.Question(str(path), bandwidth=1e9, device_step=1.0, price=2.5, **given)
        found = question.answer(asked)
        assert found.question.epoch == table.Epoch(used, 2.5)
        said = "3,000 samples, by what the script gives to `fit` (the arrays of its `fit`): give"
        assert any(said in note for note in found.notes) == (not given)
        assert not any("a million samples" in note for note in found.notes)


def test_without_samples_the_cost_is_that_of_a_million(saved):
    _, found = notes(saved, batch_size=8, price=2.5)
    assert "the cost is that of a million samples: give --samples" in found
    assert "a million samples" not in notes(saved, batch_size=8)[1]


LINK = Link(1e-3, 1e-6)


def machines(known, **options):
    return question._machines(
        question.Question("model.keras", cluster="test.json", **options), known
    )


def test_the_link_that_was_measured_on_one_host_counts_there():
    assert machines(Cluster(4, 4, LINK)).between(4) == LINK
    assert machines(Cluster(8, 4, LINK)).between(4) == INSIDE
    assert machines(Cluster(8, 4, LINK)).between(8) == LINK
    between = machines(Cluster(4, 4, LINK), bandwidth=1e9)
    assert (between.between(4), between.between(8)) == (LINK, link_of(1e9, 5e-5))
    assert machines(Cluster(8, 4, LINK), bandwidth=1e9).between(8) == link_of(1e9, 1e-3)


def of_one_host(tmp_path, **found):
    path = tmp_path / "test.json"
    link = {"latency_seconds": 1e-4, "bandwidth_bytes_per_second": 1e9}
    path.write_text(json.dumps({"ranks": 2, "ranks_per_host": 2, "link": link, **found}))
    return str(path)


def asked(path, cluster, **options):
    return question.answer(question.Question(path, batch_size=8, cluster=cluster, **options))


@pytest.mark.parametrize(
    "options", [{"workers": [2, 4]}, {"per_host": 1}, {"workers": [2], "reducers": 1}]
)
def test_the_link_of_one_host_is_not_that_between_hosts(saved, tmp_path, options):
    cluster = of_one_host(tmp_path)
    with pytest.raises(ValueError, match="no link between hosts: give --bandwidth too.*Received: "):
        asked(saved, cluster, device_step=1.0, **options)
    found = asked(saved, cluster, device_step=1.0, bandwidth=1e8, **options)
    assert any("Link of a host: 0.753 Gbit/s" in note for note in found.notes)


def test_workers_of_the_measured_host_need_no_other_link(saved, tmp_path):
    found = asked(saved, of_one_host(tmp_path), device_step=1.0)
    assert any("Link between workers of a host: 8 Gbit/s" in note for note in found.notes)
    assert {p.workers for p in found.predictions} == {2}


def test_a_step_that_ran_on_all_cores_is_slower_beside_another_one(saved, tmp_path, monkeypatch):
    device = models.Device(1.0, 8)
    monkeypatch.setattr(models.device, "measured", lambda *_: (device, []))
    found = asked(saved, of_one_host(tmp_path))
    assert all(p.step > 1.99 for p in found.predictions if p.candidate.strategy == "horovod")
    assert any("which the workers of a host share" in note for note in found.notes)
    assert found.advice.code is None
    found = asked(saved, of_one_host(tmp_path), device_step=1.0)
    assert all(p.step < 1.5 for p in found.predictions if p.candidate.strategy == "horovod")
    assert not any("which the workers of a host share" in note for note in found.notes)
    found = asked(saved, None, bandwidth=1e9)
    assert not any("which the workers of a host share" in note for note in found.notes)


@pytest.mark.parametrize(
    ("gpus", "device", "costs"),
    [
        ([], None, CPU_COSTS),
        (["GPU:0"], None, GPU_COSTS),
        (["GPU:0"], "cpu", CPU_COSTS),
        ([], "gpu", GPU_COSTS),
    ],
)
def test_costs_are_those_of_the_devices(saved, tmp_path, monkeypatch, gpus, device, costs):
    planners = []
    monkeypatch.setattr(question, "_notes", lambda _, planner: planners.append(planner) or [])
    cluster = of_one_host(tmp_path, machines=[{"gpus": gpus}] * 2)
    found = asked(saved, cluster, device_step=1.0, device=device)
    assert planners[0].machines.costs == costs
    names = ("CPUs: give --device gpu for GPUs", "GPUs: give --device cpu for CPUs")
    said = names[costs == GPU_COSTS]
    assert any(f"compressors and updates cost is that of {said}" in note for note in found.notes)


def test_steps_that_run_here_have_the_costs_of_this_machine(saved, tmp_path):
    with pytest.raises(ValueError, match="those of a CPU: give --device-step.*--device gpu"):
        asked(saved, None, bandwidth=1e9, device="gpu")
    cluster = of_one_host(tmp_path, machines=[{"gpus": ["GPU:0"]}] * 2)
    assert not any("GPUs" in note for note in asked(saved, cluster).notes)
