"""The update waits for the backward pass, at little cost."""

import keras
import tensorflow as tf

from tfdist.step.update import WholeVariables


def test_each_operation_of_an_update_waits_for_one_other():
    variables = [keras.Variable([1.0, 2.0]) for _ in range(3)]
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(variables)

    @tf.function(autograph=False)
    def step(gradient):
        backward = [tf.multiply(gradient, factor, "backward") for factor in range(5)]
        WholeVariables(optimizer).apply([gradient] * 3, variables, after=backward)

    graph = step.get_concrete_function(tf.ones([2])).graph
    waiting = [op for op in graph.get_operations() if _waits_for(op, "backward")]
    assert len(waiting) == 1
    behind = [op.type for op in graph.get_operations() if _waits_for(op, waiting[0].name)]
    assert behind.count("ReadVariableOp") >= len(variables)


def _waits_for(operation, name):
    return any(other.name.startswith(name) for other in operation.control_inputs)
