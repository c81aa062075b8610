"""What holds for every registered compressor."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compression.replicas import (
    VARIANTS,
    exchange,
    name_of,
    own_names,
    roundtrip,
    shaped,
    spec_of,
)
from tfdist import compression


def _more(*values):
    """What only the full suite tries."""
    return [pytest.param(value, marks=pytest.mark.full) for value in values]


every_compressor = pytest.mark.parametrize("compressor", VARIANTS, ids=name_of)


def _matrix(rows, columns, seed, scale=1.0):
    return (scale * np.random.default_rng(seed).normal(size=(rows, columns))).astype("float32")


_MATRICES = st.builds(_matrix, st.integers(1, 40), st.integers(1, 30), st.integers(0, 999))


def test_every_registered_compressor_is_tested():
    own = {c.name for c in VARIANTS if type(c).__module__.startswith("tfdist.")}
    assert own == own_names()


@every_compressor
@given(_MATRICES)
@settings(max_examples=10, deadline=None)
def test_shape_and_dtype_survive_and_the_payload_has_the_stated_size(compressor, matrix):
    gradient = shaped(compressor, matrix)
    result, sent = roundtrip(compressor, gradient)
    assert sent == compressor.wire_bytes(spec_of(gradient))
    for tensor in (result.total, result.own):
        assert (tensor.shape, tensor.dtype) == (gradient.shape, gradient.dtype)
    first = compressor.init(spec_of(gradient))
    assert {k: v.shape for k, v in result.state.items()} == {k: v.shape for k, v in first.items()}


@every_compressor
@pytest.mark.parametrize("scale", [0.0, 1e30, *_more(1e-30, 1e-40)])
def test_zeros_huge_and_tiny_values_stay_finite(compressor, scale):
    for shape in ((1, 1), (23, 17)):
        gradient = shaped(compressor, _matrix(*shape, seed=1, scale=scale))
        (first, _), sent = exchange(compressor, [gradient, -2.0 * gradient])
        second, _ = exchange(compressor, [gradient] * 2, [first.state] * 2, number=1)
        for result in (first, second[0]):
            for tensor in (result.total, result.own, *result.state.values()):
                assert np.isfinite(tensor.numpy()).all()
        assert sent == compressor.wire_bytes(spec_of(gradient))


@pytest.mark.parametrize("compressor", [c for c in VARIANTS if c.name != "noop"], ids=name_of)
@pytest.mark.parametrize("value", [np.nan, *_more(np.inf, -np.inf)])
@pytest.mark.parametrize("place", [0, *_more(200, -1)])
def test_what_is_no_number_arrives_as_such_at_all_replicas(compressor, value, place):
    broken = _matrix(23, 17, seed=2)
    broken.flat[place] = value
    gradients = [shaped(compressor, _matrix(23, 17, seed=3)), shaped(compressor, broken)]
    results, _ = exchange(compressor, gradients)
    for result in results:
        assert not np.isfinite(result.total.numpy()).all()


@every_compressor
def test_all_replicas_get_the_same_bits(compressor):
    gradients = [shaped(compressor, _matrix(40, 30, seed)) for seed in range(3)]
    results, _ = exchange(compressor, gradients)
    for result in results[1:]:
        np.testing.assert_array_equal(result.total, results[0].total)
        for name in compressor.shared_state:
            np.testing.assert_array_equal(result.state[name], results[0].state[name])


@every_compressor
def test_the_total_is_the_sum_of_what_the_replicas_have_sent(compressor):
    gradients = [shaped(compressor, _matrix(40, 30, seed)) for seed in range(3)]
    results, _ = exchange(compressor, gradients)
    total = tf.add_n([result.own for result in results])
    np.testing.assert_allclose(results[0].total, total, atol=2e-6 * np.abs(total).max())


_UNBIASED = [c for c in VARIANTS if c.unbiased]


@pytest.mark.parametrize("compressor", _UNBIASED, ids=name_of)
def test_the_mean_of_an_unbiased_compressor_is_the_gradient(compressor):
    draws = 10_000
    gradient = shaped(compressor, _matrix(3, 4, seed=4))

    @tf.function
    def decoded(number):
        step = compression.Step(tf.stack([number, 1]), tf.stack([number, 2]))
        exchanged = compressor.exchange(gradient, compressor.init(spec_of(gradient)), step)
        payload = next(exchanged)
        try:
            exchanged.send(
                payload
                if compressor.aggregation == "sum"
                else tuple(part[None] for part in payload)
            )
        except StopIteration as end:
            return end.value.total

    found = tf.function(lambda: tf.map_fn(decoded, tf.range(draws), tf.float32))()
    found = found.numpy().astype("float64")
    error = 5 * found.std(axis=0) / draws**0.5
    assert (np.abs(found.mean(axis=0) - gradient) <= error + 1e-6).all()


def test_the_compressors_of_unbiased_papers_say_so():
    assert {c.name for c in _UNBIASED} == {"none", "int8", "qsgd", "terngrad", "randomk"}


def _contracts(compressor):
    return compressor.contraction(spec_of(shaped(compressor, _matrix(2, 3, seed=0)))) is not None


_CONTRACTING = [c for c in VARIANTS if _contracts(c)]


def test_the_compressors_of_papers_that_promise_a_contraction_declare_one():
    """The others' papers bound it in the mean, for some inputs, or not at all."""
    assert {c.name for c in _CONTRACTING} == {"none", "onebit", "signsgd", "topk"}
    assert {c.name for c in VARIANTS if c not in _CONTRACTING} == {
        *("bf16", "dgc", "fp16", "int8", "noop"),
        *("powersgd", "qsgd", "randomk", "terngrad", "threshold"),
    }


