"""The time of a step: the exchange of its gradients, beside the backward pass as far as it goes.

A message leaves when its gradients are there and the link is free. The link is busy with the bytes
of the message; its rounds also wait for the latency, during which the next messages travel, up to
a number of operations that are under way. The cores encode a message before it leaves and decode
its sum. On a CPU they are also busy with what travels, and compute more slowly meanwhile. A
variable is updated when its sum is there and the backward pass has ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdist.compression.traffic import sent_bytes
from tfdist.local.choices import LocalSteps
from tfdist.plan import codecs, collectives
from tfdist.plan.algorithms import cost
from tfdist.plan.alpha_beta import Link
from tfdist.plan.machine import Machines
from tfdist.plan.workload import Message

# As many operations of a step as tfdist's engines have under way.
UNDER_WAY = 8
# The number of the sum, a piece to a reducer, and its sum back.
ROUNDS_OF_REDUCERS = 3


@dataclasses.dataclass(frozen=True)
class Carriage:
    """How one message travels.

    Attributes:
        busy: seconds for which the link is busy with it.
        latency: seconds of its rounds beyond those.
        encoding: seconds of the cores before it leaves.
        decoding: seconds of the cores after it has arrived.
        sent: the bytes that the busiest link of a rank carries.
        cores: seconds of the cores while the link is busy.
        summed: seconds that the bytes need on the link, if they are a sum of all ranks; else 0.
    """

    busy: float
    latency: float
    encoding: float
    decoding: float
    sent: float
    cores: float
    summed: float = 0.0


def carriage(
    message: Message, ranks: int, machines: Machines, exchange: str, strategy: str
) -> Carriage:
    """How a message travels between so many ranks.

    Args:
        message: what each rank hands in.
        ranks: the number of ranks.
        machines: what the ranks run on.
        exchange: "ring" or "hierarchical", as the option of the strategies.
        strategy: the name of the backend.
    """
    groups, inner = ranks, 0.0
    is_gathered = message.aggregation == "gather"
    # The rows of sparse gradients are gathered by all ranks.
    if exchange == "hierarchical" and not message.is_rows:
        groups = machines.hosts(ranks)
        inner_cost = cost("ring", -(-ranks // groups))
        inner = inner_cost.carried * message.dense * machines.inside.beta
    link = machines.between(ranks)
    sent = sent_bytes(message.payload, message.aggregation, groups)
    rounds = cost("ring", groups).rounds * message.exchanges
    if is_gathered:
        rounds //= 2
    costs, slowdown = machines.costs, machines.slowdown_of(ranks)
    are_halves = message.compressor == "fp16" and not message.is_rows
    # Two ranks add up two vectors of halves. More ranks add up parts in float32: each converts as
    # many halves as one vector has (`engines/halves.py`).
    converted = (2 if ranks == 2 else 1) * message.payload if are_halves else 0.0
    cores = sent * costs.per_byte(strategy, slowdown) + slowdown * converted * costs.halves
    # What the cores do for a piece of a message, and its way over the link, follow each other.
    longer = _longer(strategy, ranks, machines.hosts(ranks)) if are_halves else 1.0
    # Horovod fuses its sums of float32 only. A thread gets its turn while bytes are on their way.
    is_alone = are_halves and strategy == "horovod"
    turn = (machines.on_a_core - 1) * costs.turn if is_alone else 0.0
    busy = max(longer * sent * link.beta, turn) + cores + inner
    gathered = groups if is_gathered else 1
    encoding, decoding = codecs.seconds(message.compressor, message.dense, gathered)
    factor = slowdown * costs.codec
    residual = slowdown * costs.residual * message.dense if message.has_residual else 0.0
    adding, packing = slowdown * costs.per_byte_of_rows(strategy) * message.dense * gathered, 0.0
    if not message.is_rows:
        adding, packing = 0.0, slowdown * costs.per_tensor(strategy) * message.tensors
    return Carriage(
        busy,
        rounds * link.alpha,
        factor * encoding + residual + packing / 2,
        factor * decoding + adding + packing / 2,
        sent,
        cores,
        0.0 if is_gathered else sent * link.beta,
    )


def _longer(strategy: str, ranks: int, hosts: int) -> float:
    """How many times as long the link is busy with sums of parts that are gathered again."""
    if ranks == 2:
        return 1.0
    operations = ("sum of a part", "gather")
    return sum(collectives.factor(strategy, one, ranks, hosts) for one in operations) / 2


def by_reducers(message: Message, ranks: int, machines: Machines, reducers: int) -> Carriage:
    """How a message travels that reducers sum, each on a machine of its own.

    Each worker sends it once and receives the sum. The link of a host carries what its workers
    send, that of a reducer its part of what all workers send.

    Args:
        message: what each rank hands in.
        ranks: the number of workers.
        machines: what the workers run on.
        reducers: the number of reducers.
    """
    shared = max(min(machines.per_host, ranks), ranks / reducers)
    hosts = machines.hosts(ranks) + reducers
    longer = collectives.factor("multi_worker", "sum by reducers", ranks, hosts)
    on_link = longer * shared * message.payload * machines.link.beta
    direct = carriage(message, ranks, machines, "ring", "multi_worker")
    cores = direct.cores * message.payload / direct.sent
    return dataclasses.replace(
        direct,
        busy=on_link + cores,
        latency=ROUNDS_OF_REDUCERS * message.exchanges * machines.link.alpha,
        sent=message.payload,
        cores=cores,
    )


def synchronous(
    parts: tuple[float, float, float],
    messages: Sequence[Message],
    carried: Sequence[Carriage],
    early: float = 1.0,
) -> float:
    """The seconds of a step whose gradients are exchanged.

    Args:
        parts: the seconds of the forward pass, the backward pass and the update on one device.
        messages: what travels, in the order in which it is ready.
        carried: how each of the messages travels.
        early: as in `Costs`.
    """
    forward, backward, update = parts
    cores, free, before = forward, 0.0, 0.0
    arrived: list[float] = []
    for message, way in zip(messages, carried):
        ready = 1 - early * (1 - message.ready)
        cores += _computed(backward * (ready - before), cores, free, arrived, carried)
        cores, before = cores + way.encoding, ready
        waits_for = arrived[-UNDER_WAY] if len(arrived) >= UNDER_WAY else 0.0
        free = max(cores, free, waits_for) + way.busy
        arrived.append(free + way.latency)
    cores += _computed(backward * (1 - before), cores, free, arrived, carried)
    dense = sum(message.dense for message in messages) or 1
    for message, way, time in zip(messages, carried, arrived):
        cores = max(cores, time) + way.decoding + update * message.dense / dense
    return cores if messages else cores + update


def _computed(
    seconds: float,
    start: float,
    free: float,
    arrived: Sequence[float],
    carried: Sequence[Carriage],
) -> float:
    """How long the cores take for so many seconds of computing, from `start` on.

    While the link is busy, until `free`, the cores also work for the link.
    """
    if not arrived or free <= start:
        return seconds
    last = carried[len(arrived) - 1]
    share = last.cores / last.busy if last.busy else 0.0
    left = 1 - share
    beside = min(seconds, (free - start) * left)
    return seconds - beside + beside / left if left > 0 else seconds + (free - start)


def exchanged_alone(carried: Sequence[Carriage]) -> float:
    """The seconds of an exchange with nothing beside it."""
    work = sum(way.encoding + way.decoding for way in carried)
    busy = sum(way.busy for way in carried)
    latencies = sum(way.latency for way in carried)
    longest = max((way.latency for way in carried), default=0.0)
    return work + max(busy + longest, latencies / UNDER_WAY)


def with_local_steps(
    parts: tuple[float, float, float], carried: Sequence[Carriage], local: LocalSteps
) -> float:
    """The mean seconds of a step where replicas train apart.

    Args:
        parts: as for `synchronous`.
        carried: how the messages with all weights travel, once in a round.
        local: the option of the strategy. What it does before its first round is left out.
    """
    computing = sum(parts)
    exchange = exchanged_alone(carried)
    work = sum(way.encoding + way.decoding + way.cores for way in carried)
    # With `overlap` only the cores' work is left, unless a fragment takes longer than the steps
    # beside it.
    beside = local.fragments * local.overlap * computing
    visible = max(work, exchange - beside) if local.overlap else exchange
    return computing + visible / local.updates


def with_parameter_servers(
    parts: tuple[float, float, float],
    size: float,
    workers: int,
    servers: int,
    link: Link,
    shared: int = 1,
) -> float:
    """The mean seconds between two gradients of one worker, without waiting for the others.

    A worker reads the weights, computes, and sends its gradient. The links of the servers carry the
    weights of all workers; the link of a host carries those of its workers.

    Args:
        parts: as for `synchronous`.
        size: the bytes of the weights.
        workers: the number of workers.
        servers: the number of parameter servers, which have equal parts of the weights.
        link: of each host.
        shared: the number of workers that share the link of their host.
    """
    alone = sum(parts) + 2 * (link.alpha + size * link.beta)
    return max(alone, workers * size * link.beta / servers, shared * size * link.beta)
