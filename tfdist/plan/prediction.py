"""Predicts a step for a strategy and its options on a number of workers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from tfdist.local.choices import LocalSteps
from tfdist.plan import collectives, memory, sharded_time, step_time
from tfdist.plan.machine import Machines
from tfdist.plan.workload import Device, Message, Workload

Messages = Callable[[str | None, int, Workload], Sequence[Message]]
"""What travels, by the name of the compression, the number of ranks and the model."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A strategy with its options.

    Attributes:
        strategy: the name of a backend.
        compression: the name of a compressor, or None.
        local: how replicas train apart, or None.
        sharding: what is divided among the ranks, or None.
        exchange: "ring" or "hierarchical".
        reducers: the number of processes that only sum, besides the workers.
    """

    strategy: str
    compression: str | None = None
    local: LocalSteps | None = None
    sharding: str | None = None
    exchange: str = "ring"
    reducers: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether training has the result of one device."""
        changes = self.compression is not None or self.local is not None
        return not changes and self.strategy != "parameter_server"

    @property
    def kinds(self) -> tuple[str, ...]:
        """What a model may not go with: its strategy, and its options, with values and without."""
        given = (f"{name}={value}" for name, value in self.options.items())
        return self.strategy, *self.settings, *given

    @property
    def options(self) -> dict[str, str]:
        """The options that differ from the defaults, as they are written."""
        given: dict[str, str] = {}
        for name in ("compression", "sharding"):
            if (value := getattr(self, name)) is not None:
                given[name] = f'"{value}"'
        if self.local is not None:
            given["local"] = _written(self.local)
        if self.exchange != "ring":
            given["exchange"] = f'"{self.exchange}"'
        return given

    @property
    def settings(self) -> dict[str, str]:
        """The options, and what `tfdist run` is given."""
        return self.options | ({"reducers": str(self.reducers)} if self.reducers else {})

    @property
    def code(self) -> str:
        """The line of code that makes the strategy."""
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        return f'tfdist.Strategy("{self.strategy}"{options})'

    @property
    def title(self) -> str:
        """The line of code, and what else is to be started, for a sentence."""
        return f"{self.code} with {self.reducers} reducers" if self.reducers else self.code


def _written(local: LocalSteps) -> str:
    """The call that makes it, without the defaults."""
    fields = dataclasses.fields(local)
    values = ((field, getattr(local, field.name)) for field in fields)
    given = [f"{field.name}={value!r}" for field, value in values if value != field.default]
    return f"tfdist.{type(local).__name__}({', '.join(given)})"


