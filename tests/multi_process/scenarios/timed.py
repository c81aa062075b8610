"""Ranks of different speeds, in rounds that last a time."""

import dataclasses

import keras
import tensorflow as tf

import tfdist
from tests.local_steps import by_hand
from tests.local_steps.timed import MEAN, TIMED, Written
from tests.multi_process.scenarios import local_steps
from tests.multi_process.scenarios.common import error_of

SECONDS = (0.0005, 0.002)  # for each sample: of other ranks, and of rank 1


def by_hands(here):
    """What `fit` comes to, and what the job wrote down, by case."""
    return {name: _trained(here, case) for name, case in TIMED.items()}


def _trained(here, case):
    strategy = local_steps.make(here, case)
    with strategy.scope():
        model = case.model()
        model.compile(case.optimizer(), by_hand.loss(), **case.compiled)
    _slow_down(here, model)
    written = Written()
    callbacks = [*strategy.callbacks(), written]
    x, y = case.data()
    history = by_hand.fit_on(
        case, model, callbacks=callbacks, validation_data=(x[:40], y[:40])
    ).history
    return {**_found(model, written), "history": history}


def _slow_down(here, model):
    model.get_layer("delay").seconds = SECONDS[here.rank == 1]


def _found(model, written):
    return {
        "weights": local_steps.copies(model.distribute_strategy, model.weights),
        "own": local_steps.own_state(model),
        "plans": written.plans,
        "plan_of_step": written.plan_of_step,
        "samples": written.samples,
    }


def resumed(here):
    """A training that is saved after an epoch, and goes on in another strategy."""
    strategy = local_steps.make(here, MEAN)
    with strategy.scope():
        model = MEAN.model()
        model.compile(MEAN.optimizer(), by_hand.loss())
    written = Written()
    _slow_down(here, model)
    by_hand.fit_on(MEAN, model, epochs=1, callbacks=[written])
    model.save(here.folder / "model.keras")
    here.meet()
    strategy = local_steps.make(here, MEAN)
    with strategy.scope():
        model = keras.models.load_model(
            here.folder / "model.keras", custom_objects={"Delay": type(model.get_layer("delay"))}
        )
    _slow_down(here, model)
    by_hand.fit_on(MEAN, model, initial_epoch=1, epochs=2, callbacks=[written])
    return _found(model, written)


def slow_at_first(here):
    """The updates per round of each rank, by epoch; an epoch is shorter than a round."""
    case = dataclasses.replace(
        MEAN, local=("LocalSGD", {"steps": "1s"}), rows=MEAN.batch * 10, epochs=8
    )
    strategy = local_steps.make(here, case)
    with strategy.scope():
        model = case.model()
        model.compile(case.optimizer(), by_hand.loss())
    layer = model.get_layer("delay")
    layer.seconds = (SECONDS[0], 10 * SECONDS[1])[here.rank == 1]

    def become_fast(epoch, logs=None):
        if epoch == 3:
            layer.seconds = SECONDS[0]

    hurries = keras.callbacks.LambdaCallback(on_epoch_begin=become_fast)
    history = by_hand.fit_on(case, model, callbacks=[hurries]).history
    return [history[f"updates_per_round_{rank}"] for rank in range(here.size)]


def refusals(here):
    """The errors of what rounds by time cannot do."""
    strategy = local_steps.make(here, MEAN)
    with strategy.scope():
        model = MEAN.model()
        model.compile(MEAN.optimizer(), by_hand.loss())
    before = local_steps.bits(strategy, model.weights)
    data = tf.data.Dataset.from_tensor_slices(MEAN.data()).batch(MEAN.batch)
    distributed = strategy.experimental_distribute_dataset(data)
    unknown = data.filter(lambda *batch: True)
    found = {
        "unknown": error_of(model.fit, unknown, verbose=0),
        "distributed": error_of(model.fit, distributed, verbose=0),
        "divided": error_of(
            model.fit,
            strategy.distribute_datasets_from_function(lambda _: data),
            verbose=0,
        ),
        "loop": error_of(
            lambda: strategy.run(tfdist.local_step(lambda batch: None), args=(next(iter(data)),))
        ),
    }
    assert local_steps.bits(strategy, model.weights) == before
    # With a length it is no data of unknown length any more, also to evaluate.
    model.evaluate(unknown, verbose=0)
    model.fit(data, validation_data=unknown, verbose=0)
    length = tf.data.experimental.assert_cardinality(len(data))
    model.fit(unknown.apply(length), verbose=0)
    return found
