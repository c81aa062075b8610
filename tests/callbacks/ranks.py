"""What happens in two processes; run as `python -m tests.callbacks.ranks STRATEGY DIRECTORY`.

One start for all tests of a strategy. Each function returns what this rank saw, as JSON.
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np

import tfdist
from tfdist.callbacks import BroadcastGlobalVariables, LearningRateWarmup, MetricAverage

X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


def model_of(strategy, rate, momentum=0.9, accumulation_steps=1):
    """A linear model with fixed weights."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        inner = keras.optimizers.SGD(rate, momentum=momentum)
        optimizer = tfdist.DistributedOptimizer(inner, accumulation_steps=accumulation_steps)
        model.compile(optimizer, "mse")
        model.optimizer.build(model.trainable_variables)
    model.set_weights([np.array([[0.1], [0.2], [0.3]]), np.array([0.4])])
    return model


def weights_of(model):
    return [
        w.tolist()
        for w in [*model.get_weights(), *(v.value.numpy() for v in model.optimizer.variables)]
    ]


def fit(model, *callbacks, **options):
    options = {"batch_size": 16, "shuffle": False, "verbose": 0, **options}
    return model.fit(X, Y, callbacks=list(callbacks), **options)


class Exchanges:
    """Notes what a process sends: for each exchange, the number of integers in a row."""

    def __init__(self, processes):
        self._processes = processes
        self.sent = []

    def __enter__(self):
        send = self._processes.sum

        def noting(value):
            self.sent.append(int(value.shape[-1]))
            return send(value)

        self._processes.sum = noting
        return self.sent

    def __exit__(self, *error):
        del self._processes.sum


def broadcast(strategy):
    """Ranks begin with other weights, momentum and iterations each; then with equal ones."""
    rank, found = strategy.processes.rank, {}
    for root in (0, 1):
        model = model_of(strategy, rate=0.0, momentum=1.0)
        model.set_weights([w + rank for w in model.get_weights()])
        for variable in model.optimizer.variables:
            if "momentum" in variable.name:
                variable.assign(variable + 0.0625 * (rank + 1))
        model.optimizer.iterations.assign(10 * (rank + 1))
        found[f"before {root}"] = weights_of(model)
        # The weights grow by the momentum in every step, if it is that of the root.
        fit(model, BroadcastGlobalVariables(root), batch_size=64)
        found[f"after {root}"] = weights_of(model)
    return found


def broadcast_while_accumulating(strategy):
    """Weights after two runs, of which the first leaves half an update, without and with."""
    found = []
    for callbacks in ([], [BroadcastGlobalVariables()]):
        model = model_of(strategy, rate=0.1, accumulation_steps=2)
        fit(model, batch_size=22)
        fit(model, *callbacks, batch_size=22)
        found.append(weights_of(model))
    return found


def broadcast_of_equal_variables(strategy):
    """What the callback sends."""
    model = model_of(strategy, rate=0.0)
    callback = BroadcastGlobalVariables()
    callback.set_model(model)
    with Exchanges(strategy.processes) as sent:
        callback.on_train_begin()
    return sent


def refused(strategy):
    """Rank-local weights without the callback, and a root that does not exist."""
    messages = []
    for callbacks in ([], [BroadcastGlobalVariables(2)]):
        model = model_of(strategy, rate=0.0)
        if not callbacks:
            model.set_weights([w + strategy.processes.rank for w in model.get_weights()])
        try:
            fit(model, *callbacks)
        except (RuntimeError, ValueError) as error:
            messages.append(f"{type(error).__name__}: {error}")
    return messages


def metric_average(strategy):
    """The logs before and after the average."""
    rank, before, after = strategy.processes.rank, {}, {}

    class Write(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            before.update(logs)
            logs["mine"] = rank + 1.0
            logs["also_mine"] = np.float32(rank)
            logs["both"] = 0.1
            logs[f"only_{rank}"] = 7 + rank
            logs["vector"] = np.array([rank, 1.0, np.nan])
            logs["text"] = f"rank {rank}"
            logs["text_or_number"] = "none" if rank else 5.0

    class Read(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            after.update(logs)

    model = model_of(strategy, rate=0.01)
    model.compile(optimizer="sgd", loss="mse", metrics=["mae"])
    history = fit(model, Write(), MetricAverage(), Read(), validation_data=(X, Y)).history
    after["vector"] = np.nan_to_num(after["vector"], nan=-1.0).tolist()
    before = {name: float(value).hex() for name, value in before.items()}
    same = {name: float(after[name]).hex() for name in before}
    return {"before": before, "same": same, "after": after, "history": history["mine"]}


def warmup(strategy):
    """The rates of all batches, the weights, and how often something is sent in 64 batches."""
    rates = []

    class Note(keras.callbacks.Callback):
        decides_in_batches = False

        def on_train_batch_begin(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate.value.numpy()))

    model = model_of(strategy, rate=0.08)
    fit(model, LearningRateWarmup(0.08, warmup_epochs=2), Note(), epochs=3)
    weights = weights_of(model)
    with Exchanges(strategy.processes) as sent:
        fit(model, LearningRateWarmup(0.08), batch_size=1)
    return {"rates": rates, "sent": len(sent), "weights": weights}


def main(strategy, directory):
    strategy = tfdist.Strategy(strategy)
    functions = (
        broadcast,
        broadcast_while_accumulating,
        broadcast_of_equal_variables,
        refused,
        metric_average,
        warmup,
    )
    found = {function.__name__: function(strategy) for function in functions}
    Path(directory, f"{strategy.processes.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
