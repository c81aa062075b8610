"""The schedule of a pipeline: all micro-batches forward, then all backward.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism"
(NeurIPS 2019), figure 2c. Nothing says when an operation runs: TensorFlow starts it when its inputs
are there. So stage 1 computes the first micro-batch while stage 0 computes the second one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist import compat
from tfdist.step.adding import added
from tfdist.structures import Gradient

Stage = Callable[[tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class _Passed:
    """A micro-batch that has passed a stage."""

    tape: tf.GradientTape
    entered: tf.Tensor
    left: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Computes a chain of stages, each on its own device.

    Attributes:
        stages: from a tensor to a tensor. The first dimension is that of samples, which stages must
            not mix.
        devices: one for each stage.
        micro_batches: how many parts a batch is cut into.
    """

    stages: Sequence[Stage]
    devices: Sequence[str]
    micro_batches: int

    def run(self, batch: tf.Tensor) -> tf.Tensor:
        """What the last stage returns for the whole `batch`.

        The loss is computed from the whole output, as without a pipeline, so that any loss is
        right. The gradients of micro-batches are added up on the devices of their weights.
        """
        size = batch.shape[0]
        count = self.micro_batches if size is None else max(1, min(self.micro_batches, size))
        masks: list = []

        @tf.custom_gradient
        def forward(batch: tf.Tensor) -> tuple[tf.Tensor, Callable]:
            sizes = _sizes(batch, count)
            passed = [self._forward(part) for part in tf.split(batch, sizes)]
            outputs = [steps[-1].left for steps in passed]
            masks.extend(compat.mask_of(output) for output in outputs)

            def backward(
                gradient: tf.Tensor, variables: Sequence[tf.Variable] = ()
            ) -> tuple[Gradient | None, list[Gradient | None]] | Gradient | None:
                sums = _Sums(variables)
                parts = tf.split(gradient, sizes)
                of_parts = [self._backward(*both, sums) for both in zip(passed, parts)]
                of_batch = None if of_parts[0] is None else _once(tf.concat(of_parts, 0))
                return (of_batch, sums.done()) if variables else of_batch

            with tf.device(self.devices[-1]):
                return tf.concat(outputs, 0), backward

        samples = tf.shape(batch)[0]
        if size is None:
            batch = _filled(batch, count)
        output = forward(batch)
        mask = None if masks[0] is None else tf.concat(masks, 0)
        if size is None:  # the gradient of what is cut off is zero
            output, mask = output[:samples], None if mask is None else mask[:samples]
        compat.set_mask(output, mask)
        return output

    def _forward(self, part: tf.Tensor) -> list[_Passed]:
        steps = []
        for stage, device in zip(self.stages, self.devices):
            with tf.device(device), tf.GradientTape(persistent=True) as tape:
                if part.dtype.is_floating:
                    tape.watch(part)
                left = stage(part)
            steps.append(_Passed(tape, part, left))
            part = left
        return steps

    def _backward(
        self, passed: Sequence[_Passed], gradient: tf.Tensor | None, sums: _Sums
    ) -> tf.Tensor | None:
        """Adds the gradients of one micro-batch to `sums`.

        Args:
            passed: the micro-batch at each stage.
            gradient: the gradient by what the last stage returned.
            sums: of all micro-batches.

        Returns:
            The gradient by what the first stage was given; None where there is none.
        """
        for step, device in zip(reversed(passed), reversed(self.devices)):
            if gradient is None:  # an earlier stage has no part in the output
                break
            by_input = [step.entered] if step.entered.dtype.is_floating else []
            with tf.device(device):
                gradients = step.tape.gradient(
                    step.left, [*sums.variables, *by_input], output_gradients=gradient
                )
            gradient = gradients.pop() if by_input else None
            sums.add(gradients)
        return gradient


def _filled(batch: tf.Tensor, count: int) -> tf.Tensor:
    """`batch` with at least `count` samples: its first one is repeated at the end.

    On CPUs a convolution of no samples ends the process.
    """
    missing = tf.maximum(count - tf.shape(batch)[0], 0)
    return tf.concat([batch, tf.repeat(batch[:1], missing, axis=0)], 0)


def _sizes(batch: tf.Tensor, count: int) -> list[int] | tf.Tensor:
    """The numbers of samples of `count` micro-batches: they differ by at most one."""
    size = batch.shape[0]
    if size is not None:
        return [size // count + (number < size % count) for number in range(count)]
    samples = tf.shape(batch)[0]
    sizes = samples // count + tf.cast(tf.range(count) < samples % count, tf.int32)
    return tf.ensure_shape(sizes, [count])


class _Sums:
    """Sums of gradients, each on the device of its variable.

    Args:
        variables: those that TensorFlow asks about; not all of them are trained.
    """

    def __init__(self, variables: Sequence[tf.Variable]):
        self.variables = [variable for variable in variables if variable.dtype.is_floating]
        self._sums: dict[int, Gradient] = {}
        self._asked = variables

    def add(self, gradients: Sequence[Gradient | None]) -> None:
        """Adds gradients by `variables`; None where a variable has none."""
        for variable, gradient in zip(self.variables, gradients):
            if gradient is not None:
                with tf.device(variable.device):
                    self._sums[id(variable)] = added(self._sums.get(id(variable)), gradient)

    def done(self) -> list[Gradient | None]:
        """The sums for all variables that were asked about; None where there is none."""
        sums = [self._sums.get(id(variable)) for variable in self._asked]
        return [total if total is None else _once(total) for total in sums]


def _once(gradient: Gradient) -> Gradient:
    """`gradient`, of which no further gradient can be taken: the tapes above do not see it all."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_once(gradient.values), gradient.indices, gradient.dense_shape)
    return _refusing_gradients(gradient)


@tf.custom_gradient
def _refusing_gradients(gradient: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    def refuse(_: tf.Tensor) -> tf.Tensor:
        raise ValueError(
            "A pipeline has first gradients only. Take gradients of gradients, as a gradient "
            "penalty does, with the plain model. Received: a gradient of a gradient"
        )

    return tf.identity(gradient), refuse
