"""What tfdist knows of a backend before TensorFlow is imported; needs no TensorFlow."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tfdist.cluster.machines import Location, Machine

Task = tuple[str, int]
"""The job and the index of a process, as in TF_CONFIG."""

Environments = AbstractContextManager[list[dict[str, str]]]


@dataclasses.dataclass(frozen=True)
class Obstacles:
    """For each thing that a backend needs: why it cannot be used here, or None if it can.

    Attributes:
        tensorflow: TensorFlow and Keras.
        launch: the variables by which a launcher tells a process its place.
        port: the port that the cluster gives to this process.
        peers_port: the same port, if the cluster has several workers.
        horovod: Horovod.
        servers: TensorFlow's server, or the cluster's parameter servers.
    """

    tensorflow: str | None = None
    launch: str | None = None
    port: str | None = None
    peers_port: str | None = None
    horovod: str | None = None
    servers: str | None = None


@dataclasses.dataclass(frozen=True)
class Launch:
    """How `tfdist run` starts the processes of a backend on one machine.

    Attributes:
        environments: makes each task's environment variables from common ones. It returns a
            context, which is left when the processes have ended.
        one_device: for backends with one device per process and so no virtual devices: the
            beginning of a sentence that says so. "" if a process may have several devices.
        has_servers: whether there are parameter servers besides the ranks.
        has_reducers: whether there may be processes that only sum gradients.
        across: makes the variables of the ranks on several machines; runs where the rendezvous is.
            None if the ranks must be on one machine.
        elastic: makes the variables for a group of ranks of an elastic job, each time one is
            formed: from the address of the machine where the launcher is that calls this, and from
            where each rank is. None if ranks cannot form new groups.
    """

    environments: Callable[[Sequence[Task], Mapping[str, str]], Environments]
    one_device: str = ""
    has_servers: bool = False
    has_reducers: bool = False
    across: Callable[[Sequence[Machine]], Environments] | None = None
    elastic: Callable[[str, Sequence[Location]], Environments] | None = None


@dataclasses.dataclass(frozen=True)
class Backend:
    """A way to connect replicas.

    Attributes:
        name: the backend's name in `tfdist.Strategy`.
        strategy: the class of the strategy, as "module:name".
        engine: what carries the tensors, in words for people.
        obstacle: from what was found on this machine, says why the backend cannot be used.
        launch: how `tfdist run` starts the backend; None for a single process, which needs no
            launcher.
        mesh: the function that makes the engines of a mesh of processes, as "module:name"; "" if
            there can be none.
        is_asynchronous: whether workers do not wait for each other, so that gradients may be stale.
    """

    name: str
    strategy: str
    engine: str
    obstacle: Callable[[Obstacles], str | None]
    launch: Launch | None = None
    mesh: str = ""
    is_asynchronous: bool = False

    def load(self) -> type:
        """The class of the strategy; imports TensorFlow."""
        return _named(self.strategy)

    def load_mesh(self) -> Callable[..., Any]:
        """The function that makes the engines of a mesh; imports TensorFlow."""
        return _named(self.mesh)


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
