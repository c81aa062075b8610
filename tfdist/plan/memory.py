"""The memory of a rank, as `tfdist.memory.estimate` counts it, and what options keep."""

from __future__ import annotations

from tfdist.local.choices import LocalSteps
from tfdist.memory.estimate import of_sizes
from tfdist.memory.kept import copies_of
from tfdist.memory.sizes import Passes, Sizes, Weight
from tfdist.options import SHARDINGS
from tfdist.plan.workload import Workload
from tfdist.validation import check_choice


def bytes_per_rank(
    workload: Workload,
    ranks: int,
    sharding: str | None,
    samples: float = 0,
    local: LocalSteps | None = None,
    residual: int = 0,
    has_slots: bool = True,
) -> int:
    """The most bytes on each rank.

    While the backward pass runs, a rank has whole gradients. So "gradients" needs as much as
    "optimizer"; it only saves memory where gradients are accumulated.

    Args:
        workload: the model.
        ranks: the number of ranks.
        sharding: the option of the strategies; None for nothing that is divided.
        samples: of the rank in a step, whose activations are kept; 0 to leave activations out.
        local: the option of the strategies.
        residual: the bytes of what error feedback keeps.
        has_slots: whether the optimizer's state is on the ranks, not on parameter servers.

    Raises:
        ValueError: for another kind of sharding.
    """
    check_choice("sharding", sharding, (None, *SHARDINGS))
    sizes = sizes_of(workload, samples)
    if not has_slots:  # nothing is summed or updated here
        return sizes.parameters + sizes.gradients + sizes.activations(part=0.0)
    kept = residual
    if local is not None:
        kept += copies_of(local, has_residual=residual > 0) * workload.trained_bytes
    return kept + of_sizes(sizes, sharding, ranks, workload.accumulation_steps).total


def sizes_of(workload: Workload, samples: float = 0) -> Sizes:
    """What a rank with so many samples keeps and computes; 0 to leave activations out."""
    workload = workload.of_samples(samples or workload.batch)
    weights = tuple(
        Weight(
            variable.path,
            variable.shape,
            variable.dtype,
            variable.gradient_bytes,
            variable.rows is not None,
            variable.is_divided,
            variable.is_regularized,
        )
        for variable in workload.variables
    )
    return Sizes(
        Passes(weights, workload.moments if samples else ()),
        workload.frozen_bytes,
        workload.slot_bytes,
        workload.updates_whole,
        workload.is_eager,
    )
