"""Where the chief must make the updates, because something happens between gradient and update."""

from __future__ import annotations

import keras

from tfdist.parameter_server.contracts import ChiefStrategy
from tfdist.parameter_server.data.source import Source
from tfdist.parameter_server.partitions import parts_of
from tfdist.parameter_server.pull import codes_differences
from tfdist.parameter_server.worker.functional_step import FunctionalStep
from tfdist.processes import callback_kinds

_MOST_OPTIMIZERS = 30


class NeedsChief(Exception):
    """The chief must make the updates; the message says why."""


def check(strategy: ChiefStrategy, source: Source) -> None:
    """Raises `NeedsChief` if what the user chose needs the chief in each update."""
    options, policies = strategy.options, strategy.policies
    pulls_differences = strategy.pull is not None and codes_differences(strategy.pull)
    reasons = {
        "gradients are accumulated": options.accumulation_steps > 1,
        "gradients are compressed": options.compression is not None,
        "all workers compute one update": policies.synchronous,
        "a policy changes stale gradients": policies.compensates,
        "a policy lets workers wait": policies.waits,
        "a policy drops gradients": policies.drops,
        "`max_pending` lets workers wait": strategy.max_pending < strategy.num_workers,
        "the run is recorded": strategy.journal.reads_batches,
        "somebody watches the gradients": strategy.nonfinite is not None,
        "the chief reads the data": not source.on_workers,
        "differences are pulled, and it is not known how many batches there are": (
            pulls_differences and not source.gives_iterators
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise NeedsChief(reason)


def check_several(step: FunctionalStep, home: str) -> None:
    """Raises `NeedsChief` if several parameter servers cannot each make its part of an update.

    Args:
        step: the model's step, which was traced.
        home: the server that counts the updates.
    """
    for optimizer in {id(o): o.unwrap() for o in step.optimizers}.values():
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise NeedsChief("the loss is scaled")
        if type(optimizer).apply is not keras.optimizers.Optimizer.apply:
            raise NeedsChief(f"{type(optimizer).__name__} applies gradients in a way of its own")
        if optimizer.global_clipnorm is not None:
            raise NeedsChief("the norm of gradients on several parameter servers is needed")
    if len({id(optimizer) for optimizer in step.optimizers}) > _MOST_OPTIMIZERS:
        raise NeedsChief("the step applies too many optimizers")
    if any(variable.value.device != home for variable in step.model.metrics_variables):
        raise NeedsChief("the state of a metric is on several parameter servers")
    for optimizer in step.optimizers:
        for variable in optimizer.built_for:
            if variable.constraint is not None and len(parts_of(variable)) > 1:
                raise NeedsChief("a partitioned variable has a constraint")


def acts_in_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback may do something between two batches, when weights must be at rest."""
    saves = isinstance(
        callback, (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)
    )
    if saves and callback.save_freq != "epoch":
        return True
    return callback_kinds.acts_in_batches(callback)
