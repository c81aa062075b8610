"""What a training gave, as a file: processes hand it over, and columns share it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pathlib
import pickle
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.equivalence.harness import Outcome
from tfdist import compat

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Result:
    """The outcome of one process, and what must be equal on all replicas.

    Attributes:
        outcome: weights, history and what else is compared with one device.
        variables: the variables of the model and of its optimizers, each with its value on every
            local replica.
        refused: the error with which the strategy refused to train; "" if it did not.
    """

    outcome: Outcome
    variables: list[tuple[str, list[np.ndarray]]]
    refused: str = ""

    @classmethod
    def of(cls, outcome: Outcome, model: keras.Model) -> Result:
        """The result of `model`, trained under its strategy."""
        optimizers = [v for v in vars(model).values() if isinstance(v, keras.optimizers.Optimizer)]
        owners = [model, *optimizers]
        # Of weights in parts the whole ones are compared, as the outcome has them.
        common = [v for owner in owners for v in owner.variables if not compat.is_sharded(v)]
        variables = {id(v.value): (v.path, v.value) for v in common}
        for optimizer in optimizers:
            accumulator = getattr(optimizer, "accumulator", None)
            if accumulator is not None:
                count = accumulator.micro_step
                variables[id(count)] = (f"{optimizer.name}/micro_step", count)
            in_parts = getattr(optimizer, "parts_of_state", None)
            for own in in_parts.owned if in_parts is not None else ():
                del variables[id(own)]
        local_results = model.distribute_strategy.experimental_local_results
        return cls(
            outcome,
            [
                (path, [np.asarray(part) for part in local_results(variable)])
                for path, variable in variables.values()
                if not _is_sum_of_replicas(variable)
            ],
        )


def _is_sum_of_replicas(variable: tf.Variable) -> bool:
    """Whether each replica has a value of its own, as of metrics and accumulated gradients."""
    return variable.synchronization == tf.VariableSynchronization.ON_READ


def write(path: pathlib.Path, content: bytes) -> None:
    """Writes a file that readers see when it is whole."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def file_name(*names: str) -> str:
    return urllib.parse.quote(".".join(names), safe="")


class Shared:
    """Results that are computed once, by the process that asks first, and read by all others.

    Args:
        folder: where they are kept. What was computed by other versions or another state of the
            sources is not found there.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder = folder / f"shared-{state_of_the_sources()}"
        self._folder.mkdir(parents=True, exist_ok=True)

    def get(self, names: tuple[str, ...], compute: Callable[[], Any]) -> Any:
        """What is called `names`; others who ask meanwhile wait."""
        path = self._folder / file_name(*names)
        with _locked(path.with_name(f"{path.name}.lock")):
            if not path.exists():
                write(path, pickle.dumps(compute()))
        return pickle.loads(path.read_bytes())


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def state_of_the_sources() -> str:
    """A checksum of what results depend on: the sources, and the versions of what they use."""
    state = hashlib.sha256(f"{tf.__version__} {keras.__version__} {np.__version__}".encode())
    for folder in ("tfdist", "tests"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            state.update(path.read_bytes())
    return state.hexdigest()[:16]
