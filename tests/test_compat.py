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
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._var_key": ["self", "variable"],
    "keras.src.backend.tensorflow.core:Variable._initialize": ["self", "value"],
    "keras.src.backend.tensorflow.numpy:take": ["x", "indices", "axis"],
    "keras.src.backend.tensorflow.numpy:add": ["x1", "x2"],
    "keras.src.backend.tensorflow.numpy:subtract": ["x1", "x2"],
    "keras.src.backend.tensorflow.numpy:max": ["x", "axis", "keepdims", "initial"],
    "keras.src.backend.tensorflow.numpy:min": ["x", "axis", "keepdims", "initial"],
    "keras.src.backend.tensorflow.nn:conv": ["inputs"],
    "keras.src.backend.tensorflow.nn:depthwise_conv": ["inputs"],
    "keras.src.backend.tensorflow.nn:separable_conv": ["inputs"],
    "keras.src.backend.tensorflow.nn:conv_transpose": ["inputs"],
    "keras.src.backend.tensorflow.nn:max_pool": ["inputs"],
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
    "keras.src.random.seed_generator:global_seed_generator": [],
    "keras.src.utils.rng_utils:GLOBAL_RANDOM_SEED": None,
    "keras.src.backend.common.global_state:GLOBAL_STATE_TRACKER": None,
    "keras.src.backend.common.global_state:set_global_attribute": ["name", "value"],
    "keras.src.saving.keras_saveable:KerasSaveable": None,
    "keras.src.layers.layer:Layer._flatten_layers": None,
    "keras.src.backend.tensorflow.trainer:TensorFlowTrainer.fit": ["self", "x", "y"],
    "keras.src.backend.tensorflow.trainer:TFEpochIterator.catch_stop_iteration": ["self"],
    "keras.src.backend.tensorflow.trainer:reduce_per_replica": ["values", "strategy", "reduction"],
    "keras.src.trainers.data_adapters.array_data_adapter:ArrayDataAdapter.get_tf_dataset": ["self"],
    "keras.src.trainers.data_adapters.array_data_adapter:ArrayDataAdapter.num_batches": None,
    "keras.src.trainers.data_adapters.py_dataset_adapter:PyDatasetAdapter.get_tf_dataset": ["self"],
    "keras.src.trainers.data_adapters.py_dataset_adapter:PyDatasetAdapter.num_batches": None,
    "keras.src.saving.saving_lib:save_model": ["model", "filepath"],
    "keras.src.saving.saving_lib:save_weights_only": ["model", "filepath"],
    "keras.src.legacy.saving.legacy_h5_format:save_model_to_hdf5": ["model", "filepath"],
    "keras:callbacks.CallbackList.set_model": ["self", "model"],
    "keras:Model.load_weights": ["self", "filepath"],
    "keras:Model.export": ["self", "filepath"],
}
_DISTRIBUTE = {
    "collective_all_reduce_strategy:CollectiveAllReduceExtended": {
        "_create_variable": ["self", "next_creator"],
        "_get_variable_creator_initial_value": ["self", "replica_id", "device", "primary_var"],
        "_initialize_local_devices": ["self", "cluster_resolver", "worker_device"],
        "_update_config_proto": ["self", "config_proto"],
    },
    "cross_device_utils:CollectiveReplicaLauncher": {"_use_unique_instance_key": ["self"]},
    "input_lib:DistributedIteratorBase": {"get_next_as_optional": ["self"]},
    "input_lib:DistributedIteratorSpec": {
        "_serialize": ["self"],
        "sanity_check_type": ["self", "other"],
    },
    "parameter_server_strategy_v2:ParameterServerStrategyV2Extended": {
        "_create_variable": ["self", "next_creator"],
        "_update": ["self", "var", "fn", "args", "kwargs", "group"],
    },
    "sharded_variable:ShardedVariable": {"assign": ["self", "value"], "numpy": ["self"]},
    "mirrored_strategy:MirroredExtended": {
        "_batch_reduce_to": ["self", "reduce_op", "value_destination_pairs", "options"],
        "_create_variable": ["self", "next_creator"],
        "_distribute_datasets_from_function": ["self", "dataset_fn", "options"],
        "_experimental_distribute_values_from_function": ["self", "value_fn"],
        "_gather_to_implementation": ["self", "value", "destinations", "axis", "options"],
        "_get_local_replica_id": ["self", "replica_id_in_sync_group"],
        "_get_replica_id_in_sync_group": ["self", "replica_id"],
        "_in_multi_worker_mode": ["self"],
        "_num_replicas_in_sync": None,
        "_reduce_to": ["self", "reduce_op", "value", "destinations", "options"],
    },
}
NEEDED |= {
    f"tensorflow.python.distribute.{owner}.{name}": arguments
    for owner, names in _DISTRIBUTE.items()
    for name, arguments in names.items()
}
NEEDED |= {
    f"tensorflow.python.distribute.{place}": arguments
    for place, arguments in {
        "coordinator.cluster_coordinator:ClusterCoordinator.__del__": ["self"],
        "coordinator.coordinator_context:with_dispatch_context": ["worker_obj"],
        "distribute_utils:regroup": ["values", "wrap_class", "always_wrap"],
        "input_lib:_calculate_replicas_with_values": ["strategy", "input_workers", "optional_list"],
        "values:Mirrored": None,
        "values:DistributedVariable.numpy": ["self"],
    }.items()
}
NEEDED["tensorflow:Operation._add_control_input"] = None
NEEDED["tensorflow:Graph._get_function"] = ["self", "name"]
NEEDED["tensorflow.python.eager.record:should_record_backprop"] = ["tensors"]
NEEDED["tensorflow.python.eager.record:stop_recording"] = None


