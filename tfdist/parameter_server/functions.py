"""Keras' train, test and predict functions under a parameter server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdist.parameter_server.data import CHIEF
from tfdist.parameter_server.functional import FunctionalStep
from tfdist.parameter_server.step import Step
from tfdist.parameter_server.steps import Steps
from tfdist.parameter_server.updates import Updates
from tfdist.parameter_server.worker import Pushed, WorkerFunctions
from tfdist.step import logs as step_logs

# Batches per worker that testing and predicting begin before they are asked for their results.
_AHEAD = 2


class Run:
    """A run of a model's steps on the workers: what training, testing and predicting share.

    Args:
        strategy: the strategy.
        model: the model.
        name: the name of the step.
        micro_batches: the number of batches that an update is the mean of.
        parts: the number of parts of a global batch; 0 where steps get whole batches.
    """

    def __init__(
        self, strategy: Any, model: keras.Model, name: str, micro_batches: int = 1, parts: int = 0
    ):
        self.strategy = strategy
        self.model = model
        self.name = name
        self._micro_batches = micro_batches
        self._parts = parts
        self._is_prepared = False
        self._iterator: Any = None
        self.steps: Steps | None = None
        self.values: list[tf.Tensor] = []
        self._seeds: list[np.ndarray] = []
        self._metrics: list[str] = []
        self._done: dict[int, Step] = {}
        self._position = 0

    def begin(self, iterator: Any, source: Any, **options: Any) -> Steps:
        """Starts the workers on the batches of `source`.

        Args:
            iterator: what Keras iterates over.
            source: where batches come from.
            **options: for `Steps`.
        """
        self.strategy.activate(self)
        self._prepare()
        self.values = self.updates.values()
        self._metrics = self._metrics or list(self.model.get_metrics_result())
        self._seeds = [seed.numpy() for seed in self.step.seeds]
        self._worker.prepare(self.values, self._seeds, iterator.element_spec)
        self.strategy.check_applied(self.step.optimizers)
        self._prepare_push()
        self._iterator = iterator
        steps = self._make_steps(
            len(self.strategy.addresses["worker"]),
            source,
            self._compute,
            lost=self.strategy.lost,
            on_change=self._note,
            **options,
        )
        self.steps = steps
        steps.start(self.strategy.coordinator, (self.strategy.version, self.values))
        return steps

    def _make_steps(self, *arguments: Any, **options: Any) -> Steps:
        return Steps(*arguments, **options)

    def _prepare(self) -> None:
        """Makes the functions, the first time: until then Keras may not have built the model."""
        if not self._is_prepared:
            self.strategy.prepare(self.model)
            self.step = FunctionalStep(self.model, self.name)
            self.updates = Updates(self.strategy, self.step, self.strategy.policies)
            compresses = self.strategy.options.compression is not None
            self._worker = WorkerFunctions(self.step, self._micro_batches, self._parts, compresses)
            self._is_prepared = True

    def _prepare_push(self) -> None:
        """Called at the begin of a run, when the step is traced."""

    def _note(self, worker: int, error: Exception | None) -> None:
        """Called when a worker is lost, or with None when it is back."""
        self.strategy.note(worker, error)

    def close(self) -> None:
        """Ends what the workers do."""
        if self.steps is not None:
            self.steps.close()
            self.steps = None

    def next(self, may_use: Callable = lambda others: True) -> Step | None:
        """The next step that is done, None for no more; see `Steps.next`."""
        assert self.steps is not None
        return self.steps.next(may_use, self.strategy.timeout)

    def _compute(self, step: Step, read: Callable[[Step], None]) -> None:
        """Lets a worker compute; in its thread."""
        read(step)
        result: Pushed | None = None
        for index, batch in enumerate(step.batches):
            seeds = self._seeds_of(step.number + index if batch.part is None else batch.number)
            last = index == len(step.batches) - 1
            result = self._worker(step.values, seeds, batch, result, last)
        if result is not None:
            step.result = self._fetched(self._sent(step, result))

    def _sent(self, step: Step, result: Pushed) -> Pushed:
        """What has arrived of a worker's result; in its thread."""
        del step
        return result

    def _seeds_of(self, number: int) -> list[np.ndarray]:
        """The seeds that step `number` of this run begins with, as if steps came one by one."""
        return [
            (seed + np.array([0, number * draws])).astype(seed.dtype)
            for seed, draws in zip(self._seeds, self.step.draws)
        ]

    def _fetched(self, result: Pushed) -> Pushed:
        """`result` with its logs in the chief; None where they are the metrics' results."""
        if isinstance(result.logs, dict) and set(result.logs) == set(self._metrics):
            return result._replace(logs=None)
        with tf.device(CHIEF):
            logs = tf.nest.map_structure(tf.identity, result.logs, expand_composites=True)
        return result._replace(logs=logs)

    def completed(self, logs: Any, results: dict[str, tf.Tensor]) -> Any:
        """What Keras gets of a step: its logs, with the results of metrics over all steps.

        Args:
            logs: what the step returned; None for the results of the metrics.
            results: those.
        """
        if logs is None:
            return dict(results)
        if not isinstance(logs, dict):
            return logs
        return step_logs.with_results(logs, results, self.model, self.name)

    def in_order(self, iterator: Any) -> Pushed | None:
        """The result of the next batch of `iterator`; None when there are no more.

        A worker goes on when its result has arrived, also if that of an earlier batch has not; but
        no more than some are begun before they are asked for.
        """
        if iterator is not self._iterator:
            self._done, self._position = {}, 0
        if iterator is not self._iterator or self.steps is None:
            most = _AHEAD * self.strategy.num_workers
            self.begin(
                iterator,
                iterator.source(),
                may_start=lambda ahead, under_way: under_way + len(self._done) < most,
                budget=None,
                per_step=1,
                first_step=1,
                on_wait=lambda worker: None,
                max_pending=self.strategy.num_workers,
            )
        while self._position not in self._done:
            step = self.next()
            if step is None:
                self.close()
                return None
            assert self.steps is not None
            self._done[step.batches[0].position] = step
            self.steps.release(step, self.steps.current)
        assert self.steps is not None
        result = self._done.pop(self._position).result
        self._position += 1
        self.steps.ask_again()
        return result


