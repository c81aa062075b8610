"""Numbers of rows that a step repeats for each sample: constants, if the batch has a static size.

`tf.tile(positions, [batch, 1])` looks a row up once for each sample, and so does one device, for
the whole batch. Where `batch` is a number, nothing but the shapes and the values tells this from a
table of positions, which one device looks up once for all samples.
"""

from __future__ import annotations

import tensorflow as tf

from tfdist import compat

# They hand on the values of their first input, each as often as it was there.
SAME_VALUES = {"ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient"}
# Each element of the result comes from the elements at its place.
_BY_ELEMENTS = {
    *("Abs", "Add", "AddV2", "ClipByValue", "Equal", "FloorDiv", "FloorMod", "Greater"),
    *("GreaterEqual", "Less", "LessEqual", "Maximum", "Minimum", "Mul", "Neg", "NotEqual"),
    *("SelectV2", "Sub"),
}
# In the results of all of these, what two rows are made of differs only where the inputs' rows do.
_BY_ROWS = {*_BY_ELEMENTS, "ConcatV2"}
_REPEATING = ("BroadcastTo", "Tile")


def are_per_sample(numbers: tf.Tensor, samples: int) -> bool:
    """Whether numbers that do not depend on the samples seem to be there once for each sample.

    They are then in two or more dimensions, the first of the size `samples`, with equal rows.

    Args:
        numbers: a tensor of a graph, which may have been flattened.
        samples: how many samples the replica has.
    """
    left, seen, found = [numbers], set(), False
    while left:
        tensor = left.pop()
        if not tf.is_symbolic_tensor(tensor):
            return False
        if tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        operation = tensor.op
        if operation.type == "Placeholder":
            left.append(compat.captured_tensor(tensor))
        elif _repeats(tensor, samples):
            found = True
        elif operation.type == "Cast" or operation.type in SAME_VALUES:
            left.append(operation.inputs[0])
        elif operation.type in _BY_ROWS and tensor.shape.rank and tensor.shape[0] == samples:
            # Of one sample, no shape tells whether an input is the same for all.
            rank = tensor.shape.rank
            left += [one for one in operation.inputs if samples == 1 or not _is_spread(one, rank)]
        elif samples > 1:
            return False
    return found


def _is_spread(tensor: tf.Tensor, rank: int) -> bool:
    """Whether each row of a result of this rank gets the same of a tensor."""
    return tensor.shape.rank is not None and (tensor.shape.rank < rank or tensor.shape[0] == 1)


def _repeats(tensor: tf.Tensor, samples: int) -> bool:
    """Whether an operation makes equal rows, as many as there are samples."""
    if tensor.shape.rank is None or tensor.shape.rank < 2:
        return False
    sizes, kind = tensor.shape.as_list(), tensor.op.type
    if kind in _REPEATING:
        if samples == 1:
            return sizes[0] == 1
        # `tf.repeat` inserts a dimension behind the first one, and repeats along it.
        place = next((p for p, size in enumerate(sizes) if size != 1), 0)
        return sizes[place] == samples and _is_one_row(tensor.op.inputs[0], len(sizes), place)
    if sizes[0] != samples:
        return False
    value = None if kind == "Fill" else tf.get_static_value(tensor)
    if value is None:
        return kind == "Fill"
    if samples == 1:  # several numbers, and all the same, are what `tf.zeros_like` makes of it
        return value.size > 1 and bool((value == value.flat[0]).all())
    return bool((value == value[:1]).all())


def _is_one_row(tensor: tf.Tensor, rank: int, place: int) -> bool:
    """Whether a tensor, with ones before its shape up to `rank`, is of size 1 at `place`."""
    if tensor.shape.rank is None:
        return False
    return ([1] * (rank - tensor.shape.rank) + tensor.shape.as_list())[place] == 1
