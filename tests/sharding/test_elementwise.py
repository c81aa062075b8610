"""Which optimizers can update parts of variables."""

import keras
import pytest
import tensorflow as tf

from tfdist.step.sharding.elementwise import check_elementwise, needs_whole_variables

_ELEMENTWISE = [
    keras.optimizers.SGD(momentum=0.9, nesterov=True),
    keras.optimizers.RMSprop(centered=True, momentum=0.5),
    keras.optimizers.Adam(amsgrad=True),
    keras.optimizers.AdamW(weight_decay=0.1),
    keras.optimizers.Adadelta(),
    keras.optimizers.Adagrad(),
    keras.optimizers.Adamax(),
    keras.optimizers.Nadam(),
    keras.optimizers.Ftrl(l1_regularization_strength=0.1),
    keras.optimizers.Lion(),
    keras.optimizers.Adam(clipnorm=0.1),
    keras.optimizers.Adam(global_clipnorm=0.1),
    keras.optimizers.SGD(clipvalue=0.1),
    keras.optimizers.Adam(use_ema=True, ema_overwrite_frequency=2),
    keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10)),
]
_OTHERS = [
    (keras.optimizers.Lamb(), "differs from that of its halves"),
    (keras.optimizers.Adafactor(), "differs from that of its halves"),
    (keras.optimizers.Muon(), "differs from that of its halves"),
]


class _ByNorm(keras.optimizers.SGD):
    """Moves each variable by one unit."""

    def update_step(self, gradient, variable, learning_rate):
        norm = keras.ops.sqrt(keras.ops.sum(keras.ops.square(gradient)))
        super().update_step(gradient / norm, variable, learning_rate)


class _ByGlobalNorm(keras.optimizers.SGD):
    """Divides all gradients by the norm of them all."""

    def apply(self, grads, trainable_variables=None):
        norm = tf.linalg.global_norm(grads)
        super().apply([gradient / norm for gradient in grads], trainable_variables)


class _FromValues(keras.optimizers.SGD):
    """Remembers where the weights began."""

    def build(self, variables):
        super().build(variables)
        for first, variable in zip(self.add_optimizer_variables(variables, "first"), variables):
            self.assign(first, keras.ops.copy(variable))


class _NotMade(keras.optimizers.SGD):
    @classmethod
    def from_config(cls, config):
        raise TypeError("no copies")


class _SubclassOfLamb(keras.optimizers.Lamb):
    pass


class _InOneGo(keras.optimizers.SGD):
    """Updates in `apply`, and has no `update_step`."""

    def apply(self, grads, trainable_variables=None):
        for gradient, variable in zip(grads, trainable_variables):
            variable.assign_sub(gradient / tf.norm(gradient))

    def update_step(self, gradient, variable, learning_rate):
        raise NotImplementedError


class _ClipsWhatIsLarge(keras.optimizers.Adam):
    """Clips gradients whose norm is above what most of them have."""

    def apply(self, grads, trainable_variables=None):
        super().apply(tf.clip_by_global_norm(grads, 10.0)[0], trainable_variables)


class _EnlargesWhatIsSmall(keras.optimizers.SGD):
    """Makes gradients as large as they should be at least."""

    def update_step(self, gradient, variable, learning_rate):
        norm = tf.norm(gradient)
        gradient = tf.where(norm < 0.1, gradient / norm, gradient)
        super().update_step(gradient, variable, learning_rate)


class _SkipsWhatIsNotFinite(keras.optimizers.SGD):
    """Makes no update where any gradient is not finite."""

    def apply(self, grads, trainable_variables=None):
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in grads])
        grads = [tf.where(finite, g, tf.zeros_like(g)) for g in grads]
        super().apply(grads, trainable_variables)


class _ReplacesWhatIsNotFinite(keras.optimizers.SGD):
    """Replaces single elements."""

    def update_step(self, gradient, variable, learning_rate):
        gradient = tf.where(tf.math.is_finite(gradient), gradient, tf.zeros_like(gradient))
        super().update_step(gradient, variable, learning_rate)


class _Trusting(keras.optimizers.SGD):
    """Has a setting that its configuration does not have."""

    def __init__(self, *args, trust=False, **kwargs):
        super().__init__(*args, **kwargs)
        self.trust = trust

    def update_step(self, gradient, variable, learning_rate):
        if self.trust:
            gradient = gradient / tf.norm(gradient)
        super().update_step(gradient, variable, learning_rate)


def _trusting_later():
    optimizer = _Trusting()
    optimizer.trust = True
    return optimizer


_ELEMENTWISE += [_ReplacesWhatIsNotFinite(), _Trusting()]
_WHOLE = [*(optimizer for optimizer, _ in _OTHERS), keras.optimizers.ScheduleFreeAdamW()]
_OTHERS += [
    (_ByNorm(), "differs from that of its halves"),
    (_ByGlobalNorm(), "differs from that of its halves"),
    (_SubclassOfLamb(), "differs from that of its halves"),
    (_InOneGo(), "differs from that of its halves"),
    (_ClipsWhatIsLarge(), "differs from .* where the largest gradient is .*e\\+03"),
    (_EnlargesWhatIsSmall(), "differs from .* where the largest gradient is 0.00"),
    (_SkipsWhatIsNotFinite(), "differs from .* where the largest gradient is nan"),
    (_Trusting(trust=True), "differs from that of its halves"),
    (_trusting_later(), "differs from that of its halves"),
    (keras.optimizers.ScheduleFreeAdamW(), "begins with the values of the weights"),
    (_FromValues(), "begins with the values of the weights"),
    (_NotMade(), "raises TypeError: no copies"),
]


@pytest.mark.parametrize("optimizer", _ELEMENTWISE, ids=lambda o: o.name)
def test_optimizers_that_treat_each_element_for_itself_are_taken(optimizer):
    check_elementwise(optimizer)
    assert not optimizer.built


@pytest.mark.parametrize(("optimizer", "reason"), _OTHERS, ids=lambda o: getattr(o, "name", ""))
def test_others_are_refused_with_the_reason(optimizer, reason):
    with pytest.raises(ValueError, match=f"Received: {type(optimizer).__name__}, .*{reason}"):
        check_elementwise(optimizer)


@pytest.mark.parametrize("optimizer", _WHOLE, ids=lambda o: o.name)
def test_some_of_keras_update_each_variable_for_itself(optimizer):
    assert needs_whole_variables(optimizer)


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.Adam(),
        _ByNorm(),
        _SubclassOfLamb(),
        keras.optimizers.MultiOptimizer(lambda variable: keras.optimizers.Lamb()),
    ],
    ids=lambda o: o.name,
)
def test_others_do_not_or_are_not_known_to(optimizer):
    assert not needs_whole_variables(optimizer)
