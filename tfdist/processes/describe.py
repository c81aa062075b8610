"""Objects as plain data, so that processes can compare what they were given.

Equal objects in different processes must give equal data. So the data contain no addresses, no
paths of files, and no numbers that Keras appends to names.
"""

from __future__ import annotations

import base64
import functools
import marshal
import os
import re
import types
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.checksum import digest

_DEEPEST = 12
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MOST_NUMBERS = 16
_OFTEN_INCOMPLETE = (
    keras.losses.Loss,
    keras.metrics.Metric,
    keras.optimizers.schedules.LearningRateSchedule,
)


def plain(value: object, depth: int = 0) -> Any:
    """`value` as dicts, lists, strings, numbers and None.

    Of layers and models only the class is described; they are compared as a whole elsewhere.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return repr(value)  # as text, since NaN is not equal to itself
    if depth > _DEEPEST:
        return _class_of(value)
    below = functools.partial(plain, depth=depth + 1)
    if isinstance(value, Mapping):
        if value.get("class_name") == "__lambda__":
            return below(_serialized(value["config"]))
        return {_text(str(key)): below(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [below(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((below(item) for item in value), key=repr)
    if isinstance(value, (np.ndarray, np.generic)):
        return _numbers(np.asarray(value))
    if isinstance(value, (keras.Variable, tf.Variable, tf.Tensor)):
        return _value_of(value)
    if isinstance(value, (tf.TypeSpec, tf.TensorShape, tf.DType)):
        return str(value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, functools.partial):
        return {"function": below(value.func), "of": below([value.args, value.keywords])}
    if isinstance(value, types.MethodType):
        return _class_of(value.__self__), value.__name__
    if isinstance(value, types.FunctionType):
        return _function(value, below)
    return _object(value, below)


def _text(text: str) -> str:
    """`text` without the path of a file, and without the address that a default `repr` gives."""
    return "a path" if os.path.isabs(text) else _ADDRESS.sub(" at an address", text)


def _object(value: object, below: Callable[[object], Any]) -> Any:
    if isinstance(value, keras.layers.Layer) or not hasattr(value, "get_config"):
        return _class_of(value)
    try:
        config = value.get_config()
    except Exception:  # a user's class may have no configuration
        return _class_of(value)
    return {"class": _class_of(value), **below(config), **_left_out(value, below)}


def _left_out(value: object, below: Callable[[object], Any]) -> dict[str, Any]:
    """Numbers and functions that a configuration may leave out, such as Huber's `delta`."""
    if not isinstance(value, _OFTEN_INCOMPLETE):
        return {}
    kinds = (bool, int, float, dict, types.FunctionType, functools.partial)
    attributes = {name.lstrip("_"): item for name, item in vars(value).items()}
    return {name: below(item) for name, item in attributes.items() if isinstance(item, kinds)}


def _class_of(value: object) -> str:
    name = getattr(value, "__name__", None)  # for built-in functions and wrappers of functions
    return name if isinstance(name, str) else type(value).__qualname__


def _numbers(array: np.ndarray) -> Any:
    if array.dtype.hasobject:
        return ["array", list(array.shape)]
    if array.size <= _MOST_NUMBERS:
        return str(array) if array.ndim == 0 else [str(n) for n in array.ravel()]
    content = digest(np.ascontiguousarray(array).tobytes())
    return [str(array.dtype), list(array.shape), f"content {content & 0xFFFFFFFF:08x}"]


def _value_of(value: tf.Tensor | tf.Variable) -> Any:
    try:
        return _numbers(np.asarray(value.numpy()))
    except Exception:  # a graph's tensor, or one without numbers
        return str(value.shape)


def _function(function: types.FunctionType, below: Callable[[object], Any]) -> Any:
    closure = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    captured = [below(item) for item in closure if isinstance(item, (bool, int, float, str))]
    return {
        "function": function.__qualname__,
        "code": f"{_code(function.__code__):08x}",
        "defaults": below([function.__defaults__, function.__kwdefaults__]),
        "captured": captured,
    }


def _serialized(config: Mapping[str, Any]) -> dict[str, Any]:
    """A function as Keras serializes it, without the path of its file."""
    code = marshal.loads(base64.b64decode(config["code"]))
    return {**config, "code": f"{_code(code):08x}"}


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _code(code: types.CodeType) -> int:
    """A checksum of what code does, wherever the code is."""
    constants = [
        str(_code(item)) if isinstance(item, types.CodeType) else _constant(item)
        for item in code.co_consts
    ]
    text = "|".join([*constants, *code.co_names, *code.co_varnames])
    return digest(code.co_code + text.encode()) & 0xFFFFFFFF


def _constant(item: object) -> str:
    return repr(sorted(item, key=repr)) if isinstance(item, frozenset) else repr(item)


def with_names_by_order(tree: object, with_bases: bool = True) -> Any:
    """Plain data of a configuration, with names replaced by the order in which they appear.

    Keras names layers by counting the layers of a process. So a rank that made another model before
    has "dense_1" where others have "dense". References to a layer by its name are renamed too.

    Args:
        tree: the plain data.
        with_bases: whether names that differ in more than such a number count as different.
    """
    names: dict[str, str] = {}
    bases: dict[str, int] = {}
    for name in _names(tree):
        if name not in names:
            base = re.sub(r"_\d+$", "", name) if with_bases else "name"
            bases[base] = bases.get(base, -1) + 1
            names[name] = f"{base}#{bases[base]}" if bases[base] else base
    return _renamed(tree, names)


def _names(tree: object) -> Any:
    if isinstance(tree, dict):
        for key, item in tree.items():
            if key == "name" and isinstance(item, str):
                yield item
            else:
                yield from _names(item)
    elif isinstance(tree, list):
        for item in tree:
            yield from _names(item)


def _renamed(tree: Any, names: dict[str, str], key: str = "") -> Any:
    if isinstance(tree, dict):
        return {k: _renamed(item, names, k) for k, item in tree.items()}
    if isinstance(tree, list):
        refers = len(tree) == 3 and isinstance(tree[0], str) and isinstance(tree[1], int)
        return [
            names.get(item, item) if refers and index == 0 else _renamed(item, names)
            for index, item in enumerate(tree)
        ]
    return names.get(tree, tree) if key == "name" else tree
