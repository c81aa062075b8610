"""The memory of a rank: weights, gradients and what the optimizer keeps."""

from __future__ import annotations

from tfdist.plan.workload import Workload

SHARDINGS = (None, "optimizer", "gradients")


def bytes_per_rank(workload: Workload, ranks: int, sharding: str | None) -> float:
    """The bytes of weights, gradients and slots on each rank, without activations.

    Args:
        workload: the model.
        ranks: the number of ranks.
        sharding: what is divided among the ranks: "optimizer", its slots; "gradients", these too;
            None for nothing.

    Raises:
        ValueError: for another kind of sharding.

    Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models" (SC 2020), section 5: stages 1 and 2.
    """
    if sharding not in SHARDINGS:
        raise ValueError(f"`sharding` must be one of {SHARDINGS}. Received: sharding={sharding!r}")
    slots = workload.slot_bytes / (ranks if sharding else 1)
    gradients = workload.trained_bytes / (ranks if sharding == "gradients" else 1)
    return workload.trained_bytes + workload.frozen_bytes + gradients + slots
