"""What a compressor is: state is data, and a payload is exactly what travels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Sequence
from typing import Any, ClassVar, Literal

import keras
import tensorflow as tf

from tfdist.arguments import check_bool
from tfdist.limits import INT64_MAX
from tfdist.validation import check_integer

Payload = tuple[tf.Tensor, ...]
State = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Step:
    """What a compressor may know about the step it works in.

    Attributes:
        seed: int32 of shape `[2]`, different in each step and for each tensor, equal on all
            replicas.
        own_seed: like `seed`, but different on each replica.
        replicas: the number of replicas.
    """

    seed: tf.Tensor
    own_seed: tf.Tensor
    replicas: int = 1


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of an exchange.

    Attributes:
        total: the sum of what all replicas sent, in the gradient's shape and dtype.
        own: this replica's part of `total`. Error feedback keeps what `own` lacks of the gradient.
        state: the state for the next step.
        kept: what the compressor itself keeps to send later, if it keeps anything.
    """

    total: tf.Tensor
    own: tf.Tensor
    state: State
    kept: tf.Tensor | None = None


Exchange = Generator[Payload, Payload, Result]


@dataclasses.dataclass(frozen=True)
class Compressor:
    """Base class of all compressors; the fields are the options.

    A subclass defines `encode`, `decode` and `wire_bytes`, and `init` if it has a state. These
    methods build TensorFlow graphs: no NumPy and no Python on values. A compressor that needs more
    than one exchange overrides `exchange`, and also `restore`, which parameter servers need.

    Args:
        error_feedback: keep what was not sent, and add it to the next gradient (Karimireddy et al.,
            "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019,
            algorithm 2). The default follows the paper of each compressor.
        min_bytes: variables of fewer bytes travel uncompressed; 0 to 2**63 - 1.
        start_step: the number of uncompressed updates before the first compressed one, 0 to
            2**31 - 1. With `local`, the number of such rounds.

    Raises:
        ValueError: for options out of range.
    """

    name: ClassVar[str] = ""
    """The name under which the class is registered."""
    aggregation: ClassVar[Literal["sum", "gather"]] = "gather"
    """Whether payloads can be summed on the way ("sum"), or each must reach everyone ("gather")."""
    per_tensor: ClassVar[bool] = False
    """Whether each variable's gradient comes in its own shape, or several come as one vector."""
    shared_state: ClassVar[frozenset[str]] = frozenset()
    """The entries of the state that are equal on all replicas."""
    rounds_elements: ClassVar[bool] = False
    """Whether each element is rounded by itself, to a relative precision, so that weights can be
    sent as well as gradients."""
    codes_rows: ClassVar[bool] = False
    """Whether it also codes the rows of sparse gradients, from `start_step` on. `encode` is given
    float32 tensors then of which the first dimension may not be known, with a state that is empty
    and seeds that are zeros. The payload is one tensor of the same shape, of a dtype that engines
    carry, or of bfloat16."""
    codes_tables: ClassVar[bool] = False
    """Whether rows of zeros stay zeros, so that a small table of which a step has read some rows
    can be coded as a whole."""
    sparsifies: ClassVar[bool] = False
    """Whether only some elements are sent, and the others later."""

    error_feedback: bool = dataclasses.field(default=False, kw_only=True)
    min_bytes: int = dataclasses.field(default=1024, kw_only=True)
    start_step: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        check_integer("min_bytes", self.min_bytes, 0, INT64_MAX)
        check_integer("start_step", self.start_step, 0)
        check_bool("error_feedback", self.error_feedback)

    @property
    def unbiased(self) -> bool:
        """Whether the decoded values are the gradient on average."""
        return False

    @property
    def shrinks(self) -> bool:
        """Whether what `decode` lacks of x is smaller than x, in some norm.

        Then a receiver that is sent x − h, where h is what the receiver has, gets ever closer to x.
        A compressor that is unbiased says yes only if its variance is small.
        """
        return not self.unbiased

    @property
    def keeps_momentum(self) -> bool:
        """Whether the momentum is here, not in the optimizer: then every gradient comes here."""
        return False

    def contraction(self, spec: tf.TensorSpec) -> float | None:
        """δ of ‖C(x) − x‖² ≤ (1 − δ)‖x‖², or None where the paper promises none.

        Args:
            spec: shape and dtype of x.
        """
        del spec
        return None

    def accepts(self, spec: tf.TensorSpec) -> bool:
        """Whether a variable of this shape and dtype is compressed."""
        return spec.dtype.is_floating and nbytes(spec) >= max(1, self.min_bytes)

    def for_variable(self, spec: tf.TensorSpec) -> Compressor | None:
        """What compresses a variable of this shape and dtype; None if it travels uncompressed."""
        return self if self.accepts(spec) else None

    def stages(self) -> list[tuple[int, Compressor]]:
        """Compressors, each with the number of the update from which on it is used.

        Before the first of them, gradients travel uncompressed.
        """
        return [(self.start_step, self)]

    def check_optimizer(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Raises ValueError for an optimizer that the compressor does not work with."""

    def init(self, spec: tf.TensorSpec) -> State:
        """The first state for gradients of this shape and dtype."""
        del spec
        return {}

    def encode(self, gradient: tf.Tensor, state: State, step: Step) -> tuple[Payload, State]:
        """What travels for `gradient`, and the next state.

        Args:
            gradient: float32; a vector, or with `per_tensor` in the variable's shape.
            state: as from `init` or the last `encode`.
            step: seeds for random numbers.

        Returns:
            Tensors of static shapes, exactly as they travel, and the next state.
        """
        raise NotImplementedError

    def decode(self, payload: Payload, spec: tf.TensorSpec) -> tf.Tensor:
        """The gradient that one payload stands for; with "sum", the sum that a sum stands for.

        Args:
            payload: as from `encode`. Where payloads are summed, tensors of half precision may
                arrive as float32.
            spec: shape and dtype of the result.
        """
        raise NotImplementedError

    def wire_bytes(self, spec: tf.TensorSpec) -> int:
        """The exact number of bytes of the payload for one gradient, in all exchanges together."""
        raise NotImplementedError

    def exchange(self, gradient: tf.Tensor, state: State, step: Step) -> Exchange:
        """One step: a generator that yields what travels, and is given what arrives.

        With "sum", the sums over the replicas arrive, in the shapes that were sent. With "gather",
        the tensors of all replicas arrive, stacked along a new first axis.

        Args:
            gradient: as for `encode`.
            state: as for `encode`.
            step: as for `encode`.

        Returns:
            A generator that returns a `Result`.
        """
        spec = tf.TensorSpec(gradient.shape, gradient.dtype)
        payload, state = self.encode(gradient, state, step)
        received = yield payload
        return Result(self._total(received, spec), self.decode(payload, spec), state)

    def restore(self, payloads: Sequence[Payload], spec: tf.TensorSpec, step: Step) -> tf.Tensor:
        """The gradient that one sender's payloads stand for, as if nobody else had sent anything.

        A parameter server knows only these payloads of a gradient.

        Args:
            payloads: what `exchange` has yielded, in order.
            spec: shape and dtype of the result.
            step: the same as the sender's.

        Raises:
            ValueError: for a compressor that has several exchanges and does not override it.
        """
        if len(payloads) > 1 or type(self).decode is Compressor.decode:
            raise ValueError(
                "A compressor with an `exchange` of its own needs `restore`, which gives the "
                "gradient from its payloads, to be used with parameter servers. "
                f"Received: {self}"
            )
        return self.decode(payloads[0], spec)

    def _total(self, received: Payload, spec: tf.TensorSpec) -> tf.Tensor:
        if self.aggregation == "sum":
            return self.decode(received, spec)
        first, *others = zip(*(tf.unstack(part) for part in received))
        sums = [self.decode(first, spec)]
        for payload in others:
            # Only two are decoded at a time. So memory does not grow with the number of replicas.
            with tf.control_dependencies(sums[-2:-1]):
                sums.append(sums[-1] + self.decode(payload, spec))
        return sums[-1]

    def get_config(self) -> dict[str, Any]:
        """Name and options: `tfdist.compression.get` makes an equal compressor from them."""
        return {"name": self.name, **dataclasses.asdict(self)}


def nbytes(spec: tf.TensorSpec) -> int:
    """The bytes of a dense tensor."""
    return math.prod(spec.shape) * spec.dtype.size


def as_gradient(values: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """`values` in the shape and dtype of a gradient; rows, whose number is not known, have it."""
    is_known = spec.shape.is_fully_defined()
    return tf.cast(tf.reshape(values, spec.shape) if is_known else values, spec.dtype)
