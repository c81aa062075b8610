"""Puts `DistributedOptimizer` around the optimizers of models that belong to a tfdist strategy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.optimizer.scope import check_optimizer_scope
from tfdist.options import Options
from tfdist.processes import digest
from tfdist.step import replica
from tfdist.step.model_optimizers import optimizers_of
from tfdist.validation import check_not_horovods, check_not_legacy


def wrap(optimizer: keras.optimizers.Optimizer) -> DistributedOptimizer:
    """`optimizer` in a `DistributedOptimizer`; returned unchanged if it is wrapped already.

    With `mixed_float16` Keras puts its loss scaling around an optimizer that the user has wrapped.
    The loss scaling belongs inside, so that all replicas agree whether to skip a step.
    """
    if isinstance(optimizer, DistributedOptimizer):
        return optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    if not isinstance(inner, DistributedOptimizer):
        return DistributedOptimizer(optimizer)
    optimizer.inner_optimizer = inner.unwrap()
    given: Any = {name: getattr(inner.options, name) for name in inner.given}
    return DistributedOptimizer(optimizer, **given)


def wrap_optimizers(model: keras.Model) -> None:
    """Wraps every optimizer that is an attribute of `model`.

    Raises:
        ValueError: for one that was made outside the scope, wrapped or not, or by Horovod.
    """
    for name in optimizers_of(model):
        _wrap_attribute(model, name)


def _wrap_attribute(model: keras.Model, name: str) -> None:
    strategy = model.distribute_strategy
    optimizer = getattr(model, name)
    check_not_horovods(optimizer)
    check_optimizer_scope(optimizer, strategy)
    if isinstance(optimizer, DistributedOptimizer):
        return
    with tf.init_scope(), strategy.scope():
        wrapped = wrap(optimizer)
        if optimizer.built:
            wrapped.build(compat.variables_to_build(optimizer))
        setattr(model, name, wrapped)


def compile_for_strategy(
    is_ours: Callable[[Any], bool],
    model: keras.Model,
    compile_model: Callable,
    args: tuple,
    kwargs: dict,
) -> None:
    """Does what `model.compile` does; under tfdist the optimizer is wrapped too.

    Raises:
        ValueError: for a model or an optimizer that was made outside the scope, and for what the
            strategy cannot do.
    """
    strategy = model.distribute_strategy
    if not is_ours(strategy):
        compile_model(*args, **kwargs)
        return
    if compat.model_strategy(model) is None:
        raise ValueError(
            f"The model was built outside the scope of this {type(strategy).__name__}. Build and "
            f"compile it inside `with strategy.scope():`. Received: model={model.name}"
        )
    optimizer = args[0] if args else kwargs.get("optimizer")
    check_not_legacy(optimizer)
    check_not_horovods(optimizer)
    # An interruption may have left a round, which the optimizer of before belongs to.
    strategy.finish_rounds()
    with strategy.scope():
        compile_model(*args, **kwargs)
    digest.note_compiled(model, inspect.signature(compile_model).bind(*args, **kwargs).arguments)
    strategy.check_compiled(model)
    strategy.note_compiled(model)
    if model.optimizer is not None:
        _wrap_attribute(model, "optimizer")


def refuse_unwrapped(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises ValueError if a step uses Horovod's optimizer, or a plain one with a wrong result.

    In a custom loop a plain optimizer sums the gradients by itself, as with `tf.distribute`. The
    result is right unless the optimizer clips, or the strategy's options ask for more than a sum.
    """
    check_not_horovods(optimizer)
    step, strategy = replica.current(), tf.distribute.get_strategy()
    options = Options.of(strategy)
    clips = any((optimizer.clipnorm, optimizer.clipvalue, optimizer.global_clipnorm))
    plain = options.accumulation_steps == 1 and options.compression is None and not clips
    plain = plain and options.sharded(strategy.num_replicas_in_sync) is None
    if step is not None and step.own_loop and plain:
        return
    raise ValueError(
        "This optimizer is not wrapped, so it would clip each replica's gradient instead of the "
        "global one, or ignore the strategy's options. Wrap it: "
        "`tfdist.DistributedOptimizer(optimizer)`. (A model's own optimizers are wrapped by "
        "themselves when they are attributes of the model, not items of a list or dict.) "
        f"Received: {type(optimizer).__name__} named {optimizer.name!r}"
    )
