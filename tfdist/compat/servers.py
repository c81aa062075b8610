"""Parameter servers that send to each other."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence

from tfdist.compat.registry import REPLACED, TENSORFLOW, touch

_FILTERS = touch(
    *("tensorflow.python.training.server_lib:ClusterDeviceFilters", "set_device_filters"),
    *(REPLACED, "self", "job_name", "task_index", "device_filters"),
    why="an update of weights on several parameter servers is made on all of them together. "
    "TensorFlow's strategy lets a parameter server see the chief and the workers only",
    versions=TENSORFLOW,
    instead="an argument of `tf.distribute.ParameterServerStrategy` for device filters",
)
_SERVERS = "/job:ps"


class _State(threading.local):
    connecting = False


_state = _State()


@contextlib.contextmanager
def servers_see_each_other() -> Iterator[None]:
    """A strategy that is made in this context lets parameter servers send to each other."""
    _state.connecting = True
    try:
        yield
    finally:
        _state.connecting = False


def _with_servers(original: Callable) -> Callable:
    @functools.wraps(original)
    def set_device_filters(
        self: object, job_name: str, task_index: int, device_filters: Sequence[str]
    ) -> None:
        if _state.connecting and job_name == "ps":
            device_filters = [*device_filters, _SERVERS]
        original(self, job_name, task_index, device_filters)

    return set_device_filters


def install() -> None:
    """Lets `servers_see_each_other` have an effect."""
    _FILTERS.replace(_with_servers)
