"""Sums by reducers with Horovod, which tfdist does not offer: they take longer than a ring."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfdist.engines.processes import Processes


def workers_of(ranks: int, workers: int) -> list[int]:
    """The ranks that are workers: every second one, if there are as many servers as workers.

    Horovod's all-to-all works in rounds, in which rank r sends to r+k. Both directions of a link
    are used in each round only if workers and servers alternate.
    """
    return list(range(0, ranks, 2)) if ranks == 2 * workers else list(range(workers))


def by_alltoall(
    processes: Processes, workers: list[int], pieces: int
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Sums by Horovod's all-to-all, which is one operation for all ranks.

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

    def exchange(vector: tf.Tensor) -> tf.Tensor:
        piece = vector.shape[0] // pieces
        part = piece // len(servers)
        # TensorFlow computes what depends on constants only while it optimizes, in one rank alone.
        nothing = vector[:0]
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
