"""The variables of a model in all processes, and how one process gives them to the others."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tfdist import compat
from tfdist.checksum import checksum
from tfdist.engines.processes import Processes
from tfdist.processes.contracts import Coordinated, WithReplicas
from tfdist.step.accumulation import GradientAccumulator
from tfdist.step.model_optimizers import learning_rates, optimizers_of
from tfdist.step.replica_state import ReplicaState
from tfdist.step.sharding.saved_weights import weights_in_parts


def checksum_of(strategy: WithReplicas, variable: tf.Variable) -> int:
    """A checksum of the value of `variable` on this process' first replica."""
    return checksum(strategy.experimental_local_results(variable)[0])


def broadcast_variables(
    strategy: Coordinated,
    variables: list[tf.Variable],
    root: int,
    processes: Processes | None = None,
) -> None:
    """Sets `variables` on all replicas to their values in process `root`; called by all.

    Args:
        strategy: the strategy of the variables.
        variables: the variables.
        root: a rank of the processes.
        processes: the processes; None for those of the strategy's replicas.
    """
    processes = processes or strategy.processes
    root = processes.source(root)
    for variable in variables:
        (value,) = processes.broadcast([_local(strategy, variable)], root)
        for part in strategy.experimental_local_results(variable):
            part.assign(value)


def share_variables(model: keras.Model, strategy: Coordinated, root: int) -> None:
    """Gives all processes the variables of process `root`; called by all.

    Only variables that differ travel. Variables with a different value on each replica never do.
    """
    common = [
        variable
        for variable in all_variables(model)
        if variable.synchronization != tf.VariableSynchronization.ON_READ
    ]
    checksums = strategy.processes.all_gather([checksum_of(strategy, v) for v in common])
    differ = (checksums != checksums[0]).any(axis=0)
    different = [variable for variable, differs in zip(common, differ) if differs]
    broadcast_variables(strategy, different, root)


def share_read(model: keras.Model, strategy: Coordinated) -> None:
    """Gives all processes what the first one has read of a model from a file; called by all."""
    share_variables(model, strategy, root=0)
    for state in replica_states(model):
        state.share()
    strategy.loaded(model)


def _local(strategy: Coordinated, variable: tf.Variable) -> np.ndarray:
    return np.asarray(strategy.experimental_local_results(variable)[0].numpy())


def all_variables(model: keras.Model) -> list[tf.Variable]:
    """The variables of `model` and of its optimizers, without what each replica has for itself."""
    found: dict[int, tf.Variable] = {}
    for owner in [model, *optimizers_of(model).values()]:
        for variable in owner.variables:
            if compat.is_sharded(variable):
                continue
            found.setdefault(id(variable.value), variable.value)
    for state in replica_states(model):
        for owned in state.owned:
            found.pop(id(owned), None)
        found.update({id(counter): counter for counter in state.counters})
    return [v for v in found.values() if v.dtype != tf.string]


def rates(model: keras.Model) -> list[tf.Variable]:
    """The learning rates of the optimizers of `model` that can be set."""
    owners = optimizers_of(model).values()
    return [rate.value for optimizer in owners for rate in learning_rates(optimizer)]


def replica_states(model: keras.Model) -> list[ReplicaState]:
    """The state that each replica owns: of accumulation, compressors, local steps, sharding."""
    found = [
        getattr(optimizer, name, None)
        for optimizer in optimizers_of(model).values()
        for name in ("accumulator", "compression_state", "local_state", "parts_of_state")
    ]
    return [state for state in (*found, weights_in_parts(model)) if state is not None]


def accumulators(model: keras.Model) -> list[GradientAccumulator]:
    """The gradients that each replica accumulates."""
    return [state for state in replica_states(model) if isinstance(state, GradientAccumulator)]
