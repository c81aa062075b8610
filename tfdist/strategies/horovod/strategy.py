"""One replica per process; the processes meet in Horovod's operations."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import tensorflow as tf
from typing_extensions import Unpack

from tfdist import compat, environment
from tfdist.arguments import check_bool, shown
from tfdist.cluster import describe
from tfdist.cluster.environments import wants_reducers
from tfdist.elastic import membership
from tfdist.engines.processes import Processes
from tfdist.options import CommonOptions, Options, takes_options
from tfdist.strategies.engine_extended import EngineExtended
from tfdist.strategies.horovod.backend import is_installed
from tfdist.strategies.horovod.engine import HorovodEngine
from tfdist.strategies.horovod.hosts import hosts_of
from tfdist.strategies.horovod.losses import is_loss
from tfdist.strategies.horovod.pairs import PairsOfRanks
from tfdist.strategies.multi_process import MultiProcessStrategy

HOW_TO_INSTALL = (
    "build it with `python scripts/install_horovod.py` in a checkout of tfdist "
    "(docs/horovod_install.md): a plain `pip install horovod` fails with this TensorFlow"
)


class HorovodStrategy(MultiProcessStrategy, tf.distribute.Strategy):
    """Synchronous training with one process per device, which Horovod connects.

    The processes are started by `horovodrun`, `mpirun` or `tfdist run --strategy horovod`. Keras
    3's `fit`, `evaluate` and `predict` run unchanged, with the results of one device. Each process
    trains on the GPU of its local rank or, if there are no GPUs, on its CPU.

    Horovod itself joins buckets that wait at the same time, up to twice `bucket_bytes`. Another
    limit holds if the environment variable HOROVOD_FUSION_THRESHOLD is set, or if Horovod was
    initialized before.

    Args:
        log_all_ranks: whether all ranks show progress, not only rank 0.
        **options: the options of all strategies, by keyword; see `tfdist.Options`.

    Raises:
        ImportError: when Horovod is not installed or was built for another TensorFlow.
        ValueError: for options out of range; when a launcher that Horovod does not know has started
            several processes.

    Example:

    >>> import tfdist
    >>> tfdist.Strategy("horovod").num_replicas_in_sync  # not started by horovodrun: alone
    1
    """

    def __new__(cls, *args: object, **kwargs: object) -> HorovodStrategy:
        """In a rank of an elastic job (`tfdist run --min`), the strategy is an elastic one."""
        if cls is HorovodStrategy and membership.is_elastic():
            from tfdist.strategies.horovod.elastic import ElasticHorovodStrategy

            cls = ElasticHorovodStrategy
        return super().__new__(cls)

    @takes_options
    def __init__(self, *, log_all_ranks: bool = False, **options: Unpack[CommonOptions]):
        common = Options(**options)  # type: ignore[arg-type]
        check_bool("log_all_ranks", log_all_ranks)
        hvd, engine = connected(common)
        compat.install_collectives()
        compat.separate_collectives(self)
        engine.hosts = hosts_of(hvd, engine, common.exchange)
        engine.pairs = PairsOfRanks(engine)
        super().__init__(EngineExtended(self, device_of(hvd), engine))
        self._init_processes(common, engine, log_all_ranks)


class Ranks(Processes):
    """Horovod's processes.

    Args:
        hvd: the module `horovod.tensorflow`, initialized; or the same for a group of its ranks.
        numbers: of the ranks in such a group, among all ranks; None for all ranks.
    """

    def __init__(self, hvd: ModuleType, numbers: Sequence[int] | None = None):
        super().__init__(hvd.rank(), hvd.size())
        self._hvd = hvd
        self._numbers = range(self.size) if numbers is None else numbers
        self._aside = _Aside(hvd, self._numbers)

    def number(self, rank: int) -> int:
        """The number of a rank among all ranks."""
        return self._numbers[rank]

    @property
    def aside(self) -> Processes:
        """The same ranks: Horovod tells operations apart by their names."""
        return self._aside

    def lost(self, error: tf.errors.OpError) -> list[int] | None:
        """No rank: Horovod knows that a peer is gone, but not which one."""
        return [] if is_loss(error) else None

    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        return self._hvd.allreduce(value, op=self._hvd.Sum)

    def _bytes_of(self, data: np.ndarray, root: int) -> np.ndarray:
        return self._hvd.broadcast(tf.constant(data), root_rank=root).numpy()


# In all processes the strategies are made in the same order.
_strategies = itertools.count()


class _Aside(Ranks):
    """The ranks, by operations of other names than those of `Ranks` and of training steps.

    Horovod ignores the name of an operation that runs eagerly, so these are in functions.
    """

    def __init__(self, hvd: ModuleType, numbers: Sequence[int]):
        Processes.__init__(self, hvd.rank(), hvd.size())
        self._numbers = numbers
        name = f"tfdist.aside.{next(_strategies)}"
        function = functools.partial(tf.function, autograph=False)

        # Concrete functions stay functions also with `tf.config.run_functions_eagerly(True)`.
        @functools.cache
        def sum_of(dtype: tf.DType) -> Callable:
            own = {"name": f"{name}.sum", "ignore_name_scope": True}
            summed = function(lambda value: hvd.allreduce(value, op=hvd.Sum, **own))
            return summed.get_concrete_function(tf.TensorSpec(None, dtype))

        @functools.cache
        def sent_from(root: int) -> Callable:
            own = {"name": f"{name}.from.{root}", "ignore_name_scope": True}
            sent = function(lambda value: hvd.broadcast(value, root_rank=root, **own))
            return sent.get_concrete_function(tf.TensorSpec([None], tf.uint8))

        self._sum_of, self._sent_from = sum_of, sent_from

    @property
    def aside(self) -> Processes:
        """This object: there is one such set of names for each strategy."""
        return self

    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        return self._sum_of(value.dtype)(value)

    def _bytes_of(self, data: np.ndarray, root: int) -> np.ndarray:
        return self._sent_from(root)(tf.constant(data)).numpy()


def connected(
    options: Options, process_sets: str | None = None
) -> tuple[ModuleType, HorovodEngine]:
    """Horovod, initialized, and the engine of its ranks.

    Args:
        options: the options of the strategy.
        process_sets: "dynamic" if there will be groups of ranks; see `horovod.tensorflow.init`.

    Raises:
        ImportError: when Horovod is not installed or was built for another TensorFlow.
        ValueError: when a launcher that Horovod does not know has started several processes, and
            when some of the ranks are to be reducers.
    """
    if wants_reducers():
        raise ValueError(
            "Reducers sum what workers of the strategy 'multi_worker' send. Leave the strategy to "
            f"'auto', or {environment.REDUCERS} out. "
            f"Received: {environment.REDUCERS}={shown(os.environ[environment.REDUCERS])}"
        )
    hvd = horovod(options)
    hvd.init(process_sets=process_sets)
    _check_size(hvd)
    return hvd, HorovodEngine(hvd, Ranks(hvd))


def horovod(options: Options) -> ModuleType:
    """Horovod, not initialized yet.

    Args:
        options: the options of the strategy.

    Raises:
        ImportError: when Horovod is not installed or was built for another TensorFlow.
    """
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
    # Room for two buckets. Horovod's default is so large that Horovod would join large gradients,
    # and copy them for that.
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(2 * options.bucket_bytes))
    return hvd


def _check_size(hvd: ModuleType) -> None:
    launch = describe()
    if launch.size in (1, hvd.size()):
        return
    if launch.launcher in ("Open MPI", "MPI"):
        why = "it was built without MPI"
        remedy = (
            "Build it with `HOROVOD_WITH_MPI=1 python scripts/install_horovod.py`, or start the "
            "script with `horovodrun --gloo`"
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


def device_of(hvd: ModuleType) -> str:
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
