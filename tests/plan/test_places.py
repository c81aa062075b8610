"""Which strategies are compared on CPUs, where a worker is a process, and which on GPUs."""

import keras

from tfdist.plan import candidates, question
from tfdist.plan.alpha_beta import Link
from tfdist.plan.machine import Machines

PLACES = Machines(Link(1e-4, 1e-9), per_host=4)


def found(workers, on_gpus):
    every = candidates.candidates(workers, PLACES, on_gpus=on_gpus)
    return {c.strategy for c in every}, {c.strategy for c in every if c.exchange != "ring"}


def test_mirrored_is_for_the_gpus_of_one_host():
    assert "mirrored" in found(4, on_gpus=True)[0]
    assert "mirrored" not in found(8, on_gpus=True)[0]
    assert "mirrored" not in found(4, on_gpus=False)[0]


def test_groups_are_for_several_gpus_of_a_process():
    assert found(8, on_gpus=True)[1] == {"multi_worker"}
    assert found(6, on_gpus=True)[1] == set()  # four on one host, and two on the other one
    assert found(4, on_gpus=True)[1] == set()
    assert found(8, on_gpus=False)[1] == set()


def test_on_cpus_it_is_told_how_workers_are_started(tmp_path):
    path = str(tmp_path / "model.keras")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    model.save(path)

    known = {"batch_size": 8, "bandwidth": 1e9, "device_step": 1.0, "workers": [2]}

    def told(device, per_host):
        asked = question.Question(path, **known, device=device, per_host=per_host)
        answer = question.answer(asked)
        strategies = {p.candidate.strategy for p in answer.predictions}
        return "mirrored" in strategies, any("`tfdist run -n`" in note for note in answer.notes)

    assert told("cpu", 2) == (False, True)
    assert told("gpu", 2) == (True, False)
    assert told("cpu", 1) == (False, False)
