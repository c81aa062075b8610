"""What the operations of a step use of a whole weight: the weight itself, or another form of it."""

from __future__ import annotations

import tensorflow as tf

from tfdist import compat

# Operations that give a weight another form. The backward pass may use this form, which is made
# again, instead of the weight.
_FORMS = {"Cast", "Identity", "Reshape", "Transpose"}
# Operations whose gradients do not use the weight, but its shape.
_LOOKUPS = {"GatherV2", "Shape"}


def is_only_looked_up(tensor: tf.Tensor) -> bool:
    """Whether no gradient needs a weight, such as the table of an embedding, or a form of it."""
    return all(
        user.type in _LOOKUPS or (user.type in _FORMS and is_only_looked_up(user.outputs[0]))
        for user in tensor.consumers()
    )


def redirect(
    tensor: tf.Tensor, again: list[tuple[int, tf.Tensor]], number: dict[tf.Operation, int]
) -> None:
    """Makes the newer users of `tensor` use what is in `again`.

    Args:
        tensor: a weight, or another form of a weight.
        again: the same, made again, and the number of operations before that.
        number: of each operation of the graph.
    """
    for user in tensor.consumers():
        if user not in number:
            continue  # it was made here
        newest = [other for since, other in again if since <= number[user]]
        places = [place for place, given in enumerate(user.inputs) if given is tensor]
        if newest:
            for place in places:
                compat.replace_input(user, place, newest[-1])
        elif user.type in _FORMS and places == [0] and _used_since(user, again[0][0], number):
            made = []
            for since, other in again:
                form = compat.repeated(user, [other, *list(user.inputs)[1:]])[0]
                made.append((since, form))
            redirect(user.outputs[0], made, number)


def _used_since(operation: tf.Operation, since: int, number: dict[tf.Operation, int]) -> bool:
    """Whether an operation of the backward pass uses a form of a weight."""
    return any(
        number.get(user, -1) >= since or (user.type in _FORMS and _used_since(user, since, number))
        for user in operation.outputs[0].consumers()
    )
