"""The columns of the table: where features are trained."""

from __future__ import annotations

import contextlib
import dataclasses
import functools

import tfdist
from tests.equivalence import harness, moving_shares
from tests.equivalence.features import SAMPLE, SAMPLE_OF_PROCESSES, SMALL_SAMPLE
from tests.equivalence.results import Result
from tfdist.compression import Compressor, TopK
from tfdist.strategies.multi_worker.reducers import engine as reducers_engine

_PARAMETERS = "parameters"


@dataclasses.dataclass(frozen=True)
class Column:
    """A strategy on a number of processes and devices.

    Attributes:
        name: what tests are called by.
        strategy: the name of tfdist's strategy.
        processes: their number; one stands for the process of the test itself.
        devices: virtual CPU devices of each process.
        complete: whether the default suite trains every feature but the variations of others;
            otherwise it takes a sample.
        sample: the names of the features in that.
        compression: the option of the strategy.
        balance: the option of the strategy; if it is True, the shares move after each step.
        sharding: the option of the strategy.
        jit_compile: whether XLA compiles the steps.
        reducers: processes that sum all gradients, however short.
        workers: of a parameter server, whose servers are in the one process; 0 for none.
    """

    name: str
    strategy: str
    processes: int
    devices: int
    complete: bool
    compression: Compressor | None = None
    balance: bool = False
    sharding: str | None = None
    jit_compile: bool = False
    reducers: int = 0
    workers: int = 0
    sample: tuple[str, ...] = SAMPLE

    @property
    def in_own_processes(self) -> bool:
        """Whether it is trained by other processes than those of the tests."""
        return self.processes > 1 or self.workers > 0

    @property
    def launcher(self) -> str:
        """What connects its processes."""
        return "multi_worker" if self.workers else self.strategy

    def refusal(self, feature: harness.Feature) -> str:
        """A part of the error that refuses `feature`; "" where it is trained."""
        in_parts = NOT_IN_PARTS if self.sharding == _PARAMETERS else {}
        refused = REFUSED if self.workers else in_parts
        if self.sharding and self.processes > 1 and self.devices > 1:
            refused = {**refused, "run_eagerly": "Received: an eager step of several devices"}
        return next((text for name, text in refused.items() if name in feature.name), "")

    @property
    def replicas(self) -> int:
        return self.processes * self.devices

    @property
    def twin(self) -> str | None:
        """The column of one process with as many replicas, which gives the same weights."""
        return f"mirrored-{self.replicas}" if self.processes > 1 else None

    def train(self, feature: harness.Feature) -> Result:
        """Trains `feature`, in this process and its peers."""
        try:
            with moving_shares.moving(self.balance):
                outcome, model = harness.train(feature, self._strategy(feature), self.jit_compile)
            return Result.of(outcome, model)
        except ValueError as error:
            if not self.refusal(feature):
                raise
            return Result(harness.Outcome([], {}), [], refused=str(error))
        finally:
            harness.forget()

    def _strategy(self, feature: harness.Feature):
        options = {"compression": self.compression, "balance": self.balance, **feature.options}
        options["sharding"] = self.sharding
        if self.workers:
            policy = tfdist.staleness.Synchronous()
            cluster = _cluster(self.workers)
            del options["balance"]
            return tfdist.ParameterServerStrategy(cluster, staleness=policy, **options)
        if self.reducers:
            reducers_engine.LEAST_FOR_REDUCERS = 0
        if self.processes > 1:
            return tfdist.Strategy(self.strategy, **options)
        devices = [f"CPU:{index}" for index in range(self.devices)]
        return tfdist.MirroredStrategy(devices, **options)


_clusters = contextlib.ExitStack()


@functools.cache
def _cluster(workers: int):
    return _clusters.enter_context(tfdist.cluster.local_cluster(workers, ps=1))


# What a parameter server cannot do, by parts of the features' names, and of the errors.
REFUSED = {
    "synchronized BatchNormalization": "cannot exchange values within a step",
    "masked loss": "cannot sum what this loss is divided by",
    "'mean_with_sample_weight'": "cannot sum what this loss is divided by",
    "masked mean by hand": "cannot sum what this loss is divided by",
    "(Dice)": "cannot sum what this loss is divided by",
    "two optimizers (GAN)": "Compute all gradients before the first update",
    "diffusion": "Compute all gradients before the first update",
    "table of distances": "may look up a row twice",
    "train_on_batch": "a call of train_on_batch",
    "run_eagerly": "run_eagerly=False",
}

