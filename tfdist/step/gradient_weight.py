"""What a step's gradients are multiplied by before anything else happens to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import tensorflow as tf

from tfdist import compat
from tfdist.step import replica
from tfdist.step.loss_scale import LossScale
from tfdist.step.sharding.sums import check_sums, check_unchanged
from tfdist.step.weighting import weigh
from tfdist.structures import Variable


def gradient_weight(optimizer: object, loss_scale: LossScale) -> float | tf.Tensor | None:
    """The weight of this replica's gradients; None for 1.

    The weight is the share (unless the loss has it already, or the replica trains apart) times the
    inverse of the loss scale. On a replica without samples the weight is zero.

    Args:
        optimizer: the optimizer that applies the gradients; its `scale_loss` may have applied the
            share already.
        loss_scale: the loss scale of this optimizer.
    """
    weight: float | tf.Tensor | None = None
    step = replica.current()
    if step is not None:
        scaled = (
            step.own_loop or step.apart is not None or id(optimizer) in step.notes.scaled_losses
        )
        step.notes.weighted_gradients |= not scaled
        weight = step.share.nonempty if scaled else step.share.fraction
        weight = None if step.notes.empty_counts else weight
    unscale = loss_scale.inverse()
    if unscale is not None:
        weight = unscale if weight is None else unscale * weight
    return weight


def share_of_loss(step: replica.ReplicaStep, optimizer: object, loss: tf.Tensor) -> tf.Tensor:
    """A loss times the replica's share; notes that this optimizer's gradients have the share."""
    share = tf.identity(tf.cast(step.share.fraction, loss.dtype))  # a tensor of its own, to find it
    step.notes.scaled_losses.add(id(optimizer))
    step.notes.shares.append(share)
    return loss * share


def note_scaled(optimizer: object, gradients: Iterable[Any]) -> None:
    """Notes that a loss has the share by the `scale_loss` of another optimizer.

    Args:
        optimizer: the optimizer that applies the gradients.
        gradients: one per variable; None where a variable has none.

    Raises:
        ValueError: in an eager step, where nothing tells which loss the gradients are of.
    """
    step = replica.current()
    if step is None or not step.notes.scaled_losses or id(optimizer) in step.notes.scaled_losses:
        return
    given = [gradient for gradient in gradients if gradient is not None]
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in given]
    if not all(map(tf.is_symbolic_tensor, values)):
        raise ValueError(
            "An eager step has called `scale_loss` of one optimizer, and applies gradients by "
            "another one, so it cannot be told whether they are of a scaled loss. Scale each loss "
            "by the optimizer that applies its gradients, or none, or leave out `run_eagerly`. "
            f"Received: an `apply` of {getattr(optimizer, 'name', optimizer)}"
        )
    if any(_is_computed_from(value, step.notes.shares) for value in values):
        step.notes.scaled_losses.add(id(optimizer))


def _is_computed_from(tensor: tf.Tensor, origins: Collection[tf.Tensor]) -> bool:
    sought, left, seen = {origin.ref() for origin in origins}, [tensor], set()
    while left:
        tensor = left.pop()
        if tensor.ref() in sought:
            return True
        if tf.is_symbolic_tensor(tensor) and tensor.op not in seen:
            seen.add(tensor.op)
            outside = compat.captured_tensor(tensor) if tensor.op.type == "Placeholder" else None
            left += [outside] if outside is not None else tensor.op.inputs
    return False


def weight_before_sum(variable: Variable) -> float | tf.Tensor | None:
    """The weight of this replica's gradient by a weight in parts; None for 1.

    The backward pass sums this gradient over the replicas, before the optimizer gets it.

    Args:
        variable: the weight.
    """
    step = replica.current()
    if step is None:
        return None
    scaled = step.own_loop or bool(step.notes.scaled_losses)
    if step.notes.summed.setdefault(id(variable), scaled) != scaled:
        raise ValueError(_MIXED.format(f"two gradients by {variable.name}"))
    if not scaled:
        return step.share.fraction
    return None if step.notes.empty_counts else step.share.nonempty


def weighted(
    optimizer: object, loss_scale: LossScale, gradients: list, variables: list[Variable]
) -> tuple[list, float | tf.Tensor | None]:
    """Gradients, and what they are still to be multiplied by; None for 1.

    The backward pass has summed the gradients of weights in parts over the replicas, so these have
    the replica's share already.

    Args:
        optimizer: the optimizer that applies the gradients.
        loss_scale: the loss scale of this optimizer.
        gradients: one per variable; None where a variable has none.
        variables: those that the optimizer was built for.

    Raises:
        ValueError: for a gradient that was changed after that; if the backward pass has taken the
            share of the replica into account, and the loss had the share already; or the other way
            round.
    """
    weight = gradient_weight(optimizer, loss_scale)
    if not any(map(compat.is_sharded, variables)):
        return gradients, weight
    step = replica.current()
    if step is not None:
        scaled = step.own_loop or id(optimizer) in step.notes.scaled_losses
        wrong = [v.path for v in variables if step.notes.summed.get(id(v), scaled) != scaled]
        if wrong:
            raise ValueError(_MIXED.format(f"gradients by {wrong}"))
    if step is not None:
        for variable, gradient in zip(variables, gradients):
            if not compat.is_sharded(variable) or gradient is None:
                continue
            if step.notes.weights is not None:
                check_sums(variable.path, gradient, step.notes.weights.sums)
            else:
                check_unchanged(variable.path, gradient, step.notes.eager_sums)
    of_sums = loss_scale.inverse()
    weights = [of_sums if compat.is_sharded(v) else weight for v in variables]
    return [
        gradient if gradient is None or factor is None else weigh(gradient, factor)
        for gradient, factor in zip(gradients, weights)
    ], None


_MIXED = (
    'With `sharding="parameters"` gradients are summed in the backward pass, so it must be known '
    "there whether `scale_loss` of an optimizer was called for the loss. In a `train_step` of your "
    "own call it for each loss before any gradient is taken, or for none. Received: {}, where it "
    "was called for some losses"
)
