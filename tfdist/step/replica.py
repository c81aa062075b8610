"""What a replica knows about itself while it runs one step of a strategy.

`tf.distribute` runs the step function once per replica, each in a thread of its own. The strategy
publishes a `ReplicaStep` in that thread; losses, optimizer and random numbers look it up here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdist.step.weighting import Share

if TYPE_CHECKING:
    from tfdist.step.local_rounds import LocalRounds
    from tfdist.step.sharding.gathered_again import Trace


@dataclasses.dataclass
class Notes:
    """What one replica has found out while it runs one step.

    Attributes:
        seen: the kinds of losses that were computed: tags of `step/loss_tags.py`.
        empty_counts: whether the gradients of a replica without samples count as they are.
        weighted_losses: the losses whose gradient was weighted in an eager step, by id.
        scaled_losses: ids of the optimizers whose `scale_loss` has applied the share already.
        shares: the tensors by which `scale_loss` has multiplied losses.
        weighted_gradients: whether an optimizer applied the share to gradients, because their loss
            never went through `scale_loss`.
        applied: ids of the accumulating optimizers that were applied already.
        advances: functions that move on what every step moves on, whatever the data: counters of
            updates, and seeds. They are called outside of a step; see `step/end_of_data.py`.
        drawn: for each random number that was drawn, the state of its generator.
        computed: the gradients of the first update of this step, before they are exchanged.
        when_computed: functions that are called as soon as there are these gradients.
        waited: in an eager step, for how many seconds the replica waited before it had gradients.
        rounds: the rounds of the optimizers that a replica that trains apart has applied.
        begun: the rounds that have noted what weights the step began with.
        at_update: for other rounds, what weights their first update began with, by id.
        updates: the graph that each of these was applied in, and the number of its operations
            before and after.
        weights: what is known of weights in parts while the step is traced; None in others.
        summed: for each weight in parts whose gradient was summed, by id: whether its losses had
            the share already.
        sources: ids of what a tape is asked about; None while it is asked nothing.
        eager_sums: gradients by weights in parts that tapes have given in an eager step.
        finite: whether this replica's own gradients by watched weights in parts are finite, by id.
    """

    seen: set[str] = dataclasses.field(default_factory=set)
    empty_counts: bool = False
    weighted_losses: dict[int, tf.Tensor] = dataclasses.field(default_factory=dict)
    scaled_losses: set[int] = dataclasses.field(default_factory=set)
    shares: list[tf.Tensor] = dataclasses.field(default_factory=list)
    weighted_gradients: bool = False
    applied: set[int] = dataclasses.field(default_factory=set)
    advances: list[Callable[[], Any]] = dataclasses.field(default_factory=list)
    drawn: list[tf.Variable] = dataclasses.field(default_factory=list)
    computed: list[tf.Tensor] = dataclasses.field(default_factory=list)
    when_computed: list[Callable[[], None]] = dataclasses.field(default_factory=list)
    waited: list[tf.Tensor] = dataclasses.field(default_factory=list)
    rounds: list[LocalRounds] = dataclasses.field(default_factory=list)
    begun: list[LocalRounds] = dataclasses.field(default_factory=list)
    at_update: dict[int, tf.Tensor] = dataclasses.field(default_factory=dict)
    updates: list[tuple[tf.Graph, int, int]] = dataclasses.field(default_factory=list)
    weights: Trace | None = None
    summed: dict[int, bool] = dataclasses.field(default_factory=dict)
    sources: frozenset[int] | None = None
    eager_sums: list[Any] = dataclasses.field(default_factory=list)
    finite: dict[int, list[tf.Tensor]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Apart:
    """What a replica knows about a step that it trains apart from the others.

    Attributes:
        reported: the replica's share in what is reported of the step.
        samples: the number of its samples, an int64 scalar.
        begun: the time at which it had them, in seconds, float64; None if nobody measures.
    """

    reported: Share
    samples: tf.Tensor
    begun: tf.Tensor | None = None

    @property
    def share(self) -> Share:
        """The share by which gradients are weighted: the whole of the replica's own batch."""
        return Share(1.0, self.reported.nonempty)


@dataclasses.dataclass(frozen=True)
class ReplicaStep:
    """One replica's view of one step.

    Attributes:
        replica_id: this replica's number among all replicas, 0-based.
        replicas: the number of all replicas.
        share: this replica's share of the global batch.
        own_loop: True in a step of a user's own loop, where the share is applied as gradients are
            taken (`step/own_loops.py`); False in Keras' own steps, where the optimizer applies the
            share.
        exchanges: whether the replicas of a step can exchange values while it runs.
        samples: how many samples this replica has; None where that is not static.
        is_eager: whether the strategy's `run` was called eagerly.
        apart: what a replica that trains apart knows of this step; None in all other steps. The
            share of such a replica is 1: it is a device of its own.
        notes: what the step finds out.
    """

    replica_id: int | tf.Tensor
    replicas: int
    share: Share
    own_loop: bool
    exchanges: bool = True
    samples: int | None = None
    is_eager: bool = False
    apart: Apart | None = None
    notes: Notes = dataclasses.field(default_factory=Notes)

    @property
    def reported_share(self) -> Share:
        """The share by which losses and metrics that are reported count."""
        return self.share if self.apart is None else self.apart.reported


_running = threading.local()


def current() -> ReplicaStep | None:
    """The step that this thread runs, or None outside a tfdist strategy's `run`."""
    return getattr(_running, "step", None)


@contextlib.contextmanager
def publish(step: ReplicaStep) -> Iterator[ReplicaStep]:
    """Makes `step` the current one of this thread."""
    previous = current()
    _running.step = step
    try:
        yield step
    finally:
        _running.step = previous
