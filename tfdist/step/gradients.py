"""The gradients that tapes compute in a replica's step, with the replica's share of the batch."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.compat.sharded_weights import without_values
from tfdist.step import loss_sums, loss_tags, loss_values, own_loops, replica, weighting
from tfdist.structures import Structure
from tfdist.validation import check_tape


def of_step(
    gradient: Callable,
    tape: tf.GradientTape,
    target: Structure,
    sources: Structure,
    output_gradients: Structure,
    unconnected_gradients: tf.UnconnectedGradients,
) -> Any:
    """What `tape.gradient` returns; `gradient` is TensorFlow's.

    In a user's own loop the result is the gradient of the replica's part of the global loss. In a
    step of Keras the optimizer or `scale_loss` applies the share, which is meant for means. So
    the gradients of sums are divided by the share here.
    """
    sources = without_values(sources)
    step = replica.current()
    if step is None:
        with _asked_for(sources):
            return gradient(tape, target, sources, output_gradients, unconnected_gradients)
    check_tape(tape)
    # In a backward pass, as that of `tf.recompute_grad`, a gradient is a part of another one.
    is_part = step.notes.sources is not None
    gradient = functools.partial(_noting_sources, step, gradient)
    if not is_part and not compat.in_jacobian():
        if step.own_loop:
            return _own_gradient(
                step, gradient, tape, target, sources, output_gradients, unconnected_gradients
            )
        target, output_gradients = _sums_as_means(step, target, sources, output_gradients)
    return gradient(tape, target, sources, output_gradients, unconnected_gradients)


_asked = threading.local()


@contextlib.contextmanager
def _asked_for(sources: Structure) -> Iterator[None]:
    before = getattr(_asked, "sources", None)
    _asked.sources = frozenset(map(id, tf.nest.flatten(sources)))
    try:
        yield
    finally:
        _asked.sources = before


def may_be_asked_for(variable: keras.Variable) -> bool:
    """Whether the tape that computes gradients may have been asked for that by a variable.

    Tapes also go to weights that they are not asked about. `tf.recompute_grad` asks for the
    `tf.Variable` in a weight.
    """
    step = replica.current()
    sources = getattr(_asked, "sources", None) if step is None else step.notes.sources
    stored = compat.stored(variable)
    names = [variable, stored, *getattr(stored, "values", ())]
    return sources is None or any(id(name) in sources for name in names)


def _noting_sources(
    step: replica.ReplicaStep,
    gradient: Callable,
    tape: tf.GradientTape,
    target: Structure,
    sources: Structure,
    *rest: Structure,
) -> Any:
    """The gradient. A tape also goes to weights that it is not asked about."""
    before = step.notes.sources
    step.notes.sources = frozenset(map(id, tf.nest.flatten(sources)))
    try:
        found = gradient(tape, target, sources, *rest)
    finally:
        step.notes.sources = before
    if tf.executing_eagerly():
        named = zip(tf.nest.flatten(sources), tf.nest.flatten(found))
        step.notes.eager_sums += [value for source, value in named if compat.is_sharded(source)]
    return found


def _own_gradient(
    step: replica.ReplicaStep,
    gradient: Callable,
    tape: tf.GradientTape,
    target: Structure,
    sources: Structure,
    output_gradients: Structure,
    unconnected_gradients: tf.UnconnectedGradients,
) -> Any:
    """The gradient of the replica's part of the global loss.

    While another tape records, the gradient is not the one that is applied, and stays as it is.
    """
    targets = tf.nest.flatten(target)
    if not all(isinstance(one, tf.Tensor) for one in targets):
        return gradient(tape, target, sources, output_gradients, unconnected_gradients)
    if compat.is_recorded(tape, targets):
        found = gradient(tape, target, sources, output_gradients, unconnected_gradients)
        return tf.nest.map_structure(loss_tags.mark_unweighted, found)
    flat = [None] * len(targets)
    if output_gradients is not None:
        flat = tf.nest.flatten(output_gradients)
    with compat.unrecorded():
        targets, flat = own_loops.weigh_targets(step, targets, flat, tf.nest.flatten(sources))
    factors = [tf.ones_like(t) if f is None else f for t, f in zip(targets, flat)]
    return gradient(tape, targets, sources, factors, unconnected_gradients)


def _sums_as_means(
    step: replica.ReplicaStep, target: Structure, sources: Structure, output_gradients: Structure
) -> tuple[Any, Any]:
    """The targets of a Keras step, and factors of their gradients that turn sums into means.

    If a loss has one value per sample, as Keras' loss functions return it, its gradient is a sum
    over the samples. The share, however, is for means. Losses that were stacked are taken apart.
    """
    targets, named = tf.nest.flatten(target), tf.nest.flatten(sources)
    variables = [one for one in named if isinstance(one, (tf.Variable, keras.Variable))]
    if not variables or not all(isinstance(t, tf.Tensor) and t.dtype.is_floating for t in targets):
        return target, output_gradients
    given = [None] * len(targets)
    if output_gradients is not None:
        given = tf.nest.flatten(output_gradients)
    resources = {id(one) for variable in variables for one in compat.resources_of(variable)}
    found: list[tuple[Any, Any]] = []
    with compat.unrecorded():
        flat = [pair for pair in zip(targets, given) for pair in loss_values.stacked(*pair)]
        for one, gradient in flat:
            terms = [(one, None)]
            if one.shape.rank == 0:
                terms = list(loss_sums.term_factors(step, one, resources)) or terms
            elif loss_values.are_of_samples(step, one):
                terms = [(one, weighting.factor_of_sum(one, step.share))]
            found.extend((tensor, _product_of(factor, gradient)) for tensor, factor in terms)
        if all(factor is None for _, factor in found):
            return target, None
        factors = [tf.ones_like(tensor) if f is None else f for tensor, f in found]
    return [tensor for tensor, _ in found], factors


def _product_of(factor: Structure, gradient: Structure) -> Any:
    if factor is None or gradient is None:
        return gradient if factor is None else factor
    return factor * tf.cast(gradient, factor.dtype)
