"""What a loss of a user's own training loop is made of, read from the graph that computes it.

A scalar is split into the terms that it adds up, each with its factors. A term is a loss with a tag
(`loss_tags`), or a reduction of the samples to a scalar. Such a reduction is a mean over the
replica's part of the batch, or a sum, which is the replica's part of the global sum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator

import tensorflow as tf

from tfdist import compat
from tfdist.step.loss_tags import tag_of
from tfdist.step.origins import depends_on, is_constant
from tfdist.step.sizes import is_length, reduces_samples, selects_samples

MEAN = "a mean over samples"
SUM = "a sum over samples"
CONSTANT = "the same on all replicas"
UNKNOWN = "unknown"

_SAME = ("Identity", "Cast", "CheckNumerics", "EnsureShape", "PreventGradient")
_SUMS = ("Add", "AddV2", "AddN", "Sub", "Neg")
_PRODUCTS = {"Mul": 1, "RealDiv": -1, "DivNoNan": -1}
_REDUCTIONS = {"Mean": MEAN, "Sum": SUM, "L2Loss": SUM}
_CALLS = {
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
}
ELEMENTWISE = {*_SAME, *_SUMS, *_PRODUCTS} | {
    *("Abs", "Exp", "Log", "Log1p", "Maximum", "Minimum", "Pow", "Relu", "Rsqrt", "SelectV2"),
    *("Sigmoid", "Softplus", "Sqrt", "Square", "SquaredDifference", "Tanh"),
}


@dataclasses.dataclass(frozen=True)
class Term:
    """A term of a loss: `tensor` times its factors.

    Attributes:
        kind: a tag of `loss_tags`, or MEAN, SUM, CONSTANT or UNKNOWN.
        tensor: a scalar.
        factors: numbers, and pairs of a scalar tensor and its power, 1 or -1.
        divisors: the numbers by which the tensor is divided; their reciprocals are factors.
        sign: 1.0 or -1.0; in a mean over n scalars, 1/n of that.
        has_gradient: False behind a `tf.stop_gradient`.
    """

    kind: str
    tensor: tf.Tensor
    factors: tuple[float | tuple[tf.Tensor, int], ...] = ()
    divisors: tuple[float, ...] = ()
    sign: float = 1.0
    has_gradient: bool = True

    def has_factor(self, number: float) -> bool:
        """Whether one of the factors is `number`."""
        numbers = [factor for factor in self.factors if isinstance(factor, float)]
        return any(math.isclose(factor, number, rel_tol=1e-5) for factor in numbers)

    def coefficient(self) -> float | tf.Tensor:
        """The product of the factors, a float32 scalar."""
        product: float | tf.Tensor = self.sign
        for factor in self.factors:
            if isinstance(factor, tuple):
                tensor, power = factor
                tensor = tf.cast(tensor, tf.float32)
                factor = tensor if power == 1 else tf.math.reciprocal(tensor)
            product = product * factor
        return product


def terms_of(loss: tf.Tensor, sources: Collection[int] = ()) -> list[Term]:
    """The terms whose sum is `loss`, a scalar tensor of a graph.

    Args:
        loss: the scalar.
        sources: ids of variables' resources. No factor of a term depends on these variables.
    """
    found, todo = [], [Term("", loss)]
    while todo:
        term = todo.pop()
        kind = tag_of(term.tensor)
        parts = None if kind else _taken_apart(term, sources)
        if parts is None:
            found.append(dataclasses.replace(term, kind=kind or _kind_of(term)))
        else:
            todo.extend(reversed(parts))
    return found


def _taken_apart(term: Term, sources: Collection[int]) -> list[Term] | None:
    """The terms that `term` is a sum of, or the one that it is a multiple of; None if neither."""
    operation = term.tensor.op
    inputs, scalars = list(operation.inputs), _scalars_of(operation)
    if operation.type == "StopGradient":
        return [dataclasses.replace(term, tensor=inputs[0], has_gradient=False)]
    if operation.type in _SAME:
        return [dataclasses.replace(term, tensor=inputs[0])]
    if operation.type in _SUMS or scalars:
        signs = [1.0] * len(scalars or inputs)
        if operation.type in ("Neg", "Sub"):
            signs[-1] = -1.0
        elif operation.type == "Mean":
            signs = [1.0 / len(scalars)] * len(scalars)
        return [
            dataclasses.replace(term, tensor=tensor, sign=term.sign * sign)
            for tensor, sign in zip(scalars or inputs, signs)
        ]
    weighted = _weighted_scalars_of(operation)
    if weighted:
        sign = term.sign / len(weighted) if operation.type == "Mean" else term.sign
        return [
            dataclasses.replace(term, tensor=tensor, sign=sign, factors=(*term.factors, weight))
            for tensor, weight in weighted
        ]
    product = _product(operation)
    if product is None:
        return None
    value, factor = product
    if isinstance(factor, tuple) and depends_on(factor[0], sources):
        return None
    divisors = term.divisors
    if isinstance(factor, float) and _PRODUCTS[operation.type] == -1:
        divisors = (*divisors, 1 / factor)
    factors = (*term.factors, factor)
    return [dataclasses.replace(term, tensor=value, factors=factors, divisors=divisors)]


def _kind_of(term: Term) -> str:
    """The kind of a term that cannot be taken apart."""
    if is_constant(term.tensor):
        return CONSTANT
    operation = term.tensor.op
    if operation.type in _REDUCTIONS:
        return _kind_of_reduction(term)
    if operation.type in _PRODUCTS:
        product = _product(operation)
        return _common_kind(terms_of(product[0]) if product else [])
    return _common_kind(terms_of_call(term.tensor))


def _scalars_of(operation: tf.Operation) -> list[tf.Tensor]:
    """The scalars that a reduction adds up, or the one that it leaves unchanged; else none."""
    if operation.type not in ("Sum", "Mean"):
        return []
    reduced = operation.inputs[0]
    if reduced.shape.rank == 0:
        return [reduced]
    stacked = reduced.op.type == "Pack" and reduced.shape.rank == 1
    return list(reduced.op.inputs) if stacked else []


def _weighted_scalars_of(operation: tf.Operation) -> list[tuple[tf.Tensor, float]]:
    """The scalars that a reduction adds up, each times a number that is known; else none."""
    reduced = operation.inputs[0] if operation.type in ("Sum", "Mean") else None
    if reduced is None or reduced.op.type != "Mul" or reduced.shape.rank != 1:
        return []
    for values, weights in (reduced.op.inputs, reversed(reduced.op.inputs)):
        numbers = tf.get_static_value(weights)
        is_stack = values.op.type == "Pack" and values.shape.rank == 1
        if is_stack and numbers is not None and numbers.shape == (len(values.op.inputs),):
            return list(zip(values.op.inputs, map(float, numbers)))
    return []


def _product(operation: tf.Operation) -> tuple | None:
    """A product of scalars as value and factor; None where both depend on the data."""
    power = _PRODUCTS.get(operation.type)
    if power is None:
        return None
    first, second = operation.inputs
    for value, factor in ((first, second), (second, first))[: 2 if power == 1 else 1]:
        number = number_in(factor)
        if number:
            return value, number**power
    if is_fixed(second, divides=power == -1):
        return first, (second, power)
    if power == 1 and is_fixed(first):
        return second, (first, power)
    return None


def number_in(tensor: tf.Tensor) -> float | None:
    """The number that a scalar is known to be; entries of a known shape count as known."""
    operation = tensor.op
    if operation.type == "Cast":
        return number_in(operation.inputs[0])
    if operation.type == "StridedSlice":
        shape, begin = (tf.get_static_value(value) for value in operation.inputs[:2])
        if shape is not None and begin is not None and shape.ndim == 1:
            return float(shape[int(begin[0])])
        return None
    number = tf.get_static_value(tensor)
    return None if number is None else float(number)


def is_fixed(factor: tf.Tensor, divides: bool = False) -> bool:
    """Whether a factor is the same on all replicas, or stands for a number to the user.

    Args:
        factor: a scalar.
        divides: whether it is a divisor. Then it stands for no number behind a `tf.stop_gradient`:
            it may be a sum over the samples, such as that of a mask.
    """
    passed = (*_SAME, "Prod", "StopGradient") if divides else (*_SAME, "Prod")
    while factor.op.type in passed:
        factor = factor.op.inputs[0]
    if factor.op.type in ("Maximum", "Minimum", "Mul"):
        return all(is_fixed(value, divides) for value in factor.op.inputs)
    return factor.op.type == "StopGradient" or is_length(factor) or is_constant(factor)


def _kind_of_reduction(term: Term) -> str:
    """MEAN or SUM over the samples; UNKNOWN if the user may mean something else."""
    operation = term.tensor.op
    kind, reduced = _REDUCTIONS[operation.type], operation.inputs[0]
    if kind == MEAN and selects_samples(reduced):
        return UNKNOWN
    # If a sum is divided by the number of its summands, the user may mean a mean.
    sizes = {reduced.shape[0], reduced.shape.num_elements()} if reduced.shape.rank else set()
    if kind == SUM and any(term.has_factor(1.0 / size) for size in sizes - {None, 0, 1}):
        return UNKNOWN
    for beneath in elementwise_beneath(reduced):
        if beneath.type in _PRODUCTS:
            scalars = [value for value in beneath.inputs if value.shape.rank == 0]
            if not all(is_fixed(value) for value in scalars):
                return UNKNOWN
        if _REDUCTIONS.get(beneath.type, kind) != kind and reduces_samples(beneath):
            return UNKNOWN
    return kind


def elementwise_beneath(tensor: tf.Tensor) -> Iterator[tf.Operation]:
    """The elementwise operations that computed `tensor`, and the operations that fed them."""
    todo, seen = [tensor.op], set()
    while todo:
        operation = todo.pop()
        if operation not in seen:
            seen.add(operation)
            yield operation
            if operation.type in ELEMENTWISE:
                todo.extend(value.op for value in operation.inputs)


def terms_of_call(tensor: tf.Tensor) -> list[Term]:
    """The terms of `tensor` inside the functions that its operation calls; [] if it calls none."""
    names = _CALLS.get(tensor.op.type, ())
    graphs = [compat.function_graph(tensor.graph, tensor.op.get_attr(n).name) for n in names]
    if None in graphs:
        return []
    return [term for graph in graphs for term in terms_of(graph.outputs[tensor.value_index])]


def _common_kind(terms: list[Term]) -> str:
    """The kind that all terms share, constants aside; UNKNOWN if they differ."""
    kinds = {term.kind for term in terms}
    if len(kinds) > 1:
        kinds.discard(CONSTANT)
    return kinds.pop() if len(kinds) == 1 else UNKNOWN
