"""One replica per process; the processes meet in Horovod's operations."""

from __future__ import annotations

import importlib.util
import os
import re
import weakref
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import compat
from tfdist.arguments import check_bool
from tfdist.cluster import describe
from tfdist.engines.processes import Processes
from tfdist.options import DEFAULT_BUCKET_BYTES, Compression, Options
from tfdist.strategies.multi_process import MultiProcessStrategy

HOW_TO_INSTALL = (
    "build it with `make horovod` in a checkout of tfdist (docs/horovod_install.md): a plain `pip "
    "install horovod` fails with this TensorFlow"
)


def is_installed() -> bool:
    """Whether Horovod can be found; it is not imported."""
    return importlib.util.find_spec("horovod") is not None


class HorovodStrategy(MultiProcessStrategy, tf.distribute.Strategy):
    """Synchronous training with one process per device, which Horovod connects.

    The processes are started by `horovodrun`, `mpirun` or `tfdist run --strategy horovod`. Keras
    3's `fit`, `evaluate` and `predict` run unchanged and give what one device gives. Each process
    trains on the GPU of its local rank or, where there are no GPUs, on its CPU.

    Args:
        accumulation_steps: number of micro-batches whose gradients are averaged on each replica
            before one exchange and one update.
        bucket_bytes: gradients are packed into buckets of at most this many bytes. Horovod itself
            joins buckets that wait at the same time, up to twice this many bytes unless the
            environment variable HOROVOD_FUSION_THRESHOLD says otherwise or Horovod was initialized
            before.
        compression: how gradients are compressed: a `tfdist.compression.Compressor`, its name such
            as "topk", or a dict of patterns of variables' paths and these. None for not at all.
        seed: for the random numbers of compressors.
        log_all_ranks: whether other ranks than 0 show progress too.

    Raises:
        ImportError: when Horovod is not installed or was built for another TensorFlow.
        ValueError: for options out of range, and where a launcher that Horovod does not know
            started several processes.

    Example:

    >>> import tfdist
    >>> tfdist.Strategy("horovod").num_replicas_in_sync  # not started by horovodrun: alone
    1
    """

    def __init__(
        self,
        *,
        accumulation_steps: int = 1,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        compression: Compression = None,
        seed: int = 0,
        log_all_ranks: bool = False,
    ):
        options = Options(accumulation_steps, bucket_bytes, compression, seed)
        check_bool("log_all_ranks", log_all_ranks)
        hvd = _horovod()
        # Room for two buckets. Horovod's default is so much that it would copy large gradients, to
        # join them.
        os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(2 * bucket_bytes))
        hvd.init()
        _check_size(hvd)
        compat.install_collectives()
        compat.separate_collectives(self)
        super().__init__(HorovodExtended(self, _device(hvd), hvd))
        self._init_processes(options, _Ranks(hvd), log_all_ranks)