@pytest.mark.parametrize("place", NEEDED)
def test_private_attribute_exists(place):
    module, _, path = place.partition(":")
    thing = importlib.import_module(module)
    for name in path.split("."):
        assert hasattr(thing, name), f"there is no {place} any more: tfdist/compat.py needs it"
        thing = getattr(thing, name)
    expected = NEEDED[place]
    if expected is not None:
        assert list(inspect.signature(thing).parameters)[: len(expected)] == expected, (
            f"{place} takes other arguments now: tfdist/compat.py must follow"
        )


def test_private_attributes_of_instances_exist():
    import keras

    layer = keras.layers.BatchNormalization()
    layer.build((None, 2))
    assert len(layer._non_trainable_variables) == 2
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert model._distribute_strategy is None
    assert model._initial_epoch is None
    model.compile(loss="mse", metrics=["mae"])
    assert (model._compile_loss.built, model._compile_metrics.built) == (False, False)
    assert keras.callbacks.CallbackList()._async_train in (True, False)
    optimizer = keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    assert list(optimizer._trainable_variables) == model.trainable_variables
    assert len(optimizer._trainable_variables_indices) == 2


def test_unseeded_random_numbers_come_from_one_generator_by_name():
    import keras
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    from tfdist import compat

    keras.random.uniform(())
    generator = global_state.get_global_attribute(compat._SEED_GENERATOR)
    assert generator is seed_generator.global_seed_generator()


def test_parts_know_the_variable_that_they_are_of():
    import tensorflow as tf

    from tfdist import compat

    parts = [tf.Variable([1.0]), tf.Variable([2.0, 3.0])]
    whole = compat.PartitionedVariable(parts, "whole")
    assert parts[0]._sharded_container() is whole
    assert [compat.place_of_part(v) for v in (*parts, tf.Variable(0.0))] == [0, 1, None]


def test_graphs_of_functions_and_captures_are_found():
    import tensorflow as tf

    from tfdist import compat

    assert tf.GradientTape()._recording is False
    outside = tf.Variable(2.0)
    inner = tf.function(lambda: outside * 2.0)

    @tf.function
    def outer():
        called = inner().op
        graph = compat.function_graph(called.graph, called.get_attr("f").name)
        (placeholder,) = graph.inputs
        assert compat.captured_tensor(placeholder).dtype == tf.resource
        assert compat.function_graph(called.graph, "none") is None
        return called.outputs[0]

    assert float(outer()) == 4.0


def test_keras_outside_a_tfdist_strategy_is_unchanged():
    """The wrappers only pass on when no tfdist strategy runs the step."""
    import numpy as np
    from keras.src.losses import loss as keras_loss

    assert float(keras_loss.scale_loss_for_distribution(np.float32(3.0))) == 3.0
    assert float(keras_loss.unscale_loss_for_distribution(np.float32(3.0))) == 3.0
