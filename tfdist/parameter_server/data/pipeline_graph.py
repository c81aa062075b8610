"""A data set as a graph. Every copy of the graph has the same order, on whichever worker."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf
from google.protobuf.message import Message

_Graph: TypeAlias = tf.compat.v1.GraphDef
_Node: TypeAlias = tf.compat.v1.NodeDef
_Attribute: TypeAlias = tf.compat.v1.AttrValue

# Operations that only the process that made the data set can run.
_LOCAL = {"PyFunc", "EagerPyFunc", "PyFuncStateless", "GeneratorDataset"}
# Data sets with two seeds among their inputs, and the place of the first seed.
_SEED_INPUTS = {
    "ShuffleDataset": 2,
    "ShuffleDatasetV3": 2,
    "ShuffleAndRepeatDataset": 2,
    "ShuffleAndRepeatDatasetV2": 2,
    "RandomDataset": 0,
    "RandomDatasetV2": 0,
}
_VARIES = ("reshuffle_each_iteration", "rerandomize_each_iteration")
_CACHES = {"CacheDataset", "CacheDatasetV2"}
# Of other kinds, `choose_from_datasets` for example, TensorFlow says that they have no end where
# they have one.
_COUNTED_EXACTLY = {
    *_CACHES,
    *("BatchDataset", "BatchDatasetV2", "PaddedBatchDataset", "PaddedBatchDatasetV2"),
    *("ParallelBatchDataset", "MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2"),
    *("MapAndBatchDataset", "TensorDataset", "TensorSliceDataset", "RangeDataset"),
    *("RepeatDataset", "ShuffleDataset", "ShuffleDatasetV2", "ShuffleDatasetV3"),
    *("ShuffleAndRepeatDataset", "ShuffleAndRepeatDatasetV2", "PrefetchDataset", "ZipDataset"),
    *("SkipDataset", "TakeDataset", "ShardDataset", "OptionsDataset", "ConcatenateDataset"),
}
_OTHERWISE = (
    'Let the chief read it, with `tfdist.ParameterServerStrategy(..., input="dynamic")`, or hand '
    "in a function that makes each worker's part with `strategy.distribute_datasets_from_function`."
)


class PipelineGraph:
    """A data set as a graph.

    Seeds that the user has not set are drawn here, once for all copies. Where one device would draw
    other random numbers in each pass, each pass gets seeds of its own. So a copy that is made late,
    or again, has the same order as the other copies in that pass.

    A copy's cache would be lost together with the copy. So where there is a cache, the copies are
    kept, and each copy goes on to the order of the next pass by itself.

    Args:
        dataset: the data set.

    Raises:
        ValueError: for data that only the process that made them can read, or whose order depends
            on which of several threads is first.

    Attributes:
        whole: the part of the graph, as a string, that is the same in each pass.
        is_renewed: whether each pass needs a new copy.
        is_counted_exactly: whether the cardinality of the data set is its number of batches.
    """

    def __init__(self, dataset: tf.data.Dataset):
        definition = _definition(dataset)
        _check(dataset, definition)
        operations = {node.op for node in _nodes(definition)}
        kinds = {op for op in operations if re.search(r"Dataset(V\d)?$", op)}
        self.is_counted_exactly = kinds <= _COUNTED_EXACTLY
        self._lock = threading.Lock()
        self._base = secrets.randbits(30)
        self._seeded = _take_seeded(definition)
        self._seeds = [*_seeds_of(self._seeded.node)]
        for function in self._seeded.library.function:
            self._seeds += _seeds_of(function.node_def)
        varies = any(seeds.varies for seeds in self._seeds)
        self.is_renewed = varies and not operations & _CACHES
        self.whole = definition.SerializeToString()

    def of_pass(self, number: int) -> bytes:
        """The part of the graph that differs between passes, as a string to be put after `whole`.

        Args:
            number: the number of the pass over the data, from 1.
        """
        with self._lock:
            for place, seeds in enumerate(self._seeds, 1):
                shift = number - 1 if seeds.varies else 0
                if seeds.first == seeds.second == 0:
                    seeds.write(self._base + shift, place)
                else:
                    seeds.write(seeds.first + shift, seeds.second)
            return self._seeded.SerializeToString()


class _Seeds(NamedTuple):
    """Two seeds in a graph.

    Attributes:
        first: the first one; both are 0 where the user has set none.
        second: the second one.
        varies: whether each pass has other random numbers.
        nodes: the operation that has the seeds as attributes, or two constants with the seeds.
    """

    first: int
    second: int
    varies: bool
    nodes: list[_Node]

    def write(self, first: int, second: int) -> None:
        """Puts other seeds into the graph."""
        if len(self.nodes) == 1:
            self.nodes[0].attr["seed"].i = first
            self.nodes[0].attr["seed2"].i = second
            return
        for node, seed in zip(self.nodes, (first, second)):
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(seed, tf.int64))


def _seeds_of(nodes: Iterable[_Node]) -> Iterator[_Seeds]:
    by_name = {node.name: node for node in nodes}
    for node in by_name.values():
        if node.op in _SEED_INPUTS:
            place = _SEED_INPUTS[node.op]
            names = [name.split(":")[0] for name in node.input[place : place + 2]]
            inputs = [by_name[name] for name in names if name in by_name]
            if [given.op for given in inputs] != ["Const", "Const"]:
                continue  # computed in a function
            first, second = (int(tf.make_ndarray(given.attr["value"].tensor)) for given in inputs)
            named = [node.attr[name].b for name in _VARIES if name in node.attr]
            varies = named[0] if named else first == second == 0
            yield _Seeds(first, second, varies, inputs)
        elif "seed" in node.attr and "seed2" in node.attr:
            first, second = node.attr["seed"].i, node.attr["seed2"].i
            yield _Seeds(first, second, first == second == 0, [node])


def _take_seeded(definition: _Graph) -> _Graph:
    """Takes out of a graph the operations with seeds, and the functions that contain seeds."""
    seeded = tf.compat.v1.GraphDef()
    nodes = definition.node
    names = {node.name for seeds in _seeds_of(nodes) for node in seeds.nodes}
    names |= {node.name for node in nodes if node.op in _SEED_INPUTS}
    _move(nodes, seeded.node, lambda node: node.name in names)
    functions = definition.library.function
    _move(functions, seeded.library.function, lambda function: any(_seeds_of(function.node_def)))
    return seeded


def _move(source: Any, target: Any, is_wanted: Callable[[Message], bool]) -> None:
    """Moves messages from a repeated field of a protocol buffer, `source`, to another one."""
    for place in reversed(range(len(source))):
        if is_wanted(source[place]):
            target.add().CopyFrom(source[place])
            del source[place]


def _nodes(definition: _Graph) -> Iterator[_Node]:
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def _definition(dataset: tf.data.Dataset) -> _Graph:
    try:
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=1,
            strip_device_assignment=True,
        )
    except tf.errors.OpError as error:
        raise _cannot(str(error.message).splitlines()[0], dataset) from error
    return tf.compat.v1.GraphDef.FromString(graph.numpy())


def _check(dataset: tf.data.Dataset, definition: _Graph) -> None:
    nodes = [*_nodes(definition)]
    found = sorted({node.op for node in nodes} & _LOCAL)
    if found:
        raise _cannot(f"it calls Python ({', '.join(found)})", dataset)
    free = {node.op for node in nodes if _in_any_order(node.attr)}
    if dataset.options().deterministic is False:
        free.add("options.deterministic")
    if free:
        raise ValueError(
            "Batches go to the workers in turn, so all of them must read the data in one order, "
            f"and with deterministic=False ({', '.join(sorted(free))}) each has another one. Leave "
            f"that out. {_OTHERWISE} Received: {dataset}"
        )


def _in_any_order(attributes: Mapping[str, _Attribute]) -> bool:
    if "deterministic" in attributes:  # what is asked for in a message's map is in it then
        return attributes["deterministic"].s == b"false"
    return "sloppy" in attributes and attributes["sloppy"].b


def _cannot(problem: str, dataset: tf.data.Dataset) -> ValueError:
    return ValueError(
        f"Workers cannot make this data set themselves: {problem}. {_OTHERWISE} Received: {dataset}"
    )
