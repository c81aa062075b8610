"""The memory of a rank: weights, gradients and what the optimizer keeps."""

from __future__ import annotations

from tfdist.options import SHARDINGS
from tfdist.plan.workload import Workload
from tfdist.validation import check_choice


def bytes_per_rank(workload: Workload, ranks: int, sharding: str | None) -> float:
    """The most bytes of weights, gradients and slots on each rank, without activations.

    While the backward pass runs, a rank has whole gradients. So "gradients" needs as much as
    "optimizer"; it only saves memory where gradients are accumulated.

    Args:
        workload: the model.
        ranks: the number of ranks.
        sharding: the option of the strategies; None for nothing that is divided.

    Raises:
        ValueError: for another kind of sharding.

    Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models" (SC 2020), section 5: stages 1 and 2.
    """
    check_choice("sharding", sharding, (None, *SHARDINGS))
    slots = workload.slot_bytes / (ranks if sharding else 1)
    return 2 * workload.trained_bytes + workload.frozen_bytes + slots