@pytest.mark.parametrize("compressor", _CONTRACTING, ids=name_of)
@given(_MATRICES, st.sampled_from([1.0, 1e-6, 1e6]))
@settings(max_examples=10, deadline=None)
def test_the_declared_contraction_holds(compressor, matrix, scale):
    gradient = shaped(compressor, matrix * scale)
    delta = compressor.contraction(spec_of(gradient))
    assert 0.0 < delta <= 1.0
    result, _ = roundtrip(compressor, gradient)
    error = np.square(result.own.numpy() - gradient.numpy(), dtype="float64").sum()
    bound = (1.0 - delta) * np.square(gradient.numpy(), dtype="float64").sum()
    assert error <= bound * (1 + 1e-5) + 1e-12 * scale**2


def test_the_contraction_of_top_k_holds_for_long_vectors_too():
    compressor = compression.TopK(0.01)
    random = np.random.default_rng(5)
    for values in (
        random.normal(size=200_000),
        random.standard_cauchy(size=200_000),
        np.tile(np.arange(400.0), 500),  # a sample of every 400th would mislead
    ):
        gradient = tf.constant(values, tf.float32)
        result, _ = roundtrip(compressor, gradient)
        error = np.square(result.own.numpy() - gradient.numpy(), dtype="float64").sum()
        delta = compressor.contraction(spec_of(gradient))
        assert error <= (1.0 - delta) * np.square(gradient.numpy(), dtype="float64").sum()


def test_signs_have_scales_for_each_column():
    gradient = tf.constant([[1.0, -30.0], [-2.0, 10.0], [4.0, 20.0], [-5.0, 0.0]])
    means, _ = roundtrip(compression.OneBit(), gradient)
    expected = [[2.5, -30], [-3.5, 10], [2.5, 10], [-3.5, 10]]
    np.testing.assert_allclose(means.total, expected, rtol=1e-6)
    mean, _ = roundtrip(compression.SignSGD(scale="column"), gradient)
    expected = [[3, -15], [-3, 15], [3, 15], [-3, 15]]
    np.testing.assert_allclose(mean.total, expected, rtol=1e-6)
    one, _ = roundtrip(compression.SignSGD(), gradient)
    expected = np.where(gradient >= 0.0, 9.0, -9.0)
    np.testing.assert_allclose(one.total, expected, rtol=1e-6)


def test_terngrad_does_not_clip_what_is_nearly_constant():
    gradient = 1.0 + 1e-3 * _matrix(40, 30, 0)
    result, _ = roundtrip(compression.TernGrad(), shaped(compression.TernGrad(), gradient))
    np.testing.assert_allclose(np.mean(result.total), 1.0, rtol=0.01)


class FullRank(compression.PowerSGD):
    """Also for variables that it does not make smaller: so it is with full rank."""

    def accepts(self, spec):
        return compression.Compressor.accepts(self, spec)


LOSSLESS = [
    compression.Uncompressed(),
    compression.QSGD(levels=2**30, norm="max"),
    compression.TopK(1.0),
    compression.RandomK(1.0),
    compression.Threshold(1e-30, max_ratio=1.0),
    compression.DGC(1.0, momentum=0.0),
    FullRank(rank=100),
]


@every_compressor
def test_a_receiver_restores_from_the_payloads_what_one_replica_gets(compressor):
    gradient = shaped(compressor, _matrix(40, 30, 1))
    step = compression.Step(tf.constant([7, 0]), tf.constant([8, 0]))
    exchange_ = compressor.exchange(gradient, compressor.init(spec_of(gradient)), step)
    payloads = [next(exchange_)]
    with pytest.raises(StopIteration) as end:
        while True:
            own = payloads[-1]
            is_sum = compressor.aggregation == "sum"
            payloads.append(exchange_.send(own if is_sum else tuple(p[None] for p in own)))
    restored = compressor.restore(payloads, spec_of(gradient), step)
    np.testing.assert_array_equal(restored, end.value.value.total)


@pytest.mark.parametrize("compressor", LOSSLESS, ids=name_of)
def test_nothing_is_lost_with_the_widest_settings(compressor):
    gradients = [shaped(compressor, _matrix(40, 30, seed)) for seed in range(2)]
    results, _ = exchange(compressor, gradients)
    np.testing.assert_allclose(results[0].total, gradients[0] + gradients[1], atol=1e-5)


@every_compressor
def test_the_configuration_makes_an_equal_compressor(compressor):
    assert compression.get(compressor.get_config()) == compressor
    assert hash(compression.get(compressor.get_config())) == hash(compressor)
