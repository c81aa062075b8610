"""Where the chief must make the updates, because something happens between gradient and update."""

from __future__ import annotations

import keras

from tfdist.parameter_server.contracts import ChiefStrategy
from tfdist.parameter_server.data.source import Source
from tfdist.parameter_server.pull import codes_differences
from tfdist.processes import callback_kinds


class NeedsChief(Exception):
    """The chief must make the updates; the message says why."""


def check(strategy: ChiefStrategy, source: Source) -> None:
    """Raises `NeedsChief` if what the user chose needs the chief in each update."""
    options, policies = strategy.options, strategy.policies
    pulls_differences = strategy.pull is not None and codes_differences(strategy.pull)
    reasons = {
        "there are several parameter servers": len(strategy.ps_devices) > 1,
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


def acts_in_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback may do something between two batches, when weights must be at rest."""
    saves = isinstance(
        callback, (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)
    )
    if saves and callback.save_freq != "epoch":
        return True
    return callback_kinds.acts_in_batches(callback)
