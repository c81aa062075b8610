"""Errors of workers and parameter servers, as users should see them."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server.chief.scheduler import WorkersLostError

_PLACE = r"/job:ps/replica:0/task:(\d+)"


def log_change(workers: Sequence[str], worker: int, error: Exception | None) -> None:
    """Logs that a worker is lost; with None instead of an error, that the worker is back."""
    name = f"worker {worker} ({workers[worker]})"
    if error is None:
        tf.get_logger().warning("tfdist: %s is back.", name)
    else:
        tf.get_logger().warning(
            "tfdist: %s is lost; training goes on with the others. (%s)",
            name,
            type(error).__name__,
        )


@contextlib.contextmanager
def within_data() -> Iterator[None]:
    """In this context, a step may not read beyond the end of the data.

    Keras would take the error for the end of the data.
    """
    try:
        yield
    except tf.errors.OutOfRangeError as error:
        raise RuntimeError(
            "The step read beyond the end of a data set. If that is the data set given to `fit`, "
            "its `cardinality()` is not its number of batches: correct it with "
            f"`tf.data.experimental.assert_cardinality`. The error was: {error.message}"
        ) from error


@contextlib.contextmanager
def explaining(addresses: Mapping[str, Sequence[str]], timeout: float) -> Iterator[None]:
    """In this context, errors are replaced by what `explained` returns for them."""
    try:
        yield
    except Exception as error:
        told = explained(error, addresses, timeout)
        raise told from (error if told is not error else error.__cause__)


def explained(
    error: Exception, addresses: Mapping[str, Sequence[str]], timeout: float
) -> Exception:
    """An error in `fit`, `evaluate` or `predict` as the user should see it.

    Args:
        error: what was raised. An error of a worker has the worker's index as attribute `worker`.
        addresses: the addresses of workers and parameter servers.
        timeout: for how many seconds lost workers were waited for.

    Returns:
        A ConnectionError that names the lost parameter server or the lost workers. For any other
        error, the error itself, with a note that names the worker. Tracebacks of Python 3.10 show
        no notes, so there the note is logged too.
    """
    if isinstance(error, WorkersLostError):
        names = ", ".join(f"worker {n} ({a})" for n, a in enumerate(addresses["worker"]))
        return ConnectionError(
            f"All workers are lost for more than {timeout:g} s: {names}. Start them again, look "
            "for the reason in what they printed, or set `worker_timeout` to wait longer. "
            f"Received: worker_timeout={timeout:g}"
        )
    if compat.is_lost_ps(error):
        names = ", ".join(f"ps {n} ({addresses['ps'][n]})" for n in sorted(_lost_ps(error)))
        names = names or "a parameter server"
        return lost_servers(
            names,
            " Training goes back to a snapshot in `fit` only, not with `record` or "
            "`snapshot_every=0`, and not where a callback or a generator would have to begin anew.",
        )
    worker = error.__dict__.pop("worker", None)
    if worker is not None:
        _add_note(error, f"This happened on worker {worker} ({addresses['worker'][worker]}).")
    return error


def lost_servers(names: str, why: str) -> ConnectionError:
    """The error for parameter servers that are lost for good; `why` is sentences after a space."""
    return ConnectionError(
        f"{names} is lost, and with it its part of the weights.{why} Start the job again; with a "
        "keras.callbacks.BackupAndRestore it goes on from the last backup."
    )


def _add_note(error: Exception, note: str) -> None:
    """Does what `add_note` does since Python 3.11. Python 3.10 also logs the note.

    The reason: tracebacks of Python 3.10 do not show notes.
    """
    error.__dict__["__notes__"] = [*getattr(error, "__notes__", []), note]
    if sys.version_info < (3, 11):
        tf.get_logger().error("tfdist: %s", note)


def servers_that_did_not_answer(error: Exception) -> set[int]:
    """The numbers of the parameter servers that an error of TensorFlow says are lost."""
    return _indices(rf"remote target {_PLACE}", str(error)) if compat.is_lost_ps(error) else set()


def _lost_ps(error: Exception) -> set[int]:
    """The numbers of the parameter servers that an error is about."""
    # First look for servers that did not answer: an operation's device may name a healthy one.
    return servers_that_did_not_answer(error) or _indices(_PLACE, str(error))


def _indices(pattern: str, text: str) -> set[int]:
    return {int(index) for index in re.findall(pattern, text)}