# What has no update that is right for parts of weights.
NOT_IN_PARTS = {
    "Adafactor": "Adafactor, whose update of a variable differs",
    "Lamb": "Lamb, whose update of a variable differs",
    "Muon": "Muon, whose update of a variable differs",
    "ScheduleFreeAdamW": "ScheduleFreeAdamW, whose state begins with the values of the weights",
}

# In the order of the tests: while processes train, those of the tests train references and twins.
COLUMNS = (
    Column("multi_worker-2", "multi_worker", 2, 1, complete=False, sample=SAMPLE_OF_PROCESSES),
    Column("horovod-2", "horovod", 2, 1, complete=False, sample=()),
    Column("multi_worker-2x2", "multi_worker", 2, 2, complete=False, sample=()),
    Column("mirrored-1", "mirrored", 1, 1, complete=False, sample=SMALL_SAMPLE),
    Column("mirrored-2", "mirrored", 1, 2, complete=True),
    Column("mirrored-3", "mirrored", 1, 3, complete=False, sample=SMALL_SAMPLE),
    Column("mirrored-4", "mirrored", 1, 4, complete=False, sample=()),
    Column(
        "parameter_server-2",
        "parameter_server",
        1,
        1,
        complete=False,
        workers=2,
        sample=SMALL_SAMPLE,
    ),
)
# A compressor that loses nothing, in the step path of several processes.
COMPRESSED = tuple(
    Column(f"{name}-2-topk", name, 2, 1, complete=False, compression=TopK(1.0, min_bytes=0))
    for name in ("multi_worker", "horovod")
)
# Parts of batches of other sizes after each step.
BALANCED = (
    Column("mirrored-3-balance", "mirrored", 1, 3, complete=False, balance=True),
    Column("multi_worker-2-balance", "multi_worker", 2, 1, complete=False, balance=True),
    Column("horovod-2-balance", "horovod", 2, 1, complete=False, balance=True),
    Column("multi_worker-2x2-balance", "multi_worker", 2, 2, complete=False, balance=True),
)
# Steps that XLA compiles.
COMPILED = (
    Column("mirrored-2-compiled", "mirrored", 1, 2, complete=False, jit_compile=True),
    Column("mirrored-3-compiled", "mirrored", 1, 3, complete=False, jit_compile=True),
    Column("multi_worker-2-compiled", "multi_worker", 2, 1, complete=False, jit_compile=True),
    Column("horovod-2-compiled", "horovod", 2, 1, complete=False, jit_compile=True),
)
# Optimizer state, and accumulated gradients, in parts.
SHARDED = (
    Column("mirrored-2-sharded", "mirrored", 1, 2, complete=False, sharding="optimizer"),
    Column("mirrored-3-sharded", "mirrored", 1, 3, complete=False, sharding="gradients"),
    Column("multi_worker-2-sharded", "multi_worker", 2, 1, complete=False, sharding="optimizer"),
    Column("horovod-2-sharded", "horovod", 2, 1, complete=False, sharding="gradients"),
    Column("multi_worker-2x2-sharded", "multi_worker", 2, 2, complete=False, sharding="gradients"),
)
# Weights in parts, too.
IN_PARTS = (
    Column("mirrored-2-parameters", "mirrored", 1, 2, complete=False, sharding=_PARAMETERS),
    Column("mirrored-3-parameters", "mirrored", 1, 3, complete=False, sharding=_PARAMETERS),
    Column("multi_worker-2-parameters", "multi_worker", 2, 1, False, sharding=_PARAMETERS),
    Column("horovod-2-parameters", "horovod", 2, 1, complete=False, sharding=_PARAMETERS),
    Column("multi_worker-2x2-parameters", "multi_worker", 2, 2, False, sharding=_PARAMETERS),
)
# Gradients that other processes sum.
REDUCED = (
    Column("multi_worker-2-reducers", "multi_worker", 2, 1, complete=False, reducers=2),
    Column("multi_worker-3-reducers", "multi_worker", 3, 1, complete=False, reducers=1),
)
_ALL = (*COLUMNS, *COMPRESSED, *BALANCED, *COMPILED, *SHARDED, *IN_PARTS, *REDUCED)
BY_NAME = {column.name: column for column in _ALL}
