"""The time of an update where the weights are on parameter servers.

A worker reads the weights, computes, and sends its gradient. The links of the servers carry that of
all workers, and the link of a host that of its workers. The servers decode gradients, make updates
and encode weights one after the other. Each server does its part of all of that, at the same time
as the others. Where the chief makes the updates, its work for each gradient adds up too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdist.plan import codecs, step_time
from tfdist.plan.alpha_beta import Link
from tfdist.plan.machine import Costs
from tfdist.plan.workload import Message

# Seconds of a chief that makes the updates for each gradient: in docs/parameter_server.md a step of
# `Synchronous()` with 4 parts takes 344 ms where the slowest worker sleeps for 320 ms.
CHIEF = 0.006


@dataclasses.dataclass(frozen=True)
class Way:
    """What travels one way between a worker and the servers, for an update.

    Attributes:
        nbytes: the bytes.
        encoding: seconds of the cores that send.
        decoding: seconds of the cores that receive.
        carrying: seconds of the cores at each end for the bytes themselves.
    """

    nbytes: float
    encoding: float = 0.0
    decoding: float = 0.0
    carrying: float = 0.0


@dataclasses.dataclass(frozen=True)
class Servers:
    """How workers reach the servers.

    Attributes:
        count: the number of parameter servers, which have equal parts of the weights.
        workers: the number of workers.
        link: of each host.
        shared: the number of workers that share the link of their host.
        chief: seconds of the chief for each gradient.
    """

    count: int
    workers: int
    link: Link
    shared: int = 1
    chief: float = 0.0

    @property
    def busiest(self) -> float:
        """How many times the busiest link carries what goes one way for one worker."""
        return max(self.workers / self.count, self.shared)


def way_of(messages: Sequence[Message], costs: Costs, slowdown: float = 1.0) -> Way:
    """How gradients or weights travel.

    Args:
        messages: as between replicas. Rows travel as they are.
        costs: of the cores.
        slowdown: for how many times as long the cores compute as those of one device.
    """
    nbytes = sum(message.dense if message.is_rows else message.payload for message in messages)
    coded = [message for message in messages if not message.is_rows]
    times = [codecs.seconds(message.compressor, message.dense, 1) for message in coded]
    kept = sum(message.dense for message in coded if message.has_residual)
    encoding, decoding = (costs.codec * sum(some) for some in zip(*times, (0.0, 0.0)))
    return Way(
        nbytes,
        slowdown * (encoding + costs.residual * kept),
        slowdown * decoding,
        slowdown * costs.tensorflow * nbytes / 2,  # as in a ring, for what goes in and out
    )


def asynchronous(
    parts: tuple[float, float, float], pushed: Way, pulled: Way, servers: Servers
) -> float:
    """The mean seconds between two updates of one worker, without waiting for the others.

    Args:
        parts: the seconds of the forward pass, the backward pass and the update on one device.
        pushed: the gradient.
        pulled: the weights.
        servers: how they are reached.
    """
    forward, backward, update = parts
    served = (_of_servers(pushed, pulled) + update) / servers.count
    alone = step_time.with_parameter_servers(
        (forward + _of_worker(pushed, pulled), backward, served + servers.chief),
        (pushed.nbytes + pulled.nbytes) / 2,
        servers.workers,
        servers.count,
        servers.link,
        servers.shared,
    )
    # A link carries both directions at the same time.
    on_link = servers.busiest * servers.link.beta * max(pushed.nbytes, pulled.nbytes)
    return max(alone, on_link, servers.workers * max(served, servers.chief))


def synchronous(
    parts: tuple[float, float, float], pushed: Way, pulled: Way, servers: Servers
) -> float:
    """The seconds of an update that all workers make together; as `asynchronous`.

    All workers read at the same time, and then all send.
    """
    forward, backward, update = parts
    link, workers = servers.link, servers.workers
    on_links = max(1.0, servers.busiest) * link.beta * (pushed.nbytes + pulled.nbytes)
    served = (workers * _of_servers(pushed, pulled) + update) / servers.count
    worked = forward + backward + _of_worker(pushed, pulled)
    return worked + 2 * link.alpha + on_links + served + workers * servers.chief


def _of_worker(pushed: Way, pulled: Way) -> float:
    return pushed.encoding + pulled.decoding + pushed.carrying + pulled.carrying


def _of_servers(pushed: Way, pulled: Way) -> float:
    """What the servers do for a gradient of one worker, besides the update.

    Of coded differences they decode what they send, to know what the worker has.
    """
    coded = pushed.decoding + pulled.encoding + pulled.decoding
    return coded + pushed.carrying + pulled.carrying
