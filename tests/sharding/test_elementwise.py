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


class _ClipsByItsMean(keras.optimizers.Adam):
    """Clips by a running mean of the norm, after some updates."""

    mean = None

    def build(self, variables):
        super().build(variables)
        if self.keeps_mean:
            self.mean = self.add_variable((), name="mean")

    def __init__(self, *args, keeps_mean=True, **kwargs):
        super().__init__(*args, **kwargs)
        self.keeps_mean = keeps_mean

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        norm = tf.linalg.global_norm(grads)
        most = tf.fill([], 0.1) if self.mean is None else 0.5 * self.mean.value
        if self.mean is not None:
            self.mean.assign(0.9 * self.mean + 0.1 * norm)
        factor = tf.where(self.iterations.value < 1000, 1.0, tf.minimum(1.0, most / norm))
        super().apply([gradient * factor for gradient in grads], trainable_variables)


class _DecaysMatrices(keras.optimizers.SGD):
    """Tells kernels from biases by their shapes."""

    def _use_weight_decay(self, variable):
        return len(variable.shape) > 1


class _KeepsSquares(keras.optimizers.SGD):
    """Keeps a sum over each variable that no update uses yet."""

    def build(self, variables):
        super().build(variables)
        self.squares = self.add_variable((), name="squares")

    def update_step(self, gradient, variable, learning_rate):
        self.squares.assign_add(tf.reduce_sum(tf.square(gradient)))
        super().update_step(gradient, variable, learning_rate)


class _KeepsNorms(keras.optimizers.SGD):
    """Keeps the norm in each element of a slot."""

    def build(self, variables):
        super().build(variables)
        self.norms = self.add_optimizer_variables(variables, "norm")

    def update_step(self, gradient, variable, learning_rate):
        norms = self.norms[self._get_variable_index(variable)]
        norms.assign(tf.fill(norms.shape, tf.norm(gradient)))
        super().update_step(gradient, variable, learning_rate)


class _KeepsMore(keras.optimizers.SGD):
    """Keeps something for matrices only."""

    def build(self, variables):
        super().build(variables)
        self.more = self.add_optimizer_variables(
            [variable for variable in variables if len(variable.shape) > 1], "more"
        )


class _Counts(keras.optimizers.SGD):
    """Has a number that is the same for all variables, and one for each element."""

    def build(self, variables):
        super().build(variables)
        self.count = self.add_variable((), name="count", dtype="int32")
        self.sums = self.add_optimizer_variables(variables, "sum")

    def update_step(self, gradient, variable, learning_rate):
        self.count.assign_add(1)
        self.sums[self._get_variable_index(variable)].assign_add(gradient)
        super().update_step(gradient, variable, learning_rate)


class _ClipsSelf(keras.optimizers.SGD):
    """Clips by itself, with the setting of Keras."""

    def _clip_gradients(self, grads):
        if not self.global_clipnorm:
            return grads
        return tf.clip_by_global_norm(list(grads), self.global_clipnorm)[0]


class _ClipsByAxis(keras.optimizers.SGD):
    """Clips rows instead of whole gradients."""

    def _clip_by_norm(self, values, axes=None):
        return tf.clip_by_norm(values, self.clipnorm, axes=-1)


class _ClipsInApply(keras.optimizers.SGD):
    """Clips with the setting of Keras before Keras does."""

    def apply(self, grads, trainable_variables=None):
        if self.global_clipnorm:
            grads = tf.clip_by_global_norm(list(grads), self.global_clipnorm)[0]
        super().apply(grads, trainable_variables)


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


_ELEMENTWISE += [_ReplacesWhatIsNotFinite(), _Trusting(), _Counts()]
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
    (_ClipsByItsMean(), "state for a variable differs .* and 0 updates were made before"),
    (
        _ClipsByItsMean(keeps_mean=False),
        "update of a variable differs .* and 1000000 updates were made before",
    ),
    (_DecaysMatrices(0.5, weight_decay=1e-5), "differs from that of its halves"),
    (_KeepsSquares(), "state for a variable differs"),
    (_KeepsNorms(), "state for a variable differs"),
    (_KeepsMore(), "state for a variable differs"),
    (_ClipsSelf(global_clipnorm=0.1), "has a `_clip_gradients` of its own"),
    (_ClipsByAxis(clipnorm=0.1), "has a `_clip_by_norm` of its own"),
    (_ClipsInApply(global_clipnorm=0.1), "differs from that of its halves"),
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