class HorovodExtended(compat.OneReplicaExtended):
    """What `tf.distribute` asks of a strategy, done by Horovod.

    Args:
        strategy: the strategy.
        device: the device of this process.
        hvd: the module `horovod.tensorflow`, initialized.
    """

    def __init__(self, strategy: HorovodStrategy, device: str, hvd: ModuleType):
        self._hvd = hvd
        self._operations: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        with tf.device("CPU:0"):  # keeps Horovod's operations in the graph
            self._zero = tf.Variable(0, trainable=False, name="zero")
            self._sink = tf.Variable(0.0, trainable=False, name="sink")
        super().__init__(strategy, device, hvd.rank(), hvd.size())

    def _identity(self) -> dict[str, Any]:
        """How the ranks recognize the next operation of the function that is being traced.

        Horovod matches operations by name, and takes the tensor's otherwise. That depends on what
        is known of its shape, which differs where ranks trace at different times.
        """
        graph = compat.traced_function()
        if graph is None:
            return {}
        self._operations[graph] = number = self._operations.get(graph, 0) + 1
        function = re.sub(r"\W", "_", getattr(graph, "name", "graph"))
        return {"name": f"tfdist.{function}.{number}", "ignore_name_scope": True}

    def _entered(self, tensor: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        """`tensor` in `shape`, a vector, such that TensorFlow cannot know that it is a constant.

        Horovod's operations are not marked as stateful. Given a constant (the static size of a
        batch, the gradient of none), TensorFlow runs them once, while it optimizes the graph, and
        a rank that traces alone waits for the others. A reshape copies nothing.
        """
        return tf.reshape(tensor, shape + self._zero.read_value())

    def _left(self, result: tf.Tensor) -> None:
        """Makes an operation needed: TensorFlow drops what is only multiplied by a constant zero.

        A control dependency would not keep it, but a value that goes into a variable does.
        """
        first = tf.reshape(result, [-1])[:1]
        self._sink.assign(tf.reduce_sum(tf.cast(first, tf.float32)))

    def all_reduce(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """The sums over the ranks, in one negotiation; half precision in two of its own."""
        if self._size == 1:
            return tensors
        sums: list = [None] * len(tensors)
        halves = [i for i, tensor in enumerate(tensors) if tensor.dtype == tf.float16]
        others = [i for i, tensor in enumerate(tensors) if tensor.dtype != tf.float16]
        for places, reduce in ((halves, self._sum_of_halves), (others, self._sum_of_others)):
            found = reduce([tensors[i] for i in places]) if places else []
            for place, total in zip(places, found):
                sums[place] = total
        return sums

    def _sum_of_others(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        first, *others = tensors
        entered = [self._entered(first, tf.size(first)[None]), *others]
        if others:
            sums = self._hvd.grouped_allreduce(entered, op=self._hvd.Sum, **self._identity())
        else:
            sums = [self._hvd.allreduce(entered[0], op=self._hvd.Sum, **self._identity())]
        self._left(sums[0])
        return [tf.reshape(sums[0], tf.shape(first)), *sums[1:]]

    def _sum_of_halves(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Each rank sums its part of all tensors, as float32, for all ranks.

        That is as much traffic as a ring all-reduce. Horovod's own sum of half precision takes
        longer, as it is scalar code, and rounds at each rank of the ring.
        """
        sizes = [tf.size(tensor) for tensor in tensors]
        vector = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
        padded = tf.pad(vector, [[0, -tf.size(vector) % self._size]])
        entered = self._entered(padded, tf.size(padded)[None])
        parts = tf.reshape(self._hvd.alltoall(entered, **self._identity()), [self._size, -1])
        own = tf.reduce_sum(tf.cast(parts, tf.float32), axis=0)
        sums = self.all_gather(tf.cast(own, tf.float16))[: tf.size(vector)]
        return [
            tf.ensure_shape(tf.reshape(part, tf.shape(tensor)), tensor.shape)
            for part, tensor in zip(tf.split(sums, sizes, num=len(tensors)), tensors)
        ]

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """The ranks' tensors, one after the other."""
        if self._size == 1:
            return tensor
        entered = self._entered(tensor, tf.shape(tensor))
        gathered = self._hvd.allgather(entered, **self._identity())
        self._left(gathered)
        return tf.ensure_shape(gathered, [None, *tensor.shape[1:]])

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Rank 0's tensor."""
        return self._hvd.broadcast(tensor, root_rank=0)


class _Ranks(Processes):
    """Horovod's processes."""

    def __init__(self, hvd: ModuleType):
        super().__init__(hvd.rank(), hvd.size())
        self._hvd = hvd

    def lost(self, error: tf.errors.OpError) -> list[int] | None:
        """No rank: Horovod knows that a peer is gone, but not which one."""
        gone = isinstance(error, (tf.errors.UnknownError, tf.errors.AbortedError))
        return [] if gone and "Horovod" in error.message else None

    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        return self._hvd.allreduce(value, op=self._hvd.Sum)

    def _bytes_of(self, data: np.ndarray, root: int) -> np.ndarray:
        return self._hvd.broadcast(tf.constant(data), root_rank=root).numpy()


def _horovod() -> ModuleType:
    if not is_installed():
        raise ImportError(
            "The strategy 'horovod' needs Horovod 0.28.1, which is not installed: "
            f"{HOW_TO_INSTALL}."
        )
    try:
        import horovod.tensorflow as hvd
    except (ImportError, tf.errors.NotFoundError) as error:
        raise ImportError(
            f"Horovod is installed, but does not work with TensorFlow {tf.__version__}: "
            f"{HOW_TO_INSTALL}. The error was: {str(error).splitlines()[0]}"
        ) from error
    return hvd


def _check_size(hvd: ModuleType) -> None:
    launch = describe()
    if launch.size in (1, hvd.size()):
        return
    if launch.launcher in ("Open MPI", "MPI"):
        why = "it was built without MPI"
        remedy = (
            "Build it with `HOROVOD_WITH_MPI=1 make horovod`, or start the script with "
            "`horovodrun --gloo`"
        )
    else:
        why = f"{launch.launcher} does not tell it of the others"
        remedy = (
            "Start the script with `horovodrun`, `mpirun` or `tfdist run --strategy horovod`, or "
            "use `tfdist.Strategy('multi_worker')`"
        )
    raise ValueError(
        f"{launch.launcher} started this process as one of {launch.size}, of which Horovod knows "
        f"{hvd.size()}: {why}, so they would train apart. {remedy}. "
        f"Received: {dict(launch.variables)}"
    )


def _device(hvd: Any) -> str:
    """The device of this process: the GPU of its local rank, or the CPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "CPU:0"
    if hvd.local_rank() >= len(gpus):
        raise ValueError(
            "Each process on a machine needs a GPU of its own. Start no more processes than there "
            f"are GPUs. Received: local rank {hvd.local_rank()} with {len(gpus)} GPU(s)"
        )
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    return "GPU:0"
