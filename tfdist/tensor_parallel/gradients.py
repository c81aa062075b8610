"""Gradients of models with layers in parts, on their way to the optimizer.

A rank has the gradient of its parts to itself. The gradient of a weight that all ranks have is the
same in all of them, if they have seen the same batch. That is checked in each step, before weights
change.
"""

from __future__ import annotations

import threading
import weakref

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.step.model_optimizers import learning_rates
from tfdist.step.sharding.elementwise import check_elementwise
from tfdist.structures import Gradient
from tfdist.tensor_parallel import mesh as meshes_of_process
from tfdist.tensor_parallel.functions import Functions
from tfdist.tensor_parallel.mesh import Mesh
from tfdist.tensor_parallel.parts import mesh_of

_WHY = (
    "The gradients of weights that all ranks have differ between the ranks: they have not seen the "
    "same batch, or not begun with the same weights, or layers of your own draw other random "
    "numbers. Give all ranks the same data in the same order, and the same random seed. The same "
    "error comes if they have other learning rates, as when a callback sets it in one rank only. "
    "The weights are unchanged. Received, of each rank, numbers that depend on each gradient, and "
    "last on the learning rate:"
)

# Those that were tried on small variables.
_checked: weakref.WeakSet[keras.optimizers.Optimizer] = weakref.WeakSet()
_trying = threading.Event()  # copies of an optimizer, in another thread; each rank for itself


def of_optimizer(
    optimizer: keras.optimizers.Optimizer,
    gradients: list[Gradient | None],
    variables: list[keras.Variable] | None,
) -> list[Gradient | None]:
    """The gradients to apply; see `compat.hook_apply`.

    Raises:
        ValueError: for an optimizer that would need whole weights; for a model without a weight
            that all ranks have, as it cannot be checked.
    """
    if _trying.is_set():
        return gradients
    own = compat.variables_to_build(optimizer) if variables is None else variables
    has_parts = any(mesh_of(variable) is not None for variable in own)
    # Where parts are frozen, or another optimizer has them, ranks must see the same batches too.
    mesh = next(filter(None, map(mesh_of, own)), meshes_of_process.of_process())
    if mesh is None or (not has_parts and not mesh.trains_here):
        return gradients
    if has_parts:
        mesh.check_training()
    if tf.distribute.has_strategy():
        raise ValueError(
            "In the scope of `mesh.strategy()` wrap the optimizer of a loop of your own: "
            "`tfdist.DistributedOptimizer(optimizer)`. `fit` does so by itself. "
            f"Received: {type(optimizer).__name__} named {optimizer.name!r}"
        )
    # Without a strategy all ranks see the same batches.
    return finished(mesh, mesh.everyone, optimizer, gradients, own)


def finished(
    mesh: Mesh,
    alike: Functions,
    optimizer: keras.optimizers.Optimizer,
    gradients: list[Gradient | None],
    variables: list[keras.Variable],
) -> list[Gradient | None]:
    """The gradients to apply: the same bits in all ranks for weights that all of them have.

    Args:
        mesh: the ranks.
        alike: the operations of the ranks whose gradients are the same.
        optimizer: updates the weights; not a `DistributedOptimizer`.
        gradients: of the whole batch; None where there is none.
        variables: the variables of the gradients.

    Raises:
        ValueError: as `of_optimizer`.
    """
    has_parts = any(mesh_of(variable) is not None for variable in variables)
    if has_parts:
        with tf.init_scope():  # copies of the optimizer are tried
            check_optimizer(optimizer)
    else:
        check_kind(optimizer)
    places = [
        place
        for place, variable in enumerate(variables)
        if mesh_of(variable) is None and gradients[place] is not None
    ]
    if not places and not has_parts:
        return gradients
    if not places:
        raise ValueError(
            "Whether ranks see the same batches shows in the gradients of weights that all of them "
            "have, and the model has none that is trained. Add one, such as the bias of a layer or "
            f"a LayerNormalization. Received: {[variable.path for variable in variables]}"
        )
    whole = [gradients[place] for place in places]
    indices = [g.indices for g in whole if isinstance(g, tf.IndexedSlices)]
    rates = [tf.convert_to_tensor(rate.value) for rate in learning_rates(optimizer)]
    given = [*indices, *_dense(whole), *rates]
    # No weight changes before the check, parts too.
    with tf.control_dependencies(alike.same(given, _WHY)):
        found = [None if g is None else _copied(g) for g in gradients]
    # Over all ranks, so that model groups have the same bits too.
    sums = mesh.engines.everyone.all_reduce(_dense([found[place] for place in places]))
    for place, total in zip(places, sums):
        mean, gradient = total / mesh.engines.everyone.replicas, found[place]
        if isinstance(gradient, tf.IndexedSlices):
            mean = tf.IndexedSlices(mean, gradient.indices, gradient.dense_shape)
        found[place] = mean
    return found


def _dense(gradients: list[Gradient]) -> list[tf.Tensor]:
    """The gradients; of sparse ones the values."""
    return [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]


def _copied(gradient: Gradient) -> Gradient:
    return tf.nest.map_structure(tf.identity, gradient, expand_composites=True)


def check_kind(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises ValueError unless `optimizer` may update whole weights beside layers in parts."""
    if isinstance(optimizer, (DistributedOptimizer, keras.optimizers.LossScaleOptimizer)):
        raise ValueError(
            "Layers in parts take a plain optimizer of Keras: ranks would scale the loss each for "
            f"itself. Received: {type(optimizer).__name__}"
        )


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises ValueError unless `optimizer` may update parts of weights."""
    check_kind(optimizer)
    clips = {name: getattr(optimizer, name) for name in ("clipnorm", "global_clipnorm")}
    if any(clips.values()):
        raise ValueError(
            "A rank knows the norms of its parts only, so it cannot clip by the norm of a whole "
            "gradient. Use `clipvalue`, or `tfdist.Strategy(..., sharding='parameters')`. "
            f"Received: {clips}"
        )
    if optimizer in _checked:
        return
    try:
        _trying.set()
        check_elementwise(optimizer)
    except ValueError as error:
        raise ValueError(
            "Each rank updates its parts of weights. That is right for optimizers that treat each "
            "element for itself, such as Adam. "
            f"Received: {str(error).partition('Received: ')[2]}"
        ) from error
    finally:
        _trying.clear()
    _checked.add(optimizer)
