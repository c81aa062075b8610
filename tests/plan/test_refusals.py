"""What `fit` refuses is no choice, and what `fit` trains is one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist.local.choices import DiLoCo, LocalSGD
from tfdist.plan import models, question, refusals
from tfdist.plan.candidate import Candidate
from tfdist.plan.workload import TracedVariable, Workload

IN_PARTS = 'sharding="parameters"'


class OwnLayout(keras.optimizers.SGD):
    def save_own_variables(self, store):
        store["all"] = np.zeros(3)


def several(other):
    rules = {".*kernel": other()}
    return keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(keras.optimizers.SGD(), rules)
    )


OPTIMIZERS = [
    (keras.optimizers.Adam, set()),
    (lambda: keras.optimizers.Adam(use_ema=True), set()),
    (keras.optimizers.Lamb, {IN_PARTS}),
    (lambda: keras.optimizers.Lamb(use_ema=True), {"sharding"}),
    (lambda: keras.optimizers.Adafactor(use_ema=True), {"sharding"}),
    (keras.optimizers.ScheduleFreeAdamW, {"local", IN_PARTS}),
    (OwnLayout, {"sharding"}),
    (lambda: several(keras.optimizers.Adam), set()),
    (lambda: several(keras.optimizers.Lamb), {"sharding"}),
]


def compiled(optimizer, strategy=None, **options):
    with (strategy or tf.distribute.get_strategy()).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile(optimizer, "mse", **options)
    return model


@pytest.mark.parametrize(("make", "refused"), OPTIMIZERS)
def test_what_optimizers_refuse_is_left_out(make, refused):
    optimizer = make()
    found = refusals.of_model(compiled(optimizer), optimizer)
    assert set(found) == refused
    assert all(reason.startswith("`fit` refuses ") for reason in found.values())
    assert not optimizer.built


@pytest.mark.parametrize("sharding", ["optimizer", "parameters"])
@pytest.mark.parametrize(("make", "refused"), OPTIMIZERS[3:8])
def test_fit_refuses_the_same(make, refused, sharding):
    strategy = tfdist.MirroredStrategy(DEVICES[:2], sharding=sharding)
    with strategy.scope():
        model = compiled(make(), strategy)
    x, y = np.ones((8, 4)), np.ones((8, 3))
    if {"sharding", f'sharding="{sharding}"'} & refused:
        with pytest.raises(ValueError, match="[Ll]eave .*`sharding`"):
            model.fit(x, y, verbose=0)
    else:
        model.fit(x, y, verbose=0)


COMPILED = {"local", "parameter_server", IN_PARTS}


def test_what_xla_cannot_compile_is_left_out(monkeypatch):
    model = compiled("sgd", jit_compile=True)
    in_scope = compiled("sgd", tfdist.MirroredStrategy(DEVICES[:1]), jit_compile=True)
    assert set(refusals.of_model(model, None)) == COMPILED
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: ["GPU:0"])
    # There Keras would have chosen XLA by itself, but not in a strategy's scope.
    assert refusals.of_model(model, None) == {}
    assert set(refusals.of_model(in_scope, None)) == COMPILED


FEW, MANY = (9, 4096), (900, 4096)  # four parts of 3 rows would be a third larger than 9 rows


def with_table(shape=FEW, **options):
    table = TracedVariable("table", shape, "float32", 4, 1.0, rows=5, is_divided=True)
    other = TracedVariable("other", (10, 10), "float32", 4, 0.5, is_divided=True)
    return Workload(8, (table, other), 1 / 3, 0, **options)


def refusal(workload, workers=4, **options):
    return refusals.of_choice(Candidate("horovod", **options), workers, workload)


def test_tables_with_few_rows_are_not_divided():
    reason = "`fit` refuses sparse gradients of ['table'], tables with few rows"
    for kind in ("optimizer", "parameters"):
        assert refusal(with_table(), sharding=kind) == (f'sharding="{kind}"', reason)
        assert refusal(with_table(), 3, sharding=kind) is None
        assert refusal(with_table(MANY), sharding=kind) is None
    assert refusal(with_table()) is None


def test_accumulated_gradients_of_tables_are_dense_but_for_weights_in_parts():
    accumulating = with_table(accumulation_steps=2)
    assert refusal(accumulating, sharding="optimizer") is None
    assert refusal(accumulating, sharding="parameters") is not None
    owned = with_table(updates_whole=True)  # where tables are not cut at all
    assert refusal(owned, sharding="optimizer") is None


def test_there_are_no_more_fragments_than_weights():
    three = DiLoCo(30, fragments=3, overlap=5)
    option, reason = refusal(with_table(), local=three)
    assert option.startswith("local=tfdist.DiLoCo(steps=30, fragments=3")
    assert reason == "`fit` refuses fragments=3 with 2 trainable variables"
    assert refusal(with_table(), local=DiLoCo(30, fragments=2)) is None
    assert refusal(with_table(), local=LocalSGD(8)) is None


def test_what_is_left_out_is_told(tmp_path, monkeypatch):
    path = str(tmp_path / "model.keras")
    compiled("sgd").save(path)
    asked = question.Question(path, batch_size=8, bandwidth=1e9, device_step=1.0, workers=[3, 4])
    found = question.answer(asked)
    fragments = [p.candidate.local.fragments for p in found.predictions if p.candidate.local]
    assert max(fragments) <= 2
    written = "Left out: local=tfdist.DiLoCo(steps=32, fragments=4, overlap=6), as `fit` refuses"
    assert any(note.startswith(written) for note in found.notes)
    assert not any("tables with few rows" in note for note in found.notes)
    read = models.Found(with_table(), models.Device(1.0, 8), models.COSTS["cpu"], [])
    monkeypatch.setattr(models, "read", lambda *_: read)
    found = question.answer(asked)
    expected = 'Left out: sharding="optimizer" with 4 workers, as `fit` refuses sparse gradients'
    assert any(note.startswith(expected) for note in found.notes)
    sharded = {p.workers for p in found.predictions if p.candidate.sharding}
    assert sharded == {3}
