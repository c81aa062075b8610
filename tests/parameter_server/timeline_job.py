"""Trains with a Timeline, and writes what it has noted and what was trained.

python -m tests.parameter_server.timeline_job FOLDER WORKERS SERVERS WAY...

Where TF_CONFIG is set, each process of a job runs this. Else the cluster is in this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.log_messages import log_messages
from tests.parameter_server.counting import BATCHES, SAMPLES, Counting, Recorder
from tfdist import compression
from tfdist.callbacks import Timeline
from tfdist.staleness import SSP, Synchronous

STEPS = (10, 40)
SHORT, PAUSE = 0.005, 0.03  # seconds that a step of each worker takes
_RANDOM = np.random.default_rng(1)
X = _RANDOM.normal(size=(64, 6)).astype("float32")
FP16, TOP = compression.FP16(min_bytes=0), compression.TopK(0.3, min_bytes=0)
TOGETHER = {"staleness": Synchronous()}
BY_CHIEF = {"staleness": SSP(1000)}  # nobody ever waits, but the chief asks

COUNTED: dict[str, dict] = {
    "own": {},
    "chief": BY_CHIEF,
    "dynamic": {"input": "dynamic"},
    "recorded": {"record": "record"},
}
EQUAL: dict[str, dict] = {
    "synchronous": TOGETHER,
    "compressed": {**TOGETHER, "compression": FP16},
    "accumulated": {**TOGETHER, "accumulation_steps": 2},
    "one worker": {},
    "one worker, pulled": {"pull_compression": FP16},
    "one worker, by chief": {**BY_CHIEF, "accumulation_steps": 2, "compression": FP16},
    "one worker, pulled by chief": {**BY_CHIEF, "pull_compression": TOP},
}


def trace(folder: pathlib.Path) -> dict:
    return json.loads((folder / "trace.json").read_text())


def counted(strategy, folder) -> dict:
    """What was noted of a model that knows who has made which update, of which one worker waits."""
    with strategy.scope():
        model = Counting([SHORT, PAUSE])
        model.compile(Recorder(1.0))
    model.built = True
    data = tf.data.Dataset.range(SAMPLES).batch(SAMPLES // BATCHES)
    timeline = Timeline(folder / "trace.json", STEPS)
    model.fit(data, epochs=2, verbose=0, callbacks=[timeline])
    why_chief = model.train_function.why_chief
    return {"trace": trace(folder), **model.facts(), "why chief": why_chief}


def dense(strategy) -> keras.Model:
    keras.utils.set_random_seed(5)
    with strategy.scope():
        layers = [keras.layers.Dense(32, "tanh"), keras.layers.Dropout(0.2, seed=3)]
        model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return model


def fit(model, *callbacks, **options) -> None:
    options = {"batch_size": 8, "epochs": 6, "shuffle": False, "verbose": 0, **options}
    model.fit(X, X[:, :1], callbacks=[*callbacks], **options)


def times_in_graphs(model) -> list[int]:
    """How often each function that workers were given asks for the time."""
    function = model.train_function
    traced = [*function._on_worker._function._traced.values()]
    if function._kept is not None:
        traced += function._kept._function._function._traced.values()
    found = []
    for concrete in traced:
        graph = concrete.graph.as_graph_def()
        nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
        found.append(sum(node.op == "Timestamp" for node in nodes))
    return sorted(found)


def equal(strategy, folder) -> dict:
    """What was noted, and how far the weights are from those without the callback."""
    timed, usual = dense(strategy), dense(strategy)
    fit(timed, Timeline(folder / "trace.json", STEPS))
    asked = strategy.server_spans is not None
    fit(usual)
    pairs = zip(timed.get_weights(), usual.get_weights(), strict=True)
    return {
        "trace": trace(folder),
        "difference": float(max(np.abs(a - b).max() for a, b in pairs)),
        "times": [times_in_graphs(timed), times_in_graphs(usual)],
        "still asked": asked,
        "why chief": timed.train_function.why_chief,
    }


class Watching(keras.callbacks.Callback):
    """Notes whether somebody asks for times, before each batch; fails in the end."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def on_train_batch_begin(self, batch, logs=None):
        self.asked.append(self.model.distribute_strategy.server_spans is not None)

    def on_epoch_end(self, epoch, logs=None):
        if self.asked[-1]:
            raise RuntimeError("a failure")


def _said(function: Callable, *arguments, **options) -> str:
    with contextlib.suppress(RuntimeError):
        try:
            function(*arguments, **options)
        except ValueError as error:
            return str(error)
    return ""


def limits(strategy, folder) -> dict:
    """What is refused, what a short run says, and what an exception leaves."""
    model, path, watching = dense(strategy), folder / "trace.json", Watching()
    found: dict = {"two": _said(fit, model, Timeline(path), Timeline(path))}
    found["nowhere"] = _said(fit, model, Timeline(folder / "none" / "trace.json"))
    several = dense(strategy)
    with strategy.scope():
        several.compile("sgd", "mse", steps_per_execution=2)
    found["several"] = _said(fit, several, Timeline(path))
    found["no step was made"] = [int(model.optimizer.iterations), int(several.optimizer.iterations)]
    _said(fit, model, Timeline(path, (0, 99)), watching)
    found["after a failure"] = strategy.server_spans is not None
    watching.asked.clear()
    with log_messages() as messages:
        fit(model, Timeline(path, (2, 99)), epochs=1)
        found["short"] = [trace(folder), [text for text in messages if "timeline" in text]]
    fit(model, Timeline(path, (2, 5)), watching, epochs=1)
    return {**found, "asked": watching.asked}


def main() -> None:
    folder, workers, servers = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    cluster = contextlib.nullcontext()
    if "TF_CONFIG" not in os.environ:
        cluster = tfdist.cluster.local_cluster(workers, servers)
    found = {}
    with cluster as resolver:
        for way in sys.argv[4:]:
            own = folder / way
            own.mkdir(exist_ok=True)
            options = {**COUNTED, **EQUAL, "limits": TOGETHER}[way]
            if "record" in options:
                options = {"record": own / options["record"]}
            strategy = tfdist.ParameterServerStrategy(resolver, **options)
            do = limits if way == "limits" else counted if way in COUNTED else equal
            found[way] = do(strategy, own)
    (folder / "found.json").write_text(json.dumps(found))
    if "TF_CONFIG" not in os.environ:
        os._exit(0)  # TensorFlow's servers cannot be stopped


if __name__ == "__main__":
    main()
