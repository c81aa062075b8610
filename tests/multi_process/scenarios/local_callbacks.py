"""Callbacks that set, read or save weights in the middle of a round of local steps."""

import dataclasses
import json

import keras

from tests.local_steps import by_hand, own_steps
from tests.local_steps.by_hand import CASES
from tests.multi_process.scenarios.common import error_of
from tests.multi_process.scenarios.local_steps import copies, make

# Five batches in an epoch, and no round that ends by itself within it.
CASE = dataclasses.replace(CASES["momentum"], local=("LocalSGD", {"steps": 100}), epochs=2)


class Acts(keras.callbacks.Callback):
    """Does something to the model before or after one batch of each epoch."""

    decides_in_batches = False

    def __init__(self, act, at=2, phase="end"):
        super().__init__()
        self._act, self._at, self._phase = act, at, phase

    def on_train_batch_begin(self, batch, logs=None):
        if self._phase == "begin" and batch == self._at:
            self._act(self.model)

    def on_train_batch_end(self, batch, logs=None):
        if self._phase == "end" and batch == self._at:
            self._act(self.model)


def halve(model):
    """Sets a weight to half of what the callback sees."""
    kernel = model.layers[0].kernel
    kernel.assign(0.5 * kernel.value)


def end_and_halve(model):
    model.optimizer.finish_round()
    halve(model)


def _made(here):
    strategy = make(here, CASE)
    with strategy.scope():
        model = CASE.model()
        model.compile(CASE.optimizer(), by_hand.loss(), metrics=["accuracy"])
        model.optimizer.build(model.trainable_variables)
    return strategy, model


def refused(here):
    """The errors of callbacks that set weights within a round."""

    def of_copies(model):
        *_, last = model.distribute_strategy.experimental_local_results(
            model.layers[0].kernel.value
        )
        last.assign(0.5 * last)

    def of_one_rank(model):
        model.optimizer.finish_round()
        kernel = model.layers[0].kernel
        kernel.assign((2.0 + here.rank) * kernel.value)

    def then_saves(model):
        halve(model)
        model.save_weights(here.folder / "set.weights.h5")

    found = {}
    for name, callback in (
        ("after a batch", Acts(halve)),
        ("before a batch", Acts(halve, phase="begin")),
        ("before the first", Acts(halve, 0, "begin")),
        ("one copy", Acts(of_copies)),
        ("saved", Acts(then_saves)),
        ("other values", Acts(of_one_rank)),
    ):
        _, model = _made(here)
        found[name] = error_of(by_hand.fit_on, CASE, model, callbacks=[callback])
    return found


def one_saves(here):
    """The errors where rank 0 alone saves in the middle of an epoch."""

    def save(model):
        if here.rank == 0:
            model.save_weights(here.folder / "alone.weights.h5")

    strategy, model = _made(here)
    error = error_of(by_hand.fit_on, CASE, model, callbacks=[Acts(save)])
    if "Another rank does something else" in error:  # rank 0 asks what this one does instead
        strategy.processes.all_gather_texts(json.dumps(["begins a step", "", {}]))
    return {"error": error}


def allowed(here):
    """What weights come to, with callbacks that may be there."""
    found = {}

    def note(name, *callbacks):
        strategy, model = _made(here)
        by_hand.fit_on(CASE, model, callbacks=[*callbacks])
        found[name] = copies(strategy, model.weights)
        return model

    note("round ended first", Acts(end_and_halve))
    note("learning rate", Acts(lambda model: setattr(model.optimizer, "learning_rate", 0.03)))
    file = here.folder / "mid.weights.h5"
    note("saves", keras.callbacks.ModelCheckpoint(file, save_freq=3, save_weights_only=True))
    strategy, model = _made(here)
    model.load_weights(file)
    found["file"] = copies(strategy, model.weights)

    strategy, model = _made(here)
    backup = keras.callbacks.BackupAndRestore(here.folder / "backup", save_freq=2)
    stops = own_steps.Stops(2)
    stops.changes_variables = False
    try:
        by_hand.fit_on(CASE, model, callbacks=[backup, stops])
    except KeyboardInterrupt:
        here.meet()
    backup = keras.callbacks.BackupAndRestore(here.folder / "backup")
    note("resumed", backup)
    return found
