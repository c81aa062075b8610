"""How replicas that train apart are brought together again: local SGD and DiLoCo."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import tensorflow as tf

from tfdist.arguments import check_instance, shown
from tfdist.compression.choice import Choice
from tfdist.compression.powersgd import PowerSGD
from tfdist.local.by_time import seconds_of
from tfdist.validation import check_integer, check_number


@dataclasses.dataclass(frozen=True)
class LocalSteps:
    """Base of the choices for `local`: replicas train apart in rounds of `steps` updates.

    Attributes:
        steps: H, the number of updates of a round; or how long a round lasts, such as "2s".
        after: the number of synchronous updates before the first round.
    """

    steps: int | str

    @property
    def seconds(self) -> float | None:
        """How long a round is to last; None if it has a number of updates."""
        return seconds_of(self.steps) if isinstance(self.steps, str) else None

    @property
    def updates(self) -> int:
        """H, the number of updates of a round that has such a number."""
        assert not isinstance(self.steps, str)
        return self.steps

    @property
    def after(self) -> int:
        """There are rounds from the first update on."""
        return 0

    @property
    def outer_rate(self) -> float:
        """The learning rate of the outer optimizer; 1 to average."""
        return 1.0

    @property
    def outer_decay(self) -> float:
        """The momentum of the outer optimizer; 0 for none."""
        return 0.0

    @property
    def fragments(self) -> int:
        """All weights are exchanged at once."""
        return 1

    @property
    def overlap(self) -> int:
        """The replicas wait for the exchange."""
        return 0

    @property
    def mixing_factor(self) -> float:
        """Without overlap nothing is mixed."""
        return 0.0

    @property
    def streams(self) -> bool:
        """Whether the weights are exchanged in fragments, or while the next steps compute."""
        return self.fragments > 1 or self.overlap > 0

    @property
    def turns(self) -> list[int]:
        """After how many updates of `steps` each fragment is exchanged, ascending, 1 to `steps`."""
        return [(p + 1) * self.updates // self.fragments for p in range(self.fragments)]

    @property
    def averages(self) -> bool:
        """Whether the weights are averaged, without an outer optimizer."""
        return self.outer_rate == 1.0 and self.outer_decay == 0.0

    @property
    def is_synchronous(self) -> bool:
        """Whether all updates are synchronous: one update per round is that, if it averages."""
        return self.averages and self.steps == 1

    def __post_init__(self) -> None:
        if self.seconds is None:
            check_integer("steps", self.steps, 1)

    def check_compression(self, compression: Choice | None) -> None:
        """Raises ValueError for compressors that cannot code the difference to the last round.

        Warns of one that can, and that trained badly where it was measured.
        """
        for compressor in compression.compressors if compression is not None else ():
            if compressor.keeps_momentum:
                raise ValueError(
                    "This compressor has the momentum of gradients in itself, but with `local` the "
                    "replicas exchange differences of weights, in which each replica's optimizer "
                    "has put its momentum already. Take another compressor, such as 'int8' or "
                    f"'qsgd'. Received: compression={compressor}, local={self}"
                )
            if compressor.sparsifies and self.outer_decay > 0:
                raise ValueError(
                    "With outer momentum training diverges if only some elements are sent: what "
                    "error feedback sends late, the momentum repeats (measured with 5 % of the "
                    "elements, `steps=32` and momentum 0.9 on a character model). Take a "
                    "compressor that sends every element, such as 'qsgd' or 'int8', or "
                    "`outer_momentum=0`. "
                    f"Received: compression={compressor}, local={self}"
                )
            if isinstance(compressor, PowerSGD) and self.outer_decay > 0:
                _warn_of_low_rank(compressor, self)

    def get_config(self) -> dict[str, Any]:
        """The name of the class, and the arguments that make an equal object."""
        return {"name": type(self).__name__, **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True)
class LocalSGD(LocalSteps):
    """Each replica trains by itself for some updates, then all take the mean of their weights.

    Between two exchanges nothing travels. The mean weighs each replica by the samples that it has
    used in the round. A round that is under way ends at the end of an epoch, and wherever else a
    model is evaluated or saved.

    Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, algorithm 1. With
    `after`: Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020 (post-local SGD).

    Args:
        steps: H, the number of updates of a round, 1 to 2**31 - 1. With 1 training is synchronous.
            Or how many seconds a round lasts, such as "2s": then faster processes make more updates
            in it, and nobody waits for a slow one.
        after: the number of synchronous updates before the first round, 0 to 2**31 - 1. More than
            0 is possible in `fit` only.

    Raises:
        ValueError: when an argument is out of range or of another type.

    Example:

    >>> import tfdist
    >>> strategy = tfdist.Strategy("mirrored", local=tfdist.LocalSGD(steps=8, after=200))
    >>> strategy.options.local
    LocalSGD(steps=8, after=200)
    """

    after: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("after", self.after, 0)


@dataclasses.dataclass(frozen=True)
class DiLoCo(LocalSteps):
    """Replicas train apart, and an outer optimizer makes a step with what they have moved.

    What a replica has moved in a round is the difference between the weights at its beginning (the
    anchor, equal everywhere) and its own weights at the end. The mean of the differences over the
    replicas, weighted by the samples that they used, is the gradient of the outer optimizer: SGD
    with Nesterov's momentum. With Δ the mean, m the momentum, μ its factor and η the learning rate:
    m ← μ m + Δ, and the new weights are the anchor − η (Δ + μ m).

    With `fragments` the weights are cut into P groups of whole variables, which have about equally
    many bytes. Fragment p (0-based) is exchanged after (p + 1) H/P updates, rounded down, and then
    each H updates. Each has rounds of its own: an anchor, a momentum, and samples that count. So as
    many bytes travel as without, but only 1/P at a time.

    With `overlap` the exchange that begins after update t ends after update t + τ: it can run while
    the next τ steps compute. Then a replica takes α w + (1 − α) v, where w are its weights by now
    and v the new weights, which are the fragment's next anchor.

    Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
    arXiv 2311.08105, algorithm 1. With `fragments` and `overlap`: Douillard et al., "Streaming
    DiLoCo with Overlapping Communication", arXiv 2501.18512, algorithm 2.

    Args:
        steps: H, the number of updates of a round, 1 to 2**31 - 1. Or how many seconds a round
            lasts, such as "2s", as for `tfdist.LocalSGD`; without `fragments` and `overlap`.
        outer_learning_rate: η, more than 0.
        outer_momentum: μ, at least 0 and less than 1.
        fragments: P, 1 to `steps`, and at most the number of trainable variables.
        overlap: τ, in updates, at least 0 and less than `steps` / `fragments`, so that only one
            exchange is under way.
        mixing_factor: α, at least 0 and less than 1; 0 drops what a replica has learned during the
            exchange. Another one than 0.5 is possible with `overlap` only.

    Raises:
        ValueError: when an argument is out of range or of another type.

    Example:

    >>> import tfdist
    >>> strategy = tfdist.Strategy("mirrored", local=tfdist.DiLoCo(steps=32))
    >>> strategy.options.local.outer_learning_rate
    0.7
    >>> tfdist.DiLoCo(steps=30, fragments=3, overlap=5).turns
    [10, 20, 30]
    """

    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9
    fragments: int = 1
    overlap: int = 0
    mixing_factor: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("outer_learning_rate", self.outer_learning_rate, 0, exclusive=True)
        check_number("outer_momentum", self.outer_momentum, 0)
        if self.outer_momentum >= 1:
            raise ValueError(
                "`outer_momentum` must be less than 1: otherwise the steps of the outer optimizer "
                f"grow without bound. Received: outer_momentum={self.outer_momentum}"
            )
        check_integer("fragments", self.fragments, 1)
        check_integer("overlap", self.overlap, 0)
        check_number("mixing_factor", self.mixing_factor, 0)
        if isinstance(self.steps, str) and self.streams:
            raise ValueError(
                "Fragments are exchanged after numbers of updates, which rounds by time do not "
                "have. Give a number of `steps`, or leave out `fragments` and `overlap`. Received: "
                f"steps={shown(self.steps)}, fragments={self.fragments}, overlap={self.overlap}"
            )
        if self.streams:
            self._check_fragments()
        self._check_mixing()

    def _check_fragments(self) -> None:
        if self.fragments > self.updates:
            raise ValueError(
                "Each fragment is exchanged once in `steps` updates, and only one at a time. Give "
                "at most as many `fragments` as `steps`. "
                f"Received: fragments={self.fragments}, steps={self.steps}"
            )
        if self.overlap * self.fragments >= self.updates:
            raise ValueError(
                "The exchange of a fragment must end before that of the next one begins: `overlap` "
                "must be less than `steps` / `fragments`. Received: "
                f"overlap={self.overlap}, steps={self.steps}, fragments={self.fragments}"
            )

    def _check_mixing(self) -> None:
        if not self.overlap and self.mixing_factor != type(self).mixing_factor:
            raise ValueError(
                "Without `overlap` replicas take the new weights where they send, and nothing is "
                "mixed. Give an `overlap` of 1 or more, or leave out `mixing_factor`. Received: "
                f"mixing_factor={self.mixing_factor}, overlap={self.overlap}"
            )
        if self.mixing_factor >= 1:
            raise ValueError(
                "`mixing_factor` must be less than 1: with 1 the replicas would take nothing from "
                f"each other. Received: mixing_factor={self.mixing_factor}"
            )

    @property
    def outer_rate(self) -> float:
        """The learning rate of the outer optimizer."""
        return self.outer_learning_rate

    @property
    def outer_decay(self) -> float:
        """The momentum of the outer optimizer."""
        return self.outer_momentum


@functools.cache  # an equal choice is checked for each optimizer, and told once
def _warn_of_low_rank(compressor: PowerSGD, local: LocalSteps) -> None:
    tf.get_logger().warning(
        "tfdist: with outer momentum PowerSGD trained badly where it was measured: a character "
        "model came to 1.20 times the loss of synchronous training with `steps=32`, and to 1.28 "
        "times with `steps=128`, with losses that rose on the way (rank 4, momentum 0.9). Take "
        "'qsgd' with 4 bits or 'int8', which came to 1.03 times with `steps=32`, or "
        '`outer_momentum=0`; see the guide, "Local steps". Chosen: compression=%s, local=%s',
        compressor,
        local,
    )


def check_local(local: object) -> None:
    """Raises TypeError unless `local` is a choice, or None."""
    if local is not None:
        check_instance("local", local, LocalSteps, "tfdist.LocalSGD or tfdist.DiLoCo, or None")
