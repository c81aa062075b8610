"""The memory of a rank: weights, gradients, what the optimizer keeps, and activations."""

from __future__ import annotations

from tfdist.local.choices import LocalSteps
from tfdist.options import SHARDINGS
from tfdist.plan.workload import Workload
from tfdist.step.sharding.owners import largest_share
from tfdist.validation import check_choice


def bytes_per_rank(
    workload: Workload,
    ranks: int,
    sharding: str | None,
    samples: float = 0,
    local: LocalSteps | None = None,
    residual: float = 0,
    has_slots: bool = True,
) -> float:
    """The most bytes of weights, gradients, slots and activations on each rank.

    While the backward pass runs, a rank has whole gradients. So "gradients" needs as much as
    "optimizer"; it only saves memory where gradients are accumulated. With "parameters" a rank has
    parts of the large weights and of their gradients, and twice the largest weight. Where the
    optimizer looks at whole variables, the rank counts that owns the largest part of them.

    Args:
        workload: the model.
        ranks: the number of ranks.
        sharding: the option of the strategies; None for nothing that is divided.
        samples: of the rank in a step, whose activations are kept; 0 to leave activations out.
        local: the option of the strategies. The weights from the beginning of a round are kept,
            the outer momentum, and with `overlap` what is under way.
        residual: the bytes of what error feedback keeps.
        has_slots: whether the optimizer's state is on the ranks, not on parameter servers.

    Raises:
        ValueError: for another kind of sharding.

    Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models" (SC 2020), section 5: stages 1 to 3.
    """
    check_choice("sharding", sharding, (None, *SHARDINGS))
    if sharding == "parameters" and ranks > 1:
        large = [v.nbytes for v in workload.variables if len(v.shape) > 1]
        trained = workload.trained_bytes - sum(large) * (1 - 1 / ranks) + max(large, default=0)
    else:
        trained = workload.trained_bytes
    slots = workload.slot_bytes * _share(workload, ranks, sharding) if has_slots else 0
    copies = 2
    if local is not None:
        copies += 1 + (local.outer_decay > 0) + (local.overlap > 0) * (1 + (residual > 0))
    activations = workload.activation_bytes * samples / workload.batch
    return copies * trained + workload.frozen_bytes + slots + residual + activations


def _share(workload: Workload, ranks: int, sharding: str | None) -> float:
    """The part of the optimizer's state that a rank has, or the rank with the most of it."""
    if sharding is None or not workload.updates_whole:
        return 1 / ranks if sharding else 1.0
    return largest_share([variable.nbytes for variable in workload.variables], ranks)
