"""What a step computes and exchanges, as plain data; needs no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from tfdist.limits import LEAST_FOR_REDUCERS
from tfdist.step.tables import Tables

# An update is at most this part of a step, whatever the constants of `Costs` say.
_LARGEST_UPDATE = 0.5


@dataclasses.dataclass(frozen=True)
class TracedVariable:
    """A trained variable, and when its gradient is there.

    Attributes:
        path: the variable's path.
        shape: the variable's shape.
        dtype: the name of its dtype.
        itemsize: bytes of an element.
        ready: the part of the backward pass after which the gradient is there, 0 to 1.
        rows: the number of rows of a sparse gradient; None for a dense one.
        rows_are_fixed: whether a batch looks up as many rows whatever its size is, as of a table of
            positions.
        is_divided: whether replicas may keep parts of it.
        is_regularized: whether its values are part of the loss.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    ready: float
    rows: int | None = None
    is_divided: bool = False
    is_regularized: bool = False
    rows_are_fixed: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes of the variable."""
        return math.prod(self.shape) * self.itemsize

    @property
    def gradient_bytes(self) -> int:
        """The bytes of the gradient; of a sparse one, of its rows."""
        return self.nbytes if self.rows is None else self.rows * self._row_bytes

    def of_samples(self, samples: float, batch: int) -> TracedVariable:
        """The same with the rows that so many samples look up, of those of a batch."""
        if self.rows is None or self.rows_are_fixed:
            return self
        return dataclasses.replace(self, rows=math.ceil(self.rows * samples / batch))

    @property
    def _row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.itemsize


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model that is trained, as one trace has shown it.

    Attributes:
        batch: samples of a step.
        variables: the trained variables, in the order of the model.
        forward: the part of the forward and backward pass that is forward, 0 to 1.
        slot_bytes: the bytes that the optimizer keeps.
        frozen_bytes: the bytes of variables that are not trained.
        tables: what may travel in place of the rows of sparse gradients.
        moments: those of the passes with most bytes for `batch` samples, as in
            `tfdist.memory.sizes`.
        updates_whole: whether the optimizer looks at whole variables. With `sharding` each of them
            belongs to one rank then.
        is_eager: whether steps run eagerly.
        accumulation_steps: how many micro-batches an update has.
        unknown: how many tensors of the passes have sizes that depend on the data. They count
            nothing.
    """

    batch: int
    variables: tuple[TracedVariable, ...]
    forward: float
    slot_bytes: int
    frozen_bytes: int = 0
    tables: Tables = Tables.NONE
    moments: tuple[tuple[int, int], ...] = ()
    updates_whole: bool = False
    is_eager: bool = False
    accumulation_steps: int = 1
    unknown: int = 0

    @property
    def trained_bytes(self) -> int:
        """The bytes of all trained variables."""
        return sum(variable.nbytes for variable in self.variables)

    @property
    def activation_bytes(self) -> int:
        """The most bytes beside the gradients that the passes have at a time."""
        return max((others for others, _ in self.moments), default=0)

    def of_samples(self, samples: float) -> Workload:
        """The same with another number of samples: activations and rows grow with them.

        Args:
            samples: of a rank in a step, more than 0.
        """
        part = samples / self.batch
        if part == 1:
            return self
        variables = tuple(v.of_samples(samples, self.batch) for v in self.variables)
        dense = sum(v.gradient_bytes for v in variables if v.rows is None)
        rows, fewer = (
            sum(v.gradient_bytes for v in some if v.rows is not None)
            for some in (self.variables, variables)
        )
        # Tables are the first layers, as a rule: their gradients come when all others are there.
        shrinking = 1 - fewer / max(1, rows)
        moments = tuple(
            (round(part * others), own - round(shrinking * max(0, own - dense)))
            for others, own in self.moments
        )
        return dataclasses.replace(
            self, batch=math.ceil(samples), variables=variables, moments=moments
        )

    def at_once(self) -> Workload:
        """The same where no gradient is there before all are."""
        later = (dataclasses.replace(variable, ready=1.0) for variable in self.variables)
        return dataclasses.replace(self, variables=tuple(later))

    def without_rows(self) -> Workload:
        """The same with dense gradients only: of weights that travel, or of accumulated ones."""
        if all(variable.rows is None for variable in self.variables):
            return self
        dense = (dataclasses.replace(variable, rows=None) for variable in self.variables)
        return dataclasses.replace(self, variables=tuple(dense))


@dataclasses.dataclass(frozen=True)
class Message:
    """Gradients that travel in one operation.

    Attributes:
        payload: the bytes that a replica hands in.
        dense: the bytes of the gradients that the payload stands for.
        ready: the part of the backward pass after which all of them are there.
        aggregation: whether payloads are summed on the way, or each must reach everyone.
        exchanges: how many operations follow each other, with the payload divided among them.
        compressor: the name of what codes the gradients; None if they travel as they are.
        has_residual: whether error feedback keeps what is not sent.
        is_rows: whether these are the rows of a sparse gradient.
        tensors: how many gradients these are.
    """

    payload: int
    dense: int
    ready: float
    aggregation: Literal["sum", "gather"] = "sum"
    exchanges: int = 1
    compressor: str | None = None
    has_residual: bool = False
    is_rows: bool = False
    tensors: int = 1

    @property
    def is_for_reducers(self) -> bool:
        """Whether reducers sum it, where there are some."""
        is_long = self.payload >= self.exchanges * LEAST_FOR_REDUCERS
        return self.aggregation == "sum" and is_long


@dataclasses.dataclass(frozen=True)
class Device:
    """How long one device computes.

    Attributes:
        step: seconds of a step with `batch` samples, alone: forward, backward and update.
        batch: the samples of this step.
        fixed: the seconds of these that do not depend on the batch.
    """

    step: float
    batch: int
    fixed: float = 0.0

    def seconds(self, batch: float) -> float:
        """The seconds of a step with so many samples."""
        return self.fixed + (self.step - self.fixed) * batch / self.batch

    def parts(
        self, workload: Workload, batch: float, update_per_byte: float, slowdown: float = 1.0
    ) -> tuple[float, float, float]:
        """The seconds of the forward pass, of the backward pass and of the update.

        Args:
            workload: what is trained.
            batch: the number of samples.
            update_per_byte: seconds of the update for each byte of trained weights.
            slowdown: for how many times as long the device computes as alone.
        """
        whole = slowdown * self.seconds(batch)
        update = slowdown * update_per_byte * workload.trained_bytes
        update = min(update, _LARGEST_UPDATE * whole)
        passes = whole - update
        return workload.forward * passes, (1 - workload.forward) * passes, update
