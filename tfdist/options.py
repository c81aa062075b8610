"""The options that all strategies share, as data, checked when they are given.

A new option is one field of `Options` and one line in `CommonOptions`. Constructors, the optimizer,
records and the comparison of ranks all read these two classes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar

import tensorflow as tf

from tfdist.arguments import check_bool
from tfdist.compression.base import Compressor
from tfdist.compression.choice import Choice
from tfdist.limits import INT64_MAX
from tfdist.local.choices import LocalSteps, check_local
from tfdist.validation import check_choice, check_integer, check_number

DEFAULT_BUCKET_BYTES = 4 * 1024 * 1024

# Horovod makes room for twice as many bytes, and that number must fit in an int64.
_MOST_BYTES = 2**62

EXCHANGES = ("auto", "ring", "hierarchical")
SHARDINGS = ("optimizer", "gradients", "parameters")
OFFLOADS = ("optimizer",)

Compression = str | Compressor | Mapping[str, Any] | None


class OptimizerOptions(TypedDict, total=False):
    """The options that `tfdist.DistributedOptimizer` takes too; None means the strategy's value."""

    accumulation_steps: int | None
    bucket_bytes: int | None
    compression: Compression


class CommonOptions(OptimizerOptions, total=False):
    """The options that every strategy takes."""

    seed: int
    local: LocalSteps | None
    balance: bool
    balance_max_share: float | None
    exchange: str
    sharding: str | None
    offload: str | None


