"""Small variables whose values are in one vector while workers train: flat variables.

Each operation of an update takes its time, however little it computes. A thousand small variables
with Adam's averages are three thousand tensors to read and to assign; as flat variables they are
three. FSDP has flat parameters for its exchange (Zhao et al., VLDB 2023).

While flat variables are in use, they have the values, and the model's variables do not. So they are
in use only while nobody else looks: workers train, and the chief waits.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import keras
import tensorflow as tf

Members = list[keras.Variable]


class FlatVariable:
    """A vector with the values of several variables of one dtype and device.

    Args:
        members: the variables.

    Attributes:
        members: the same.
        sizes: the number of elements of each of them.
        vector: the vector, on the device of the variables.
    """

    def __init__(self, members: Sequence[keras.Variable]):
        self.members = list(members)
        self._shapes = [tf.TensorShape(member.shape) for member in members]
        self.sizes = [shape.num_elements() for shape in self._shapes]
        first = members[0].value
        with tf.init_scope(), tf.device(first.device):
            zeros = tf.zeros([sum(self.sizes)], first.dtype)
            self.vector = tf.Variable(zeros, trainable=False)

    def filled(self) -> None:
        """Takes the values of the variables; in a graph."""
        flat = [tf.reshape(read(member), [-1]) for member in self.members]
        self.vector.assign(tf.concat(flat, axis=0), read_value=False)

    def written_back(self) -> None:
        """Gives the variables their values; in a graph."""
        parts = tf.split(self.vector.read_value(), self.sizes)
        for member, part, shape in zip(self.members, parts, self._shapes):
            member.value.assign(tf.reshape(part, shape), read_value=False)


class StillUsed(Exception):
    """What was traced uses variables of which there are flat ones."""


class FlatVariables:
    """The flat variables of a model and its optimizers.

    Args:
        members: the variables of each flat variable. Lists with a variable that is in another list
            too are left out: the variable would have two values.

    Attributes:
        in_use: whether they have the values, and the model's variables do not.
        updated: lists of variables that an update takes for one, noted when it is traced.
    """

    def __init__(self, members: Iterable[Members] = ()):
        lists = {tuple(map(id, of_one)): of_one for of_one in members}
        uses = collections.Counter(itertools.chain.from_iterable(lists))
        self._flat = {
            ids[0]: FlatVariable(of_one)
            for ids, of_one in lists.items()
            if all(uses[one] == 1 for one in ids)
        }
        self.in_use = False
        self.updated: list[Members] = []
        self.forget_traces()

    def note_updated(self, variables: Sequence[Members]) -> None:
        """Notes lists of variables that an update takes for one each."""
        if self._flat:
            self.updated += variables

    @property
    def vectors(self) -> list[tf.Variable]:
        """All vectors."""
        return [flat.vector for flat in self._flat.values()]

    def among(self, variables: Sequence[keras.Variable]) -> list[FlatVariable]:
        """Those whose members are all among these variables."""
        given = set(map(id, variables))
        return [flat for flat in self._flat.values() if given.issuperset(map(id, flat.members))]

    def find(self, variables: Sequence[keras.Variable]) -> tf.Variable | None:
        """The vector of exactly these variables; None if there is none."""
        flat = self._flat.get(id(variables[0]))
        same = flat is not None and [*map(id, flat.members)] == [*map(id, variables)]
        return flat.vector if flat is not None and same else None

    def values(self, variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
        """The values of variables, on the present device: of those that are flat, the vector."""
        found, place = [], 0
        while place < len(variables):
            flat = self._flat.get(id(variables[place]))
            size = 1 if flat is None else len(flat.members)
            vector = self.find(variables[place : place + size])
            if flat is None or vector is None:
                found.append(read(variables[place]))
                size = 1
            else:
                found.append(vector.read_value())
            place += size
        return found

    def fill(self) -> None:
        """Puts them into use."""
        self._call(self._fill)
        self.in_use = True

    def write_back(self) -> None:
        """Gives the model's variables their values."""
        if self.in_use:
            self._call(self._write_back)

    def _call(self, functions: Mapping[str, Callable[[], None]]) -> None:
        for device, function in functions.items():
            with tf.device(device):
                function()

    def forget_traces(self) -> None:
        """Lets functions be traced anew, when variables have moved."""
        here: dict[str, list[FlatVariable]] = {}
        for flat in self._flat.values():
            here.setdefault(flat.vector.device, []).append(flat)
        self._fill = {device: _all(flat.filled for flat in of) for device, of in here.items()}
        self._write_back = {d: _all(flat.written_back for flat in of) for d, of in here.items()}

    def check(self, captures: Iterable[tf.Tensor]) -> None:
        """Raises `StillUsed` if a graph with these `captures` uses a variable that is flat."""
        captured = set(map(id, captures))
        members = itertools.chain.from_iterable(flat.members for flat in self._flat.values())
        used = [member.path for member in members if id(member.value.handle) in captured]
        if used:
            raise StillUsed(f"What workers run uses {used[0]} itself, besides the flat variable")


def _all(functions: Iterable[Callable[[], None]]) -> Callable[[], None]:
    """A function that TensorFlow traces, which calls all of these."""
    every = list(functions)

    def call() -> None:
        for function in every:
            function()

    return tf.function(call, autograph=False)


NONE = FlatVariables()


def read(variable: keras.Variable) -> tf.Tensor:
    """The value of a variable, which TensorFlow copies only when it changes meanwhile."""
    return tf.raw_ops.ReadVariableOp(
        resource=variable.value.handle, dtype=tf.as_dtype(variable.dtype)
    )
