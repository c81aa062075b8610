"""An evaluator beside training: it evaluates the checkpoints that the chief writes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.arguments import check_instance, check_path
from tfdist.cluster import Cluster
from tfdist.cluster.chief import wait_for_end
from tfdist.cluster.peers import connect_timeout
from tfdist.processes.checkpoint_folder import Checkpoint, checkpoints
from tfdist.structures import Structure
from tfdist.validation import check_integer

# Seconds between looks into the folder, and until the log says that nothing is there.
_PAUSE = 0.5
_PATIENCE = 30.0

# Where a `tf.train.Checkpoint(model=..., optimizer=...)` has the number of updates. The first place
# that is there counts: it belongs to the optimizer that is inside of the others.
_ITERATIONS = [
    f"{prefix}{place}_iterations/.ATTRIBUTES/VARIABLE_VALUE"
    for prefix in ("optimizer/", "model/optimizer/")
    for place in ("inner_optimizer/", "_inner/optimizer/", "")
]


class SidecarEvaluator:
    """Evaluates each new checkpoint of a training that runs in other processes.

    It takes the place of `tf.keras.utils.SidecarEvaluator`, which Keras 3 does not have, and takes
    its arguments. Start it in a process of its own, which takes no part in training: in the task
    `evaluator` of TF_CONFIG, or in any other process that sees the folder.

    Checkpoints are files `*.weights.h5` and `*.keras` (`keras.callbacks.ModelCheckpoint`), or those
    of `tf.train.Checkpoint(model=model, optimizer=optimizer)` and its manager. Under a tfdist
    strategy these files become visible when they are complete. If evaluation takes longer than the
    time between two checkpoints, some are passed over: the newest one counts.

    The number of updates of the checkpoint becomes `model.optimizer.iterations`. So
    `keras.callbacks.TensorBoard` shows the results over the updates, such as
    `evaluation_loss_vs_iterations`, in the folder `validation` of its `log_dir`.

    Args:
        model: the model of the training: built, and compiled with the optimizer, loss and metrics.
        data: what `model.evaluate` takes as its first argument, such as a `tf.data.Dataset`.
        checkpoint_dir: the folder.
        steps: the number of batches of an evaluation; None for all.
        max_evaluations: `start` returns after the checkpoint `...-N` with N of at least this
            number, such as `ckpt-20.weights.h5`. For names without such a number, N is the number
            of checkpoints that have been seen. None for no limit.
        callbacks: callbacks for `model.evaluate`.

    Raises:
        TypeError: when an argument is of another type.
        ValueError: when the model is not built or not compiled, or a number is out of range.

    Example:

    >>> import keras, numpy as np, tempfile, tensorflow as tf, tfdist
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> folder = tempfile.mkdtemp()
    >>> saving = keras.callbacks.ModelCheckpoint(
    ...     f"{folder}/ckpt-{{epoch}}.weights.h5", save_weights_only=True
    ... )
    >>> history = model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0, callbacks=[saving])
    >>> data = tf.data.Dataset.from_tensors((np.ones((8, 4)), np.ones((8, 1))))
    >>> evaluator = tfdist.SidecarEvaluator(model, data, folder, max_evaluations=1)
    >>> evaluator.start()  # doctest: +ELLIPSIS
    1/1 - ...
    """

    def __init__(
        self,
        model: keras.Model,
        data: Structure,
        checkpoint_dir: str | os.PathLike,
        steps: int | None = None,
        max_evaluations: int | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
    ):
        check_instance("model", model, keras.Model, "keras.Model")
        check_path("checkpoint_dir", checkpoint_dir)
        if callbacks is not None:
            check_instance("callbacks", callbacks, (list, tuple), "list of callbacks")
            for callback in callbacks:
                check_instance("callbacks", callback, keras.callbacks.Callback, "Keras callback")
        for name, number in (("steps", steps), ("max_evaluations", max_evaluations)):
            if number is not None:
                check_integer(name, number, 1)
        if not model.built or not model.compiled or model.optimizer is None:
            raise ValueError(
                "The model must be built, such as by a keras.Input, and compiled with the "
                "optimizer, the loss and the metrics of the training. Received: "
                f"model={model.name}, built={model.built}, compiled={model.compiled}"
            )
        self.model = model
        self.data = data
        self.checkpoint_dir = os.fspath(checkpoint_dir)
        self.steps = steps
        self.max_evaluations = max_evaluations
        self.callbacks = list(callbacks or ())

    def start(self) -> None:
        """Evaluates checkpoints, one after the other.

        Returns after `max_evaluations`. In the task `evaluator` of TF_CONFIG it also returns when
        the chief has ended and its last checkpoint is evaluated. Else it never returns.

        Raises:
            FileNotFoundError: when the chief has ended without a checkpoint.
            TimeoutError: when the chief was not seen within the time that the environment variable
                TFDIST_CONNECT_TIMEOUT says, or 60 seconds.
            ValueError: when a checkpoint is not of this model, or lacks the optimizer.
        """
        end = _ChiefsEnd()
        # One list for all evaluations: TensorBoard begins a new file for each list.
        callbacks = keras.callbacks.CallbackList(
            self.callbacks, add_progbar=True, model=self.model, verbose=2, epochs=1, steps=None
        )
        seen: set[Checkpoint] = set()
        started = time.monotonic()
        while True:
            ended = end.has_come()  # before the look, so that nothing is missed
            found = checkpoints(self.checkpoint_dir)
            if found and found[-1] not in seen and self._load(found[-1]):
                seen.update(found)
                self._evaluate(found[-1], callbacks)
                number = found[-1].number or len(seen)
                if self.max_evaluations is not None and number >= self.max_evaluations:
                    return
            elif ended and seen:
                return
            elif ended and not found:
                raise FileNotFoundError(
                    "The chief has ended, and there is no checkpoint to evaluate. Save some with "
                    "keras.callbacks.ModelCheckpoint or tf.train.CheckpointManager. Received: "
                    f"checkpoint_dir={self.checkpoint_dir}"
                )
            else:
                if not seen and time.monotonic() > started + _PATIENCE:
                    tf.get_logger().info("tfdist: no checkpoint yet in %s", self.checkpoint_dir)
                    started = time.monotonic()
                time.sleep(_PAUSE)

    def _load(self, checkpoint: Checkpoint) -> bool:
        """Loads a checkpoint. Returns False if it was replaced or removed meanwhile."""
        try:
            (self._load_keras if checkpoint.is_keras else self._load_tensorflow)(checkpoint.path)
        except (OSError, tf.errors.OpError):
            if checkpoint.is_current():
                raise
        return checkpoint.is_current()

    def _load_keras(self, path: str) -> None:
        optimizer = self.model.optimizer
        if not optimizer.built:
            with self.model.distribute_strategy.scope():
                optimizer.build(self.model.trainable_variables)
        optimizer.iterations.assign(-1)
        self.model.load_weights(path)
        if int(optimizer.iterations) < 0:
            raise ValueError(
                "The file has no state of the optimizer that the evaluator's model was compiled "
                "with, so the number of updates is not known. Compile both models with the same "
                "optimizer; in a loop of your own save a tf.train.Checkpoint(model=model, "
                f"optimizer=optimizer). Received: {path}, optimizer={optimizer.name}"
            )

    def _load_tensorflow(self, path: str) -> None:
        reader = tf.train.load_checkpoint(path)
        place = next((name for name in _ITERATIONS if reader.has_tensor(name)), None)
        status = tf.train.Checkpoint(model=self.model).restore(path)
        missing = compat.not_restored(status, self.model.weights)
        status.expect_partial()
        if missing or place is None:
            lacks = "the optimizer" if not missing else ", ".join(v.path for v in missing)
            raise ValueError(
                "The evaluator needs the whole model and the number of updates. Save a "
                "tf.train.Checkpoint(model=model, optimizer=optimizer) of a model of the same "
                f"architecture. Received: {path}, which lacks {lacks}"
            )
        self.model.optimizer.iterations.assign(reader.get_tensor(place))

    def _evaluate(self, checkpoint: Checkpoint, callbacks: keras.callbacks.CallbackList) -> None:
        logs = self.model.evaluate(
            self.data, steps=self.steps, callbacks=callbacks, return_dict=True
        )
        shown = ", ".join(f"{name} {float(value):.6g}" for name, value in logs.items())
        updates = int(self.model.optimizer.iterations)
        tf.get_logger().info("tfdist: %s, %d updates: %s", checkpoint.path, updates, shown)


class _ChiefsEnd:
    """Whether the chief of the cluster has ended; known in the task `evaluator` of TF_CONFIG."""

    def __init__(self) -> None:
        self._came = threading.Event()
        self._error: Exception | None = None
        cluster = Cluster.from_environment()
        if cluster is not None and cluster.task_type == "evaluator":
            arguments = cluster.workers[0], connect_timeout()
            threading.Thread(target=self._wait, args=arguments, daemon=True).start()

    def _wait(self, address: str, timeout: float) -> None:
        try:
            wait_for_end(address, timeout)
        except Exception as error:
            self._error = error
        self._came.set()

    def has_come(self) -> bool:
        """Whether the chief has run and ended."""
        if self._error is not None:
            raise self._error
        return self._came.is_set()