class _OfKeras:
    """Keras' own function of a model, for the single batch that the chief computes by itself.

    Args:
        model: the model.
        kind: "test" or "predict".
    """

    def __init__(self, model: keras.Model, kind: str):
        self._model = model
        self._kind = kind
        self._function: Callable | None = None

    def __call__(self, data: Any) -> Any:
        """Calls it; it is made at the first call."""
        if self._function is None:
            attribute = f"{self._kind}_function"
            ours = getattr(self._model, attribute)
            getattr(self._model, f"make_{attribute}")(force=True)
            self._function = getattr(self._model, attribute)
            setattr(self._model, attribute, ours)
        return self._function(data)


class TestFunction(Run):
    """Keras' test function: each batch counts once, whichever worker takes it."""

    def __init__(self, strategy: Any, model: keras.Model):
        super().__init__(strategy, model, "test_step")
        self._of_keras = _OfKeras(model, "test")

    def __call__(self, iterator: Any) -> dict[str, tf.Tensor]:
        """Counts the next batches, in their order: sums are those of one device."""
        if not hasattr(iterator, "source"):
            return self._of_keras(iterator)  # test_on_batch
        logs = None
        for _ in range(self.model.steps_per_execution):
            result = self.in_order(iterator)
            if result is None:
                break
            logs = self.completed(result.logs, self.updates.count(result.changes))
        if logs is None:
            raise StopIteration
        return logs


class _Predicted(NamedTuple):
    """Predictions for a batch, in the place of its data."""

    predictions: Any


class PredictFunction(Run):
    """Keras' predict function, of predictions that the iterator gives.

    Keras asks the iterator for data and hands them over one by one; by then the workers have
    predicted for them already, and for the next ones.
    """

    def __init__(self, strategy: Any, model: keras.Model):
        super().__init__(strategy, model, "predict_step")
        self._metrics = ["only logs are left out"]
        self._of_keras = _OfKeras(model, "predict")

    def __call__(self, data: list) -> Any:
        """Joins what `predictions_of` gave."""
        if not isinstance(data[0], _Predicted):
            return self._of_keras(data)  # predict_on_batch
        found = [predicted.predictions for predicted in data]
        return tf.nest.map_structure(lambda *parts: _joined(parts), *found)

    def predictions_of(self, iterator: Any) -> _Predicted:
        """Those for the next batch; raises StopIteration at the end."""
        result = self.in_order(iterator)
        if result is None:
            raise StopIteration
        return _Predicted(result.logs)


def _joined(parts: tuple) -> Any:
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
