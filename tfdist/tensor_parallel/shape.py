"""The shape of a mesh, and which backend connects its ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tfdist.arguments import shown
from tfdist.cluster import choose_strategy
from tfdist.engines.mesh import Layout
from tfdist.strategies.horovod.backend import is_installed
from tfdist.strategies.registry import BACKENDS
from tfdist.validation import check_choice, check_integer

_AXES = ("data", "model")


def check_shape(shape: object) -> None:
    """Raises ValueError unless `shape` may be the shape of a mesh."""
    if shape is None:
        return
    if not isinstance(shape, Mapping) or not shape or set(shape) - set(_AXES):
        raise ValueError(
            '`shape` must be a dict with the numbers of ranks along "data", "model" or both, or '
            f"None. Received: shape={shown(shape)}"
        )
    for axis, number in shape.items():
        check_integer(f"shape[{axis!r}]", number, 1)


def may_have_groups(shape: Mapping[str, int] | None) -> bool:
    """Whether there may be groups of some of the ranks."""
    return shape is not None and 1 not in shape.values()


def layout_of(shape: Mapping[str, int] | None, rank: int, size: int) -> Layout:
    """Where a rank is in a mesh of `size` ranks.

    Raises:
        ValueError: when so many ranks do not make up such a mesh.
    """
    given = {"data": 1} if shape is None else dict(shape)
    known = given.get("data", 1) * given.get("model", 1)
    rest = size // known if len(given) == 1 else 1
    data, model = given.get("data", rest), given.get("model", rest)
    if data * model != size:
        raise ValueError(
            "A mesh has as many ranks as the job: the number of model groups times the ranks of "
            f"each. Received: shape={shown(shape)} in a job of {size} rank(s)"
        )
    return Layout(data, model, rank)


def backend_of(backend: object, local_devices: int) -> str:
    """The name of the backend that connects the ranks.

    Args:
        backend: the argument of a mesh.
        local_devices: the number of devices of this process.

    Raises:
        ValueError: for another name; with "auto" where ranks are connected in another way.
    """
    names = [name for name, known in BACKENDS.items() if known.mesh]
    check_choice("backend", backend, ("auto", *names))
    if backend != "auto":
        return str(backend)
    chosen, reason = choose_strategy(os.environ, local_devices, is_installed())
    if chosen in names:
        return chosen
    if chosen == "mirrored":
        return "multi_worker"  # this process alone
    raise ValueError(
        f"Ranks of a mesh are connected by {' or '.join(names)}. Received: backend='auto', which "
        f"means {chosen!r} here, because {reason}"
    )