ONE_DEVICE = Candidate("one device")


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a candidate brings on a number of workers.

    Attributes:
        candidate: the strategy with its options.
        workers: the number of workers.
        batch: the samples of each worker in a step; the mean where they differ.
        step: seconds.
        efficiency: samples per second, divided by those of one device times the workers.
        sent: the bytes that a worker sends in a step; the mean where steps differ.
        memory: bytes of weights, gradients, slots and activations of a worker.
        machines: the number of machines, with those of parameter servers and their chief, and of
            reducers.
    """

    candidate: Candidate
    workers: int
    batch: float
    step: float
    efficiency: float
    sent: float
    memory: float
    machines: int

    @property
    def global_batch(self) -> int:
        """The samples of all workers in a step."""
        return round(self.workers * self.batch)

    @property
    def samples_per_update(self) -> int:
        """What `fit` takes as `batch_size`: with parameter servers the batch of one worker."""
        is_one = self.candidate.strategy == "parameter_server"
        return math.ceil(self.batch) if is_one else self.global_batch

    def epoch_seconds(self, samples: int) -> float:
        """The seconds of so many samples, in whole steps; with parameter servers whole updates."""
        if self.candidate.strategy != "parameter_server":
            return -(-samples // self.global_batch) * self.step
        updates = -(-samples * self.workers // self.global_batch)
        return max(1.0, updates / self.workers) * self.step

    @property
    def samples_per_second(self) -> float:
        """Of all workers."""
        return self.workers * self.batch / self.step


@dataclasses.dataclass(frozen=True)
class Planner:
    """Predicts steps of one model on one kind of machines.

    Attributes:
        workload: the model.
        messages: what travels.
        device: how long one device computes.
        machines: what the workers run on.
        strong: whether the batch is divided among the workers; otherwise each has one.
        servers: the number of parameter servers.
    """

    workload: Workload
    messages: Messages
    device: Device
    machines: Machines
    strong: bool = False
    servers: int = 1

    def alone(self) -> Prediction:
        """One device."""
        return self.predict(ONE_DEVICE, 1)

    def predict(self, candidate: Candidate, workers: int) -> Prediction:
        """What the candidate brings on so many workers."""
        batch = self.device.batch / (workers if self.strong else 1)
        # Parts of a batch are whole samples, and all wait for the largest one.
        slowest = -(-self.device.batch // workers) if self.strong else batch
        slowdown = self.machines.slowdown_of(workers)
        costs = self.machines.costs
        parts = self.device.parts(self.workload, slowest, costs.update, slowdown)
        if workers > 1:
            further = slowdown * costs.variable * len(self.workload.variables)
            parts = (parts[0] + further, *parts[1:])
        step, sent = self._exchanged(candidate, workers, parts)
        alone = self.device.batch / self.device.seconds(self.device.batch)
        return Prediction(
            candidate,
            workers,
            batch,
            step,
            workers * batch / step / (workers * alone),
            sent,
            self._memory(candidate, workers, slowest),
            self._count_of_machines(candidate, workers),
        )

    def _count_of_machines(self, candidate: Candidate, workers: int) -> int:
        hosts = self.machines.hosts(workers)
        # Workers of one host reach parameter servers over that host's own link: all are there.
        is_apart = candidate.strategy == "parameter_server" and hosts > 1
        return hosts + (self.servers + 1 if is_apart else 0) + candidate.reducers

    def _memory(self, candidate: Candidate, workers: int, samples: float) -> float:
        messages: Sequence[Message] = ()
        if candidate.compression is not None:  # which keeps something of tables with rows too
            dense = self.workload.without_rows()
            messages = self.messages(candidate.compression, workers, dense)
        return memory.bytes_per_rank(
            self.workload,
            workers,
            candidate.sharding,
            samples,
            candidate.local,
            residual=sum(message.dense for message in messages if message.has_residual),
            has_slots=candidate.strategy != "parameter_server",
        )

    def _exchanged(
        self, candidate: Candidate, workers: int, parts: tuple[float, float, float]
    ) -> tuple[float, float]:
        """Seconds of a step, and the bytes that a worker sends."""
        if candidate.strategy == "parameter_server":
            size = self.workload.trained_bytes
            link = self.machines.between(workers)
            shared = min(self.machines.per_host, workers) if self.machines.hosts(workers) > 1 else 1
            step = step_time.with_parameter_servers(
                parts, size, workers, self.servers, link, shared
            )
            return step, float(size)
        if workers == 1:
            return sum(parts), 0.0
        if candidate.sharding is not None:
            return self._sharded(candidate, workers, parts)
        travels = self.workload if candidate.local is None else self.workload.without_rows()
        messages = self.messages(candidate.compression, workers, travels)
        carried = [
            step_time.by_reducers(message, workers, self.machines, candidate.reducers)
            if candidate.reducers and message.is_for_reducers
            else self._carriage(message, candidate, workers)
            for message in messages
        ]
        sent = sum(way.sent for way in carried)
        if candidate.local is not None:
            step = step_time.with_local_steps(parts, carried, candidate.local)
            return step, sent / candidate.local.updates
        return step_time.synchronous(parts, messages, carried, self.machines.costs.early), sent

    def _carriage(self, message: Message, candidate: Candidate, workers: int) -> step_time.Carriage:
        of = candidate.exchange, candidate.strategy
        return step_time.carriage(message, workers, self.machines, *of)

    def _sharded(
        self, candidate: Candidate, workers: int, parts: tuple[float, float, float]
    ) -> tuple[float, float]:
        """As `_exchanged`, with `sharding`, where rows never travel as tables."""
        with_rows = dataclasses.replace(self.workload, rows_are_summed=False)
        messages = self.messages(None, workers, with_rows)
        tables = [
            Message(variable.nbytes, variable.nbytes, variable.ready)
            for variable in self.workload.variables
            if variable.rows is not None
        ]
        carried, of_tables = (
            [self._carriage(message, candidate, workers) for message in some]
            for some in (messages, tables)
        )
        hosts = self.machines.hosts(workers)
        scattering, gathering = (
            collectives.factor(candidate.strategy, operation, workers, hosts)
            for operation in ("sum of a part", "gather")
        )
        exchange = sharded_time.Exchange(messages, carried, of_tables, (scattering, gathering))
        in_parts = candidate.sharding == "parameters"
        step = sharded_time.with_weights_in_parts if in_parts else sharded_time.sharded
        return step(parts, exchange, workers, self.machines.costs.early)
