"""`stages`: a model whose layers are on several devices of this process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.arguments import shown
from tfdist.pipeline import cutting, refusals
from tfdist.pipeline.schedule import Schedule
from tfdist.validation import check_integer

_Call = Callable[[tf.Tensor], tf.Tensor]


def stages(
    model: keras.Model,
    devices: Sequence[str],
    micro_batches: int = 4,
    cuts: Sequence[str] | None = None,
) -> keras.Model:
    """A copy of `model` whose layers are on several devices, each of them a stage of a pipeline.

    Each batch is cut into micro-batches. While one stage computes a micro-batch, the stage before
    computes the next one. The weights after training are those of one device, up to rounding: the
    loss is computed from the whole batch, and gradients are added up over micro-batches. This is
    the schedule of GPipe (Huang et al., NeurIPS 2019).

    Compile and use the copy as any model. Its weights, and what optimizers keep for them, are on
    the devices of their stages. Saved files are those of the plain model.

    Args:
        model: a built `keras.Sequential` or functional model, a chain: each layer takes the output
            of the layer before, and nothing else. A layer may be a model. Its layers must treat
            each sample for itself. It is left as it is, and its compilation is not copied.
        devices: of this process, one for each stage, such as `["GPU:0", "GPU:1"]`.
        micro_batches: the number of parts of a batch, 1 or more. Stages wait less with more of
            them, and more operations are started.
        cuts: the names of the first layers of all stages but the first. None for stages with about
            equally many parameters.

    Raises:
        TypeError: when `model` is no Keras model.
        ValueError: for a model that is no chain, has several inputs or outputs, or has layers whose
            result differs on micro-batches (BatchNormalization, stateful layers, activity
            regularizers); for unknown devices and cuts; in the scope of a strategy.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> devices = tfdist.testing.virtual_devices(2)
    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    >>> pipeline = tfdist.pipeline.stages(model, devices, micro_batches=2)
    >>> pipeline.compile("adam", "mse")
    >>> history = pipeline.fit(np.ones((16, 8)), np.ones(16), batch_size=8, verbose=0)
    >>> [weight.value.device[-5:] for weight in pipeline.weights]
    ['CPU:0', 'CPU:0', 'CPU:1', 'CPU:1']
    """
    refusals.check_model(model)
    names = _check_devices(devices)
    check_integer("micro_batches", micro_batches, 1)
    if tf.distribute.has_strategy():
        raise ValueError(
            "A pipeline has its own devices: call `stages` outside of `strategy.scope()`. "
            f"Received: a call in the scope of {type(tf.distribute.get_strategy()).__name__}"
        )
    refusals.check_layers(model)
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    if len(names) > len(layers):
        raise ValueError(
            "Each stage needs a layer. Give fewer devices. "
            f"Received: {len(names)} devices for {len(layers)} layers"
        )
    if cuts is None:
        starts = cutting.balanced([layer.count_params() for layer in layers], len(names))
    else:
        starts = cutting.given(cuts, [layer.name for layer in layers], len(names))
    bounds = [0, *starts, len(layers)]
    device_of = {
        layer.name: name
        for name, start, end in zip(names, bounds, bounds[1:])
        for layer in layers[start:end]
    }
    copy, calls = _copied(model, device_of)
    parts = [_part(calls[start:end]) for start, end in zip(bounds, bounds[1:])]
    _run_as(copy, Schedule(parts, names, micro_batches))
    return copy


def _check_devices(devices: object) -> list[str]:
    """The names of the devices."""
    items = list(devices) if isinstance(devices, (list, tuple)) else []
    names = [getattr(device, "name", device) for device in items]
    known = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices()]
    short = [str(name).removeprefix("/device:").upper() for name in names]
    if not names or not set(short) <= set(known) or len(set(short)) < len(short):
        raise ValueError(
            f"`devices` must be a list of different devices of this process, which are {known}. "
            f"Received: devices={shown(devices)}"
        )
    return short


def _copied(model: keras.Model, device_of: dict[str, str]) -> tuple[keras.Model, list[_Call]]:
    """A copy of `model` with the same weights, each layer on the device of its name; and its chain.

    Raises:
        ValueError: when `model` is no chain.
    """
    calls: list[_Call] = []
    tensors: list[keras.KerasTensor] = []
    called_before: set[str] = set()

    def copied_layer(layer: keras.layers.Layer) -> keras.layers.Layer:
        with tf.device(device_of.get(layer.name)):
            try:
                return type(layer).from_config(layer.get_config())
            except Exception as error:  # Keras raises many kinds
                raise refusals.no_copy(layer, error) from error

    def called(layer: keras.layers.Layer, *args: object, **kwargs: object) -> keras.KerasTensor:
        if not tensors:
            tensors.extend(args[:1])
        others = keras.tree.flatten((args[1:], kwargs))
        once = isinstance(layer, keras.layers.Layer) and layer.name not in called_before
        if not once or args[0] is not tensors[-1] or any(map(keras.utils.is_keras_tensor, others)):
            raise _no_chain(model, layer.name)
        called_before.add(layer.name)
        calls.append(functools.partial(layer, **kwargs))
        with tf.device(device_of.get(layer.name)):
            tensors.append(layer(*args, **kwargs))
        return tensors[-1]

    if isinstance(model, keras.Sequential):
        (given,) = model.inputs
        first = keras.Input(batch_shape=given.shape, dtype=given.dtype, name=given.name)
        layers = [copied_layer(layer) for layer in model.layers]
        functools.reduce(lambda tensor, layer: called(layer, tensor), layers, first)
        copy = keras.Sequential([first, *layers], name=model.name)
    else:
        copy = keras.models.clone_model(model, clone_function=copied_layer, call_function=called)
        if tensors[-1] is not copy.outputs[0]:
            raise _no_chain(model, model.layers[-1].name)
    refusals.check_copy(model, copy)
    copy.set_weights(model.get_weights())
    for first, second in zip(model.weights, copy.weights):  # may have been set later than made
        second.regularizer, second.constraint = first.regularizer, first.constraint
        second.trainable = first.trainable
    for layer in compat.flatten_layers(copy):
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()  # computes with what its weights were before
    return copy, calls


def _no_chain(model: keras.Model, name: str) -> ValueError:
    return ValueError(
        "`model` must be a chain of layers: each is called once, with the output of the layer "
        "before, and nothing else. Put layers around which something flows, as residuals do, into "
        "a model, and use this model as one layer. Masks are handed on in a `keras.Sequential`, "
        "but are operations of their own in a functional model. "
        f"Received: model={model.name}, no chain at {name!r}"
    )


def _part(calls: Sequence[_Call]) -> _Call:
    """The layers of a stage, one after the other. Keras hands on masks, and `training`."""
    return lambda tensor: functools.reduce(lambda value, call: call(value), calls, tensor)


def _run_as(model: keras.Model, schedule: Schedule) -> None:
    """Makes `model` compute by `schedule`, and its optimizers keep slots beside their variables.

    The methods of this one model are replaced. A class of our own would be named in saved files.
    """
    compile_model = model.compile
    in_list = not isinstance(model, keras.Sequential) and isinstance(model.output, (list, tuple))
    model.supports_jit = False  # Keras then compiles nothing by itself

    def call(
        inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None
    ) -> tf.Tensor:
        masks = [one for one in keras.tree.flatten(mask) if one is not None]
        refusals.check_step(model, masks or None)
        # Keras takes a tensor in a list or a dict for the one input.
        (given,) = keras.tree.flatten(inputs)
        output = schedule.run(_as_input(given, model.inputs[0]))
        refusals.check_losses(model)
        return [output] if in_list else output

    @functools.wraps(compile_model)
    def compile(*args: object, **kwargs: object) -> None:
        compile_model(*args, **kwargs)
        optimizer = model.optimizer
        while optimizer is not None:
            _keep_slots_beside_variables(optimizer)
            optimizer = getattr(optimizer, "inner_optimizer", None)

    def refuse(name: str, *args: object, **kwargs: object) -> None:
        raise ValueError(
            "A pipeline computes with the layers that the model had. Change the model, and call "
            "`tfdist.pipeline.stages` with it again. "
            f"Received: {name} of the pipeline {model.name!r}"
        )

    model.call, model.compile = call, compile
    if isinstance(model, keras.Sequential):
        model.add, model.pop = (functools.partial(refuse, name) for name in ("add", "pop"))


def _as_input(tensor: tf.Tensor, wanted: keras.KerasTensor) -> tf.Tensor:
    """`tensor` with the dtype and the rank of the model's input, as Keras' own models have it."""
    rank, last = len(wanted.shape), wanted.shape[-1]
    tensor = tf.cast(tensor, wanted.dtype)
    if tensor.shape.rank == rank - 1 and last == 1:
        return tf.expand_dims(tensor, -1)
    if tensor.shape.rank == rank + 1 and tensor.shape[-1] == 1:
        return tf.squeeze(tensor, -1)
    return tensor


def _keep_slots_beside_variables(optimizer: keras.optimizers.Optimizer) -> None:
    """Keras makes slots on the default device otherwise."""
    make = optimizer.add_variable_from_reference

    @functools.wraps(make)
    def beside(
        reference_variable: keras.Variable, *args: object, **kwargs: object
    ) -> keras.Variable:
        with tf.device(reference_variable.value.device):
            return make(reference_variable, *args, **kwargs)

    optimizer.add_variable_from_reference = beside
