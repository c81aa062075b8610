"""What a plan does not have of a script is told, or counts after all."""

import keras
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist.plan import assumptions, device, models
from tfdist.plan.alpha_beta import Link
from tfdist.plan.machine import Costs, Machines
from tfdist.plan.prediction import Candidate, Planner
from tfdist.plan.workload import Device, Message, TracedVariable, Workload


def compiled(*hidden, optimizer="sgd", strategy=None, kind=keras.Sequential, **options):
    with (strategy or tf.distribute.get_strategy()).scope():
        model = kind([keras.Input((4,)), *hidden, keras.layers.Dense(3)])
        model.compile(optimizer, "mse", **options)
    return model


def notes(model):
    return "\n".join(assumptions.of(model, model.optimizer))


def test_nothing_is_told_of_a_usual_model():
    assert notes(compiled()) == ""
    assert notes(compiled(strategy=tfdist.MirroredStrategy(DEVICES[:2], seed=3))) == ""


class OwnLoss(keras.Sequential):
    def compute_loss(self, *args, **kwargs):
        return 2 * super().compute_loss(*args, **kwargs)


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


@pytest.mark.parametrize(("kind", "name"), [(OwnLoss, "compute_loss"), (OwnStep, "train_step")])
def test_methods_that_are_not_traced_are_told(kind, name):
    assert f"has a `{name}` of its own, which is not traced" in notes(compiled(kind=kind))


def test_several_optimizers_are_told():
    model = compiled()
    model.own = model.optimizer
    assert notes(model) == ""
    model.other = keras.optimizers.Adam()
    assert "several optimizers (optimizer, other, own): the figures are" in notes(model)


def test_sums_of_synchronized_layers_are_told():
    model = compiled(keras.layers.BatchNormalization(synchronized=True))
    assert "the sums of its statistics in the passes are not in the times" in notes(model)
    assert notes(compiled(keras.layers.BatchNormalization())) == ""


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sharding": "optimizer", "bucket_bytes": 1000}, "`bucket_bytes`, `sharding`"),
        ({"compression": "topk", "exchange": "ring"}, "`compression`, `exchange`"),
        ({"balance": True}, "`balance`"),
        ({"local": tfdist.LocalSGD(4)}, "`local`"),
    ],
)
def test_options_of_the_script_are_told(options, named):
    model = compiled(strategy=tfdist.MirroredStrategy(DEVICES[:2], **options))
    assert f"The script's strategy has {named}: the figures and the recommended" in notes(model)


def test_options_of_an_optimizer_are_told():
    strategy = tfdist.MirroredStrategy(DEVICES[:2])
    with strategy.scope():
        wrapped = tfdist.DistributedOptimizer(keras.optimizers.SGD(), compression="fp16")
    model = compiled(optimizer=wrapped, strategy=strategy)
    assert "has `compression`: the figures" in notes(model)


def test_what_keras_accumulates_is_accumulated_by_the_strategy():
    model = compiled(optimizer=keras.optimizers.SGD(gradient_accumulation_steps=3))
    assert assumptions.accumulation_steps(model) == 3
    assert "pass `accumulation_steps=3` to it, and leave it out of the optimizer" in notes(model)
    assert assumptions.accumulation_steps(compiled()) == 1


def test_xla_that_keras_may_have_chosen_is_told(monkeypatch):
    model = compiled(jit_compile=True)
    assert "jit_compile=True" not in notes(model)  # it is left out of the choices
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: ["GPU:0"])
    assert "If the script asks for jit_compile=True, `local`, `parameter_server`" in notes(model)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, None),
        ({"jit_compile": True}, "with jit_compile=True all"),
        ({"run_eagerly": True}, "with run_eagerly=True all"),
        (
            {"optimizer": keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())},
            "with a loss scale",
        ),
    ],
)
def test_what_has_all_gradients_at_once(options, reason):
    found = assumptions.at_once(compiled(**options))
    assert found is None if reason is None else found.startswith(reason)


def test_gradients_that_are_there_at_once_travel_after_the_backward_pass():
    variables = [TracedVariable(f"w{n}", (100,), "float32", 4, n / 4) for n in (1, 2, 3, 4)]
    workload = Workload(8, tuple(variables), 0.25, 0)

    def step(workload):
        messages = [Message(400, 400, variable.ready) for variable in workload.variables]
        machines = Machines(Link(0.0, 1e-3), costs=Costs())
        made = Planner(workload, lambda *_: messages, Device(4.0, 8), machines)
        return made.predict(Candidate("horovod"), 2).step

    assert step(workload.at_once()) == pytest.approx(4.0 + 4 * 0.4)
    assert step(workload) < 4.0 + 2 * 0.4


def test_a_saved_model_that_is_compiled_has_no_overlap(tmp_path):
    path = tmp_path / "model.keras"
    compiled(keras.layers.Dense(8), jit_compile=True).save(path)
    found = models.read(str(path), (), 8, step=1.0)
    assert {variable.ready for variable in found.workload.variables} == {1.0}
    assert any(note.startswith("No exchange is beside the backward") for note in found.notes)
    compiled(keras.layers.Dense(8)).save(path)
    found = models.read(str(path), (), 8, step=1.0)
    assert len({variable.ready for variable in found.workload.variables}) > 1


class Counted(keras.layers.Layer):
    calls = 0

    def call(self, inputs):
        Counted.calls += 1
        return inputs


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_eager_steps_are_measured_as_such(run_eagerly):
    model = compiled(Counted(), run_eagerly=run_eagerly)
    before = Counted.calls
    device.measured(model, tf.ones((8, 4)), 8, model.optimizer)
    assert (Counted.calls - before >= 10) == run_eagerly
