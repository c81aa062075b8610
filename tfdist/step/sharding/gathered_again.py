"""Whole weights are gathered for the forward pass, dropped, and gathered for the backward one.

A backward pass uses the tensors that the forward pass has used. So a whole weight would stay in
memory from one to the other. While a step is traced, this module notes which layer reads which
weight. When the tape comes to the output of the layer, it gathers the weight again, and when the
step is traced, the operations of the backward pass get that weight in place of the first one.
Where there is no graph, as in an eager step, whole weights stay.

The weights of one layer travel while another one computes: in the forward pass the one that is
called before, in the backward pass the one that is called after. A third layer's weights wait. So
where the backward pass begins, those of the last two layers are there, and are not gathered again.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist import compat
from tfdist.step import replica
from tfdist.step.sharding import forms
from tfdist.structures import Structure

Gather = Callable[[Any, Sequence[tf.Tensor]], tf.Tensor]

# Of so many layers the weights are there at a time.
LAYERS_THERE = 2


@dataclasses.dataclass
class Read:
    """A weight that a step has read.

    Attributes:
        variable: the weight.
        gathered: the weight, whole.
        whole: what the forward pass uses: `gathered` with its gradient.
        gather: gathers the weight, after some tensors are there.
        again: what the backward pass uses, and how many operations there were before that: one for
            each tape that has come to the layer.
        is_old: whether the step has set the weight since then.
    """

    variable: compat.ShardedVariable
    gathered: tf.Tensor
    whole: tf.Tensor
    gather: Gather
    again: list[tuple[int, tf.Tensor]] = dataclasses.field(default_factory=list)
    is_old: bool = False


@dataclasses.dataclass(eq=False)
class Call:
    """A call of a layer in a step.

    Attributes:
        graph: what the call is traced in.
        reads: the weights that it has read, and its inner layers have not.
        outputs: the tensors that the layer has returned; none while the call is under way.
        begun: the passes of tapes for which its weights are gathered again.
    """

    graph: tf.Graph
    reads: list[Read] = dataclasses.field(default_factory=list)
    outputs: list[tf.Tensor] = dataclasses.field(default_factory=list)
    begun: list[Any] = dataclasses.field(default_factory=list)

    def gathered(self, variable: compat.ShardedVariable) -> tf.Tensor | None:
        """The whole weight, if the call has read it before; Keras may read it for its shape."""
        values = (r.gathered for r in self.reads if r.variable is variable and not r.is_old)
        return next(values, None)


@dataclasses.dataclass
class Trace:
    """What is known of the weights of a replica's step while the step is traced.

    Attributes:
        graph: what the step is traced in.
        calls: of layers, that are under way; the innermost is the last.
        readers: the calls that have read weights, in the order in which they have begun to.
        reads: all of them.
        sums: the gradients that were summed in the backward pass.
        first_pass: the first pass of a tape that has come to a layer, if it is known.
    """

    graph: tf.Graph
    calls: list[Call] = dataclasses.field(default_factory=list)
    readers: list[Call] = dataclasses.field(default_factory=list)
    reads: list[Read] = dataclasses.field(default_factory=list)
    sums: list[tf.Tensor] = dataclasses.field(default_factory=list)
    first_pass: Any = None


def _trace() -> Trace | None:
    step = replica.current()
    return None if step is None else step.notes.weights


@contextlib.contextmanager
def tracing(step: replica.ReplicaStep) -> Iterator[None]:
    """In this context the step of a replica is traced, or run eagerly."""
    trace = None if tf.executing_eagerly() else Trace(tf.compat.v1.get_default_graph())
    step.notes.weights = trace
    yield
    if trace is not None and any(one.again for one in trace.reads):
        _finish(trace)


def read(
    variable: compat.ShardedVariable,
    gather: Gather,
    link: Callable[[Any, tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """The whole weight; in replica context.

    Inside of a loop, the weight is gathered before the loop.

    Args:
        variable: the weight.
        gather: gathers it, after some tensors are there.
        link: gives a whole weight its gradient.

    Raises:
        ValueError: in a function that the step calls: TensorFlow may use its trace again, with the
            weight of this step and of this replica in it.
    """
    trace = _trace()
    if trace is None or tf.executing_eagerly():
        return link(variable, gather(variable, ()))
    if compat.is_in_function_of(trace.graph):
        raise ValueError(
            'With `sharding="parameters"` a weight cannot be read in a `tf.function` that a step '
            "calls. Leave this `tf.function` out: the step is one already. "
            f"Received: a read of {variable.path} in such a function"
        )
    call = next((call for call in reversed(trace.calls) if call.graph is trace.graph), None)
    with trace.graph.as_default():
        found = None
        # Only until another layer's weights are there, so that there are those of two layers.
        if call is not None and trace.readers[-1:] == [call]:
            found = call.gathered(variable)
        if found is None:
            found = gather(variable, () if call is None else _last_but_one(trace, call))
        whole = link(variable, found)
    if call is not None:
        if not call.reads:
            trace.readers.append(call)
        noted = Read(variable, found, whole, gather)
        call.reads.append(noted)
        trace.reads.append(noted)
    return whole


def _last_but_one(trace: Trace, call: Call) -> list[tf.Tensor]:
    """What the weights of a layer wait for: the layer before the one that is under way then.

    So they travel while one layer computes, and there are whole weights of two layers at a time.
    """
    ended = [one for one in trace.readers if one.outputs and one is not call]
    return ended[-2].outputs if len(ended) > 1 else []


def note_sum(summed: tf.Tensor) -> None:
    """Notes a gradient that is summed: weights are gathered again after it.

    So there are never the gradients of many layers at the same time.
    """
    trace = _trace()
    if trace is not None and tf.is_symbolic_tensor(summed) and summed.graph is trace.graph:
        trace.sums.append(summed)


def call_layer(call: Callable, /, *args: Structure, **kwargs: Structure) -> Any:
    """What a layer returns, whose weights are gathered when they are needed."""
    trace = _trace()
    if trace is None or tf.executing_eagerly():
        return call(*args, **kwargs)
    graph = tf.compat.v1.get_default_graph()
    under_way = Call(graph)
    trace.calls.append(under_way)
    try:
        outputs = call(*args, **kwargs)
    finally:
        trace.calls.pop()
    if not under_way.reads:
        return outputs
    under_way.outputs = _tensors_of(graph, outputs)
    return _with_backward(trace, under_way, outputs)


def _tensors_of(graph: tf.Graph, structure: Structure) -> list[tf.Tensor]:
    flat = tf.nest.flatten(structure, expand_composites=True)
    return [t for t in flat if tf.is_symbolic_tensor(t) and t.graph is graph]


def _with_backward(trace: Trace, call: Call, outputs: Structure) -> Any:
    """`outputs` of a layer, at which a tape gathers the weights of the layer again."""
    flat = tf.nest.flatten(outputs)
    places = [
        place
        for place, value in enumerate(flat)
        if isinstance(value, tf.Tensor) and value.dtype.is_floating and value.graph is trace.graph
    ]
    if not places:
        return outputs

    def gather(gradient: tf.Tensor) -> tf.Tensor:
        if tf.compat.v1.get_default_graph() is trace.graph:
            _gather_again(trace, call, gradient)
            before = trace.readers[: trace.readers.index(call)]
            if before and _pass() is not None:  # its weights travel while this layer computes
                _gather_again(trace, before[-1], gradient)
        return gradient

    # One by one: an output that nobody uses must not get a gradient of zeros.
    @tf.custom_gradient
    def passed(tensor: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        return tf.identity(tensor), gather

    for place in places:
        flat[place] = compat.stand_in(flat[place], passed)
    return tf.nest.pack_sequence_as(outputs, flat)


def _gather_again(trace: Trace, call: Call, gradient: tf.Tensor) -> None:
    """Gathers the weights of a layer, once in a pass of a tape, after a gradient is there."""
    tape_pass = _pass()
    if tape_pass is not None and any(tape_pass is one for one in call.begun):
        return
    call.begun.append(tape_pass)
    if trace.first_pass is None:
        trace.first_pass = tape_pass
    if tape_pass is not None and tape_pass is trace.first_pass and _is_there(trace, call):
        return
    wholes: dict[int, tuple[int, tf.Tensor]] = {}
    for one in call.reads:
        if one.is_old or forms.is_only_looked_up(one.whole):
            continue
        if id(one.variable) not in wholes:
            whole = one.gather(one.variable, [gradient, *trace.sums[-1:]])
            wholes[id(one.variable)] = (compat.operations_so_far(), whole)
        one.again.append(wholes[id(one.variable)])


def _is_there(trace: Trace, call: Call) -> bool:
    """Whether the weights of a layer are still there when the first backward pass begins."""
    return trace.readers.index(call) >= len(trace.readers) - LAYERS_THERE


def _pass() -> Any:
    """Stands for the call of `tape.gradient` that is under way; None if it is not known."""
    step = replica.current()
    return None if step is None else step.notes.sources


def note_set(variables: Iterable[object]) -> None:
    """Notes that a step has set weights: who has read them before goes on with the old values.

    So these are not gathered again, and stay in memory.
    """
    trace = _trace()
    if trace is not None:
        changed = {id(variable) for variable in variables}
        for one in trace.reads:
            one.is_old = one.is_old or id(one.variable) in changed


def _finish(trace: Trace) -> None:
    """Gives the backward pass the weights that were gathered for it."""
    number = {operation: n for n, operation in enumerate(trace.graph.get_operations())}
    for one in trace.reads:
        if one.again:
            forms.redirect(one.whole, one.again, number)
