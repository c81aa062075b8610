"""Reduction servers: ranks that hold no model, and sum what the workers send them.

Each worker sends a part of its vector to each server, and gets the sum of that part back: a vector
in each direction of its link, where a ring between N workers sends 2(N-1)/N of one. The idea is in
Jiang et al., "A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous
GPU/CPU Clusters" (OSDI 2020).
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from benchmarks.all_reduce.execution import Messages
from tfdist.engines.processes import Processes

# How many pieces a rank sends at once.
AHEAD = 2


def workers_of(ranks: int, workers: int) -> list[int]:
    """The ranks that are workers: every second one, if there are as many servers as workers.

    Horovod's all-to-all works in rounds, in which rank r sends to r+k. Both directions of a link
    are used in each round only if workers and servers alternate.
    """
    return list(range(0, ranks, 2)) if ranks == 2 * workers else list(range(workers))


def by_messages(
    processes: Processes, messages: Messages, workers: list[int], pieces: int
) -> Callable[[tf.Tensor], tf.Tensor]:
    """The same by messages between two ranks.

    A rank sends a piece to all others once they have taken the piece before the last one. So the
    first pieces are summed, and sent back, while the next ones are on their way.

    Args:
        processes: of the job.
        messages: of this process.
        workers: their ranks.
        pieces: into how many the vector is cut.
    """
    rank = processes.rank
    servers = [other for other in range(processes.size) if other not in workers]

    def exchange(vector: tf.Tensor) -> tf.Tensor:
        part = vector.shape[0] // pieces // len(servers)
        parts = tf.reshape(vector, [pieces, len(servers), part])
        taken: list[list[tf.Tensor]] = []
        result = []
        for number in range(pieces):
            with tf.control_dependencies(taken[number - AHEAD] if number >= AHEAD else []):
                up = {
                    (worker, server): messages.message(
                        worker, server, part, tf.identity(parts[number, place])
                    )
                    for worker in workers
                    for place, server in enumerate(servers)
                }
            if rank in workers:
                taken.append([up[rank, server] for server in servers])
                summed = vector[:0]
            else:
                summed = tf.add_n([up[worker, rank] for worker in workers])
            with tf.control_dependencies(
                taken[number - AHEAD] if number >= AHEAD and rank in servers else []
            ):
                down = {
                    (server, worker): messages.message(server, worker, part, tf.identity(summed))
                    for server in servers
                    for worker in workers
                }
            if rank in workers:
                result += [down[server, rank] for server in servers]
            else:
                taken.append([down[rank, worker] for worker in workers])
        with tf.control_dependencies([one for piece in taken for one in piece]):
            return tf.concat(result, axis=0) if rank in workers else tf.zeros([0])

    return exchange


def by_alltoall(
    processes: Processes, workers: list[int], pieces: int
) -> Callable[[tf.Tensor], tf.Tensor]:
    """The same by Horovod's all-to-all, which is one operation for all ranks.

    In operation i the workers send piece i to the servers, while these send back the sums of piece
    i - 1.

    Args:
        processes: of the job.
        workers: their ranks.
        pieces: into how many the vector is cut.
    """
    import horovod.tensorflow as hvd

    rank, size = processes.rank, processes.size
    servers = [other for other in range(size) if other not in workers]
    nothing = tf.zeros([0])

    def exchange(vector: tf.Tensor) -> tf.Tensor:
        piece = vector.shape[0] // pieces
        part = piece // len(servers)
        received, sums = nothing, []
        for number in range(pieces + 1):
            first, last = number == 0, number == pieces
            if rank in workers:
                sent = nothing if last else vector[number * piece : (number + 1) * piece]
                splits = [0 if last or other in workers else part for other in range(size)]
            else:
                sent = nothing if first else tf.tile(received, [len(workers)])
                splits = [part if other in workers and not first else 0 for other in range(size)]
            with tf.control_dependencies([received]):
                arrived, _ = hvd.alltoall(sent, splits=splits, name=f"servers_{number}")
            if rank in workers:
                received = arrived
                sums += [] if first else [arrived]
            elif not last:
                received = tf.reduce_sum(tf.reshape(arrived, [len(workers), part]), axis=0)
        return tf.concat(sums, axis=0) if rank in workers else received

    return exchange
