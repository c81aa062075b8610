"""What the chief refuses because it cannot train with it."""

from __future__ import annotations

from collections.abc import Sequence

from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.options import Options
from tfdist.parameter_server.chief.partition_updates import check_optimizer
from tfdist.staleness import Policies


def check_compression(options: Options, policies: Policies) -> None:
    """Raises ValueError where a synchronous step does not fit to what compressors keep.

    A compressor's momentum would count micro-batches as updates. And what was not sent belongs to a
    part of the global batch; it would have to be on every worker that computes the part.
    """
    if options.compression and (policies.backup or policies.drop or policies.parts(1) > 1):
        raise ValueError(
            "With compression, each part of a global batch has a worker of its own, which keeps "
            "what was not sent. Leave out `parts_per_worker`, `backup` and `drop` of Synchronous, "
            f"or `compression`. Received: staleness={list(policies.policies)} with "
            f"compression={options.compression}"
        )
    with_momentum = options.compression and [
        compressor for compressor in options.compression.compressors if compressor.keeps_momentum
    ]
    if with_momentum and policies.synchronous and options.accumulation_steps > 1:
        raise ValueError(
            "With staleness.Synchronous() each micro-batch is sent by itself, so a compressor that "
            "keeps the momentum would apply it accumulation_steps times per update. Use "
            "`accumulation_steps=1`, or DGC(momentum=0.0) with the optimizer's momentum. Received: "
            f"{with_momentum} with accumulation_steps={options.accumulation_steps}"
        )


def check_drop(policies: Policies, workers: int) -> None:
    """Raises ValueError if all parts of a global batch of so many workers may be dropped."""
    parts = policies.parts(workers)
    if policies.drop >= max(parts, 1):
        raise ValueError(
            f"`drop` of Synchronous must be less than the number of parts of a global batch, which "
            f"is {parts} with {workers} worker(s): an update needs a part. "
            f"Received: drop={policies.drop}"
        )


def check_applied(optimizers: Sequence[DistributedOptimizer], options: Options) -> None:
    """Raises ValueError for optimizers that a step applies but that the chief cannot apply.

    Args:
        optimizers: the optimizers that the step applies.
        options: the strategy's.
    """
    for optimizer in optimizers:
        check_optimizer(optimizer.unwrap(), optimizer.built_for)
        if optimizer.options != options:
            raise ValueError(
                "Under a parameter server the options of accumulation and compression are the "
                "strategy's. Make the optimizer without them. "
                f"Received: {optimizer.name} with {optimizer.options}"
            )
