"""Every private attribute of TensorFlow and Keras that tfdist touches, and nothing else.

A strategy must know and change things inside a training step for which Keras 3 has no hook. So some
of Keras' functions are wrapped, once, when a strategy is imported. Unless a tfdist strategy is
running the step, a wrapper only calls the original. What a wrapper does in such a step is not
decided here: `step/` and other packages install the behaviour with the functions named `hook_...`.
Each file has one topic; the table of all attributes is in `registry.py`.
"""

from __future__ import annotations

import functools

from tfdist.compat import (
    data,
    gradients,
    initial_values,
    operations,
    optimizers,
    own_copies,
    parts,
    philox,
    random_numbers,
    servers,
    stored_rows,
    together,
    tuning,
    variables,
)
from tfdist.compat.building import hook_symbolic_build, unbuilt_parts
from tfdist.compat.call_variables import CallVariable
from tfdist.compat.collectives import install_collectives, number_when_traced, separate_collectives
from tfdist.compat.compilation import (
    are_captured_by,
    compile_where_possible,
    exchanges,
    hook_functions,
    is_in_xla,
    is_refused_meeting,
)
from tfdist.compat.coordinator import (
    Coordinator,
    allow_functions_of_coordinator,
    as_worker,
    is_lost_ps,
    is_lost_worker,
    leave_executors_at_once,
    run_on_workers,
)
from tfdist.compat.data import counted_by_keras, keras_distributes, number_of_batches
from tfdist.compat.gradients import (
    gradients_by_value,
    hook_gradients,
    in_jacobian,
    is_recorded,
    resources_of,
    unrecorded,
)
from tfdist.compat.graphs import (
    captured_from,
    captured_tensor,
    function_graph,
    innermost_function,
    is_in_function_of,
    operations_so_far,
    resource_of,
    run_after,
    traced_function,
    written_since,
)
from tfdist.compat.groups import abort_group, form_group, jobs_with_reducers
from tfdist.compat.initial_values import CHIEF, InitialValue
from tfdist.compat.launching import (
    all_to_all,
    all_to_all_between_workers,
    gather,
    gather_between_workers,
    gather_in_pair,
    sum_between_workers,
)
from tfdist.compat.losses import (
    hook_keras_losses,
    hook_loop_losses,
    hook_mean_metric,
    masked_weights,
)
from tfdist.compat.masks import mask_of, set_mask
from tfdist.compat.metric_states import hook_metric_states
from tfdist.compat.models import flatten_layers, model_strategy, own_non_trainable_variables
from tfdist.compat.multi_worker import OPERATIONS_UNDER_WAY, MultiWorkerExtended
from tfdist.compat.normalization import hook_masked_moments
from tfdist.compat.one_replica import OneReplicaExtended
from tfdist.compat.operations import hook_add, hook_extremum, hook_neighbourhoods
from tfdist.compat.optimizers import (
    IndexedOptimizer,
    apply_weight_decay,
    applying_reduced_gradients,
    hook_apply,
    rate_of,
    scaled_learning_rate,
    variables_to_build,
)
from tfdist.compat.own_copies import moving_averages, updating_own_copy
from tfdist.compat.partitions import (
    ParameterServerExtended,
    PartitionedVariable,
    place_of_part,
    server,
)
from tfdist.compat.parts import PartVariable, Slot, StoredPart, clipping_by, recording_slots
from tfdist.compat.placement import variables_on
from tfdist.compat.random_numbers import StateOfThread, default_seeds_kept, hook_seeds
from tfdist.compat.reading import hook_reading
from tfdist.compat.recovery import (
    connect_again,
    connect_when,
    inner_variable,
    move_to,
    plain_variable,
)
from tfdist.compat.registry import check_overrides
from tfdist.compat.rewiring import repeated, replace_input
from tfdist.compat.row_updates import RowsOfVariable
from tfdist.compat.runs import hook_repeats, hook_runs
from tfdist.compat.saving import SaveableState, hook_load_weights, hook_saving, not_restored
from tfdist.compat.servers import servers_see_each_other
from tfdist.compat.sharded_weights import (
    ShardedVariable,
    hook_layer_calls,
    hook_weights,
    is_sharded,
    shard,
    stand_in,
    stored,
    stored_dtype,
)
from tfdist.compat.single_batches import hook_single_batches
from tfdist.compat.stateless import outside_stateless_scope
from tfdist.compat.stored_rows import is_large, reading_rows, writes_rows
from tfdist.compat.together import OneOfMany, decays, updating_first
from tfdist.compat.traces import custom_gradients, forget_custom_gradients, hook_traces
from tfdist.compat.trainer import (
    hook_callbacks,
    hook_compile,
    hook_end_of_data,
    hook_reduce_per_replica,
    initial_epoch,
    keras_step,
    set_backup_epoch,
    set_initial_epoch,
    step_of,
)
from tfdist.compat.variables import hook_additions, hook_variables

