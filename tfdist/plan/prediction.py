"""Predicts a step for a strategy and its options on a number of workers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from tfdist.plan import collectives, memory, server_time, sharded_time, step_time
from tfdist.plan.candidate import ONE_DEVICE, Candidate, Compression
from tfdist.plan.machine import Machines
from tfdist.plan.workload import Device, Message, Workload
from tfdist.step.tables import Tables

Messages = Callable[[Compression, int, Workload], Sequence[Message]]
"""What travels, by the compression, the number of ranks and the model."""


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a candidate brings on a number of workers.

    Attributes:
        candidate: the strategy with its options.
        workers: the number of workers.
        batch: the samples of each worker in a step; the mean where they differ.
        step: seconds of a step of `fit`; the mean where steps differ.
        efficiency: samples per second, divided by those of one device times the workers.
        sent: the bytes that a worker sends in a step; the mean where steps differ.
        memory: bytes of weights, gradients, slots and activations of a worker.
        machines: the number of machines, with those of parameter servers and their chief, and of
            reducers.
        accumulated: how many steps make an update.
    """

    candidate: Candidate
    workers: int
    batch: float
    step: float
    efficiency: float
    sent: float
    memory: float
    machines: int
    accumulated: int = 1

    @property
    def global_batch(self) -> int:
        """The samples of all workers in a step."""
        return round(self.workers * self.batch)

    @property
    def batch_size(self) -> int:
        """What `fit` takes: the samples of all, or of one worker that makes its own updates."""
        return math.ceil(self.batch) if self.candidate.is_asynchronous else self.global_batch

    @property
    def samples_per_update(self) -> int:
        """Of an update, with all its steps."""
        return self.accumulated * self.batch_size

    def epoch_seconds(self, samples: int) -> float:
        """The seconds of so many samples, in whole steps; with parameter servers whole updates."""
        if not self.candidate.is_asynchronous:
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
        waits = workers > 1 and candidate.waits_in_each_step
        forward, backward, update = (
            self._waited(slowest, workers)
            if waits
            else self._parts(slowest, self.machines.slowdown_of(workers))
        )
        steps = self.workload.accumulation_steps
        of_worker = dataclasses.replace(self, workload=self.workload.of_samples(slowest))
        seconds, sent = of_worker._exchanged(candidate, workers, (forward, backward, update))
        step = seconds / steps
        alone = steps * self.device.batch / sum(self._parts(self.device.batch))
        return Prediction(
            candidate,
            workers,
            batch,
            step,
            workers * batch / step / (workers * alone),
            sent / steps,
            self._memory(candidate, workers, slowest),
            self._count_of_machines(candidate, workers),
            steps,
        )

    def _parts(self, samples: float, slowdown: float = 1.0) -> tuple[float, float, float]:
        """The seconds of an update on one device: its forward and backward passes, and the rest."""
        steps, costs = self.workload.accumulation_steps, self.machines.costs
        forward, backward, update = self.device.parts(
            self.workload, samples, costs.update, slowdown
        )
        return steps * forward, steps * backward, update

    def _waited(self, samples: float, workers: int) -> tuple[float, float, float]:
        """As `_parts`, of the slowest of so many workers, which all wait for."""
        parts = self._parts(samples, self.machines.slowdown_of(workers))
        forward, backward, update = parts
        late = self.machines.costs.latest(sum(parts), workers)
        share = forward / (forward + backward)
        return forward + share * late, backward + (1 - share) * late, update

    def _count_of_machines(self, candidate: Candidate, workers: int) -> int:
        hosts = self.machines.hosts(workers)
        # Workers of one host reach parameter servers over that host's own link: all are there.
        is_apart = candidate.has_servers and hosts > 1
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
            has_slots=not candidate.has_servers,
        )

    def _exchanged(
        self, candidate: Candidate, workers: int, parts: tuple[float, float, float]
    ) -> tuple[float, float]:
        """Seconds of an update, and the bytes that a worker sends."""
        if candidate.has_servers:
            return self._served(candidate, workers, parts)
        if workers == 1:
            return sum(parts), 0.0
        if candidate.sharding is not None:
            return self._sharded(candidate, workers, parts)
        messages = self.messages(candidate.compression, workers, self._exchanged_by(candidate))
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
        return step_time.synchronous(parts, messages, carried, self._early(candidate)), sent

    def _served(
        self, candidate: Candidate, workers: int, parts: tuple[float, float, float]
    ) -> tuple[float, float]:
        """As `_exchanged`, with parameter servers: rows are read and sent as rows."""
        machines = self.machines
        pushed, pulled = (
            server_time.way_of(
                self.messages(code, workers, dataclasses.replace(model, tables=Tables.NONE)),
                machines.costs,
                machines.slowdown_of(workers),
            )
            for code, model in (
                (candidate.compression, self._exchanged_by(candidate)),
                (candidate.pull_compression, self.workload),
            )
        )
        shared = min(machines.per_host, workers) if machines.hosts(workers) > 1 else 1
        accumulates = self.workload.accumulation_steps > 1
        by_chief = candidate.synchronous or candidate.compression is not None or accumulates
        servers = server_time.Servers(
            self.servers,
            workers,
            machines.between(workers),
            shared,
            server_time.CHIEF if by_chief else 0.0,
        )
        update = server_time.synchronous if candidate.synchronous else server_time.asynchronous
        # Each part of a global batch is sent by itself, so nothing is accumulated before.
        times = self.workload.accumulation_steps if candidate.synchronous else 1
        forward, backward, last = (part / times for part in parts)
        seconds = update((forward, backward, last), pushed, pulled, servers)
        return times * seconds, times * pushed.nbytes

    def _accumulates(self, candidate: Candidate) -> bool:
        """Whether nothing travels until the last step of an update.

        With `sharding="parameters"` weights and their gradients travel in each step, and gradients
        are accumulated after that.
        """
        return self.workload.accumulation_steps > 1 and candidate.sharding != "parameters"

    def _early(self, candidate: Candidate) -> float:
        """As in `Costs`. The exchange of accumulated gradients begins when all are there."""
        return 0.0 if self._accumulates(candidate) else self.machines.costs.early

    def _exchanged_by(self, candidate: Candidate) -> Workload:
        """The model, without rows where whole weights travel, or accumulated gradients."""
        is_dense = self._accumulates(candidate) or candidate.local is not None
        return self.workload.without_rows() if is_dense else self.workload

    def _carriage(self, message: Message, candidate: Candidate, workers: int) -> step_time.Carriage:
        of = candidate.exchange, candidate.strategy
        return step_time.carriage(message, workers, self.machines, *of)

    def _sharded(
        self, candidate: Candidate, workers: int, parts: tuple[float, float, float]
    ) -> tuple[float, float]:
        """As `_exchanged`, with `sharding`, where rows never travel as tables."""
        workload = dataclasses.replace(self._exchanged_by(candidate), tables=Tables.NONE)
        messages = self.messages(None, workers, workload)
        tables = [
            Message(variable.nbytes, variable.nbytes, variable.ready)
            for variable in workload.variables
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
        times = workload.accumulation_steps if in_parts else 1
        forward, backward, update = (part / times for part in parts)
        seconds, sent = step((forward, backward, update), exchange, workers, self._early(candidate))
        return times * seconds, times * sent
