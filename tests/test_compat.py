"""The private attributes that tfdist needs are still there, named in a plain message if not."""

import importlib
import inspect

import pytest

NEEDED = {
    "keras.src.trainers.trainer:Trainer.compile": None,
    "keras.src.trainers.trainer:Trainer._symbolic_build": ["self", "iterator", "data_batch"],
    "keras:metrics.Mean.update_state": ["self", "values", "sample_weight"],
    "keras.src.backend.tensorflow.trainer:TensorFlowTrainer._maybe_symbolic_build": [
        "self",
        "iterator",
        "data_batch",
    ],
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._all_reduce_sum_gradients": [
        "self",
        "grads_and_vars",
    ],
    "keras.src.backend.tensorflow.optimizer:"
    "TFOptimizer._overwrite_model_variables_with_average_value": None,
    "keras.src.optimizers.base_optimizer:"
    "BaseOptimizer._overwrite_model_variables_with_average_value": None,
    "keras.src.optimizers.base_optimizer:BaseOptimizer._var_key": ["self", "variable"],
    "keras.src.optimizers.base_optimizer:BaseOptimizer._get_variable_index": ["self", "variable"],
    "keras.src.losses.loss:scale_loss_for_distribution": ["value"],
    "keras.src.losses.loss:unscale_loss_for_distribution": ["value"],
    "keras.src.losses.loss:apply_mask": ["sample_weight", "mask", "dtype", "reduction"],
    "keras.src.losses.loss:reduce_weighted_values": [
        "values",
        "sample_weight",
        "mask",
        "reduction",
        "dtype",
    ],
    "keras.src.random.seed_generator:SeedGenerator.next": ["self", "ordered"],
    "keras.src.saving.keras_saveable:KerasSaveable": None,
    "keras.src.layers.layer:Layer._flatten_layers": None,
}


@pytest.mark.parametrize("place", NEEDED)
def test_private_attribute_of_keras_exists(place):
    module, _, path = place.partition(":")
    thing = importlib.import_module(module)
    for name in path.split("."):
        assert hasattr(thing, name), f"Keras has no {place} any more: tfdist/_compat.py needs it"
        thing = getattr(thing, name)
    expected = NEEDED[place]
    if expected is not None:
        assert list(inspect.signature(thing).parameters)[: len(expected)] == expected, (
            f"{place} takes other arguments now: tfdist/_compat.py must follow"
        )


def test_private_attributes_of_instances_exist():
    import keras

    layer = keras.layers.BatchNormalization()
    layer.build((None, 2))
    assert len(layer._non_trainable_variables) == 2
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert model._distribute_strategy is None
    optimizer = keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    assert list(optimizer._trainable_variables) == model.trainable_variables
    assert len(optimizer._trainable_variables_indices) == 2


def test_keras_outside_a_tfdist_strategy_is_unchanged():
    """The wrappers only pass on when no tfdist strategy runs the step."""
    import numpy as np
    from keras.src.losses import loss as keras_loss

    assert float(keras_loss.scale_loss_for_distribution(np.float32(3.0))) == 3.0
    assert float(keras_loss.unscale_loss_for_distribution(np.float32(3.0))) == 3.0