__all__ = [
    "mask_of",
    "set_mask",
    "CHIEF",
    "OPERATIONS_UNDER_WAY",
    "CallVariable",
    "Coordinator",
    "IndexedOptimizer",
    "InitialValue",
    "MultiWorkerExtended",
    "OneOfMany",
    "OneReplicaExtended",
    "ParameterServerExtended",
    "PartVariable",
    "PartitionedVariable",
    "RowsOfVariable",
    "SaveableState",
    "ShardedVariable",
    "StateOfThread",
    "Slot",
    "StoredPart",
    "abort_group",
    "all_to_all",
    "all_to_all_between_workers",
    "allow_functions_of_coordinator",
    "apply_weight_decay",
    "applying_reduced_gradients",
    "are_captured_by",
    "as_worker",
    "captured_from",
    "captured_tensor",
    "clipping_by",
    "compile_where_possible",
    "connect_again",
    "connect_when",
    "counted_by_keras",
    "custom_gradients",
    "decays",
    "default_seeds_kept",
    "exchanges",
    "flatten_layers",
    "forget_custom_gradients",
    "form_group",
    "jobs_with_reducers",
    "function_graph",
    "innermost_function",
    "gather",
    "gather_between_workers",
    "gather_in_pair",
    "gradients_by_value",
    "hook_add",
    "hook_additions",
    "hook_apply",
    "hook_callbacks",
    "hook_compile",
    "hook_end_of_data",
    "hook_extremum",
    "hook_functions",
    "hook_gradients",
    "hook_keras_losses",
    "hook_layer_calls",
    "hook_load_weights",
    "hook_loop_losses",
    "hook_masked_moments",
    "hook_mean_metric",
    "hook_metric_states",
    "hook_neighbourhoods",
    "hook_reading",
    "hook_reduce_per_replica",
    "hook_repeats",
    "hook_runs",
    "hook_saving",
    "hook_seeds",
    "hook_single_batches",
    "hook_symbolic_build",
    "hook_traces",
    "hook_variables",
    "hook_weights",
    "in_jacobian",
    "initial_epoch",
    "inner_variable",
    "install",
    "install_collectives",
    "is_in_function_of",
    "is_in_xla",
    "is_large",
    "is_lost_ps",
    "is_lost_worker",
    "is_recorded",
    "is_refused_meeting",
    "is_sharded",
    "keras_distributes",
    "keras_step",
    "leave_executors_at_once",
    "masked_weights",
    "model_strategy",
    "move_to",
    "moving_averages",
    "not_restored",
    "number_of_batches",
    "number_when_traced",
    "operations_so_far",
    "outside_stateless_scope",
    "own_non_trainable_variables",
    "place_of_part",
    "plain_variable",
    "rate_of",
    "reading_rows",
    "recording_slots",
    "repeated",
    "replace_input",
    "resource_of",
    "resources_of",
    "run_after",
    "run_on_workers",
    "scaled_learning_rate",
    "separate_collectives",
    "server",
    "servers_see_each_other",
    "set_backup_epoch",
    "set_initial_epoch",
    "shard",
    "stand_in",
    "step_of",
    "stored",
    "stored_dtype",
    "sum_between_workers",
    "traced_function",
    "unbuilt_parts",
    "unrecorded",
    "updating_first",
    "updating_own_copy",
    "variables_on",
    "variables_to_build",
    "writes_rows",
    "written_since",
]


@functools.cache
def install() -> None:
    """Installs the wrappers without hooks, once per process; raises if an attribute is missing."""
    check_overrides()
    topics = (data, gradients, initial_values, operations, optimizers, own_copies, parts, philox)
    for topic in (*topics, random_numbers, servers, stored_rows, together, tuning, variables):
        topic.install()
