"""How the processes of a job talk to each other outside of training steps.

Decisions, lengths of data sets and weights read from a file must be the same in all processes. Such
data is small or rare, so one operation is enough: the sum over the processes. Large arrays travel
in pieces, so that no process holds an array twice.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

PIECE_BYTES = 16 * 1024 * 1024
"""The size of pieces: enough for the full speed of the link, small enough for any memory."""

_NOTHING = b"\xff"  # fills up texts: in UTF-8 no text has this byte


class Processes(abc.ABC):
    """The processes of a job, from the view of one of them.

    `sum`, `all_gather`, `all_gather_texts` and `broadcast` are collective operations: all processes
    call them, in the same order.

    Attributes:
        rank: this process, 0-based.
        size: the number of processes.
    """

    def __init__(self, rank: int, size: int):
        self.rank = rank
        self.size = size

    @property
    def is_chief(self) -> bool:
        """Whether this is process 0, which writes files and progress."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there never are other processes to talk to."""
        return self.size == 1

    @property
    def is_following(self) -> bool:
        """Whether this process is told what others did before it came, and so must do the same."""
        return False

    @property
    def may_change(self) -> bool:
        """Whether processes may leave or join; what each one keeps is saved as a sum then."""
        return False

    @property
    def steps(self) -> int:
        """How many train steps all have completed; known only where processes may change."""
        return 0

    def note_own(self, variable: tf.Variable, first: Callable[[], tf.Tensor]) -> None:
        """Notes a variable of which each process has a value of its own, for groups that change.

        Args:
            variable: the variable of this process, which belongs to no strategy itself.
            first: makes the value that it has before training.
        """
        del variable, first

    @property
    def meeting_place(self) -> Processes:
        """The `Processes` object through which all strategies of this process talk to others."""
        return self

    @property
    @abc.abstractmethod
    def aside(self) -> Processes:
        """The same processes, for operations that a thread runs beside those of this object.

        The operations of the two objects never meet, so each has an order of its own.
        """

    @abc.abstractmethod
    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        """The sum over the processes; called only if there are several."""

    def sum(self, value: tf.Tensor) -> tf.Tensor:
        """The sum of `value` over the processes; outside of a `tf.function`.

        Args:
            value: a tensor of numbers, not empty, of the same shape and dtype in every process.

        Returns:
            A tensor of the same shape and dtype.

        Raises:
            ConnectionError: when another process is lost; names the lost rank where known.

        Example:

        >>> import tensorflow as tf, tfdist
        >>> int(tfdist.Strategy("mirrored").processes.sum(tf.constant(5)))
        5
        """
        if self.size == 1:
            return value
        with self.naming_lost_ranks():
            return self._sum(value)

    def sum_of(self, make: Callable[[], tf.Tensor]) -> tf.Tensor:
        """The sum of what `make` returns in each process; as `sum`.

        Args:
            make: makes the tensor. Where processes can be lost, it is called again after a loss.
        """
        return self.sum(make())

    @contextlib.contextmanager
    def naming_lost_ranks(self) -> Iterator[None]:
        """Turns the engine's errors at the loss of a process into errors that report the loss.

        Raises:
            ConnectionError: as `sum`.
        """
        try:
            yield
        except tf.errors.OpError as error:
            lost = self.lost(error)
            if lost is None:
                raise
            raise ConnectionError(
                f"Rank {self.number(self.rank)} lost its connection to "
                f"{', '.join(map(self.name, lost)) or 'another rank'}: it has ended, gives no sign "
                "of life, or does something else than this one. Look at what it printed last, and "
                "start the job again (with keras.callbacks.BackupAndRestore it goes on from its "
                f"last backup).{self.advice(error)}"
            ) from error

    @property
    def membership(self) -> tuple[int, ...]:
        """Something that is another one, in all processes, once processes were lost."""
        return ()

    def source(self, rank: int) -> int:
        """The process that has a rank now, as a root for several calls of `broadcast`.

        Args:
            rank: a rank at the time of the last operation.
        """
        return rank

    def number(self, rank: int) -> int:
        """The number by which users know a process: its rank, but where these are a group."""
        return rank

    def name(self, rank: int) -> str:
        """The name of a process in messages."""
        return f"rank {self.number(rank)}"

    def lost(self, error: tf.errors.OpError) -> list[int] | None:
        """The lost ranks that `error` names, if any; None if no process was lost."""
        return None

    def advice(self, error: tf.errors.OpError) -> str:
        """What else there is to do about a loss, to end its message with; "" if nothing."""
        return ""

    def all_gather(self, row: Sequence[int]) -> np.ndarray:
        """Every process' `row` of integers.

        Args:
            row: integers within int64, equally many in every process.

        Returns:
            An int64 array of shape `[size, len(row)]`, the same in every process.

        Raises:
            ConnectionError: as `sum`.

        Example:

        >>> import tfdist
        >>> tfdist.Strategy("mirrored").processes.all_gather([3, 4]).tolist()
        [[3, 4]]
        """
        table = np.zeros((self.size, len(row)), np.int64)
        table[self.rank] = row
        if not table.size:  # TensorFlow's operation crashes the process
            return table
        return self.sum(tf.constant(table)).numpy()

    def all_gather_texts(self, text: str) -> list[str]:
        """Every process' `text`.

        Returns:
            The texts in the order of the ranks, the same list in every process.

        Raises:
            ConnectionError: as `sum`.

        Example:

        >>> import tfdist
        >>> tfdist.Strategy("mirrored").processes.all_gather_texts("ready")
        ['ready']
        """
        encoded = text.encode()
        longest = int(self.all_gather([len(encoded)]).max())
        # One that joins may have a longer text. Eight bytes travel as one integer.
        padded = encoded[:longest].ljust(-(-longest // 8) * 8, _NOTHING)
        rows = self.all_gather(np.frombuffer(padded, np.int64).tolist())
        return [row.tobytes().rstrip(_NOTHING).decode() for row in rows]

    def broadcast(self, values: Sequence[np.ndarray], root: int) -> list[np.ndarray]:
        """The `values` of process `root`, bit by bit.

        Args:
            values: arrays, of the same shapes and dtypes in every process.
            root: the rank whose values count.

        Returns:
            The arrays of `root`, in every process.

        Raises:
            ConnectionError: as `sum`.

        Example:

        >>> import numpy as np, tfdist
        >>> tfdist.Strategy("mirrored").processes.broadcast([np.ones(2)], root=0)
        [array([1., 1.])]
        """
        return [self._broadcast(np.asarray(value), root) for value in values]

    def _broadcast(self, value: np.ndarray, root: int) -> np.ndarray:
        if self.size == 1 or not value.size:
            return value
        is_root = self.rank == root
        received = value if is_root else np.empty(value.shape, value.dtype)
        data = np.ascontiguousarray(received).reshape(-1).view(np.uint8)
        with self.naming_lost_ranks():
            for start in range(0, data.size, PIECE_BYTES):
                piece = data[start : start + PIECE_BYTES]
                arrived = self._bytes_of(piece, root)
                if not is_root:
                    piece[:] = arrived
        return received

    def _bytes_of(self, data: np.ndarray, root: int) -> np.ndarray:
        """The uint8 vector `data` of process `root`; others pass one of the same length."""
        words = np.zeros(-(-data.size // 4), np.int32)
        if self.rank == root:
            words.view(np.uint8)[: data.size] = data
        return self._sum(tf.constant(words)).numpy().view(np.uint8)[: data.size]


class OneProcess(Processes):
    """A job of one process."""

    def __init__(self) -> None:
        super().__init__(rank=0, size=1)

    @property
    def aside(self) -> Processes:
        """This process alone."""
        return self

    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError  # never called with one process