@dataclasses.dataclass(frozen=True)
class Options:
    """What every tfdist strategy takes besides TensorFlow's own arguments, by keyword.

    Attributes:
        accumulation_steps: number of micro-batches whose gradients are averaged on each replica
            before one exchange and one update, 1 to 2**31 - 1. A remainder at the end of an epoch
            is completed by the next epoch's first batches.
        bucket_bytes: gradients are packed into buckets of at most this many bytes, 1 to 2**62.
        compression: how gradients are compressed: a `tfdist.compression.Compressor`, the name of
            one such as "topk", or a dict from patterns of variables' paths to compressors or names.
            None for no compression. The finished object holds a `Choice`.
        seed: for the random numbers of compressors, 0 to 2**63 - 1.
        balance: whether faster replicas get larger parts of each global batch; see the guide,
            "Balance". Not for a parameter server.
        balance_max_share: the largest part of a global batch that a replica may get, more than 0
            and at most 1, so that it fits in its memory; None for no bound.
        local: replicas train apart for some steps, then average: a `tfdist.LocalSGD` or
            `tfdist.DiLoCo`; see the guide, "Local steps". None to exchange in every update. Not for
            a parameter server.
        exchange: how gradients are summed: "ring", between all replicas at once; "hierarchical",
            inside each host first, then between the hosts, which saves traffic between hosts with
            several replicas; "auto" chooses. See the guide, "Algorithms of the exchange". Only
            "auto" for a parameter server.
        sharding: "optimizer": each replica keeps the optimizer's state for its part of every
            variable only. "gradients": of micro-batches that are accumulated too. "parameters": of
            the weights too. See the guide, "Sharded training". None to keep all on each replica.
            Not for a parameter server.
        offload: "optimizer", with `sharding`: the optimizer's state is in the memory of the host,
            and the update runs there. For replicas on the GPUs of one process. None to keep it on
            the devices.

    Raises:
        ValueError: when a value is out of range or of another type, and for unknown compressors.
    """

    accumulation_steps: int = 1
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    compression: Any = None
    seed: int = 0
    balance: bool = False
    balance_max_share: float | None = None
    local: LocalSteps | None = None
    exchange: str = "auto"
    sharding: str | None = None
    offload: str | None = None

    def __post_init__(self) -> None:
        check_integer("accumulation_steps", self.accumulation_steps, 1)
        check_integer("bucket_bytes", self.bucket_bytes, 1, _MOST_BYTES)
        check_integer("seed", self.seed, 0, INT64_MAX)
        check_bool("balance", self.balance)
        if self.balance_max_share is not None:
            check_number("balance_max_share", self.balance_max_share, 0, exclusive=True, maximum=1)
            if not self.balance:
                raise ValueError(
                    "`balance_max_share` bounds what `balance=True` gives to a replica; give both, "
                    f"or none. Received: balance_max_share={self.balance_max_share}, balance=False"
                )
        object.__setattr__(self, "compression", Choice.of(self.compression))
        check_choice("exchange", self.exchange, EXCHANGES)
        check_local(self.local)
        self._check_sharding()
        if self.local is not None:
            self.local.check_compression(self.compression)
            if self.balance:
                raise ValueError(
                    "`balance=True` cuts the batch of a step in which all replicas wait for each "
                    "other. With `local` they wait once in a round only. Leave one of them out. "
                    f"Received: balance=True, local={self.local}"
                )

    def _check_sharding(self) -> None:
        check_choice("offload", self.offload, (None, *OFFLOADS))
        if self.offload is not None and self.sharding is None:
            raise ValueError(
                "`offload` is a part of sharded training: each replica keeps its part of the "
                'optimizer\'s state on its host. Give `sharding="optimizer"` too, also with one '
                f"device. Received: offload={self.offload!r}, sharding=None"
            )
        if self.sharding is None:
            return
        check_choice("sharding", self.sharding, SHARDINGS)
        for name, reason in (
            ("compression", "a compressor codes whole gradients"),
            ("local", "with `local` each replica makes whole updates of its own"),
        ):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"With `sharding` each replica gets parts of the gradients only, and {reason}. "
                    f"Leave one of them out. Received: sharding={self.sharding!r}, "
                    f"{name}={getattr(self, name)}"
                )
        if self.sharding == "parameters" and self.balance:
            raise ValueError(
                "With `balance=True` it is measured how long each replica computes. With "
                '`sharding="parameters"` replicas wait for each other in the middle of it. Leave '
                "one of them out. Received: sharding='parameters', balance=True"
            )
        if self.exchange == "hierarchical":
            raise ValueError(
                "With `sharding` parts travel between all replicas at once. Leave `exchange` out. "
                f"Received: sharding={self.sharding!r}, exchange='hierarchical'"
            )

    @classmethod
    def of(cls, strategy: tf.distribute.Strategy) -> Options:
        """The options of `strategy`; the defaults if it is no tfdist strategy."""
        options = getattr(strategy, "options", None)
        return options if isinstance(options, cls) else cls()

    def replace(self, **changes: Any) -> Options:
        """A copy with `changes`, except for changes that are None."""
        given = {name: value for name, value in changes.items() if value is not None}
        return dataclasses.replace(self, **given)

    def local_steps(self, replicas: int) -> LocalSteps | None:
        """How `replicas` replicas train apart; None if all their updates are synchronous."""
        if replicas == 1 or self.local is None or self.local.is_synchronous:
            return None
        return self.local

    def sharded(self, replicas: int) -> str | None:
        """What `replicas` replicas keep in parts; None if each keeps all.

        One replica has one part, of the optimizer's state: to keep it elsewhere.
        """
        if replicas == 1:
            return None if self.offload is None else "optimizer"
        return self.sharding

    def of_optimizer(self) -> OptimizerOptions:
        """The options that an optimizer takes."""
        return {name: getattr(self, name) for name in _OF_OPTIMIZER}  # type: ignore[return-value]

    def get_config(self) -> dict[str, Any]:
        """The options as plain data, by name."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            name: value.get_config() if hasattr(value, "get_config") else value
            for name, value in found.items()
        }


_OF_OPTIMIZER = tuple(OptimizerOptions.__annotations__)
_Function = TypeVar("_Function", bound=Callable)


def takes_options(function: _Function) -> _Function:
    """Puts the options in place of `**options` in the signature of a strategy's constructor."""
    return _with_parameters(
        function,
        {field.name: (field.default, field.type) for field in dataclasses.fields(Options)},
    )


def takes_optimizer_options(function: _Function) -> _Function:
    """Puts the options in place of `**options` in the signature of an optimizer's constructor."""
    types = OptimizerOptions.__annotations__
    return _with_parameters(function, {name: (None, types[name]) for name in _OF_OPTIMIZER})


def _with_parameters(function: _Function, options: Mapping[str, tuple[Any, Any]]) -> _Function:
    """`function` with `options` in its signature; raises TypeError for any other keyword."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (default, kind) in options.items()
    ]
    signature = signature.replace(parameters=[*own, *common])

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"{function.__qualname__}: {error}. Received: {len(args) - 1} arguments by "
                f"position, and {sorted(kwargs)}"
            ) from None
        return function(*args, **kwargs)

    checked.__signature__ = signature  # type: ignore[attr-defined]
    return checked  # type: ignore[return-value]
