"""Which compressors there are, what they take, and which variable gets which."""

import keras
import pytest

import tfdist
from tfdist import compression
from tfdist.compression.choice import Choice

NAMES = (
    "bf16 dgc fp16 int8 none noop onebit powersgd qsgd randomk signsgd terngrad threshold topk"
).split()
PATHS = ["net/embedding/embeddings", "net/dense/kernel", "net/dense/bias"]


def test_all_names_are_known():
    assert set(NAMES) <= set(compression.available())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: compression.get("gzip"), "Unknown compressor. Available: .*topk.*'gzip'"),
        (lambda: compression.get(3), "Unknown compressor.*Received: 3"),
        (lambda: compression.TopK(0.0), "`ratio` must be a number > 0. Received: ratio=0.0"),
        (lambda: compression.TopK(1.5), "`ratio` must be at most 1. Received: ratio=1.5"),
        (lambda: compression.RandomK("1"), "Received: ratio='1'"),
        (lambda: compression.Threshold(0), "`threshold` must be a number > 0"),
        (lambda: compression.Threshold(1, max_ratio=2), "`max_ratio` must be at most 1"),
        (lambda: compression.QSGD(levels=0), "levels.*Received: levels=0"),
        (lambda: compression.QSGD(levels=2**31), "from 1 to 1073741824. Received: levels="),
        (lambda: compression.QSGD(norm="l3"), "`norm` must be one of .*Received: norm='l3'"),
        (lambda: compression.Int8(scale="row"), r"`scale` must be one of .*Received: scale='row'"),
        (lambda: compression.Int8(rounding="up"), "`rounding` must be .*Received: rounding='up'"),
        (lambda: compression.SignSGD(scale="row"), "`scale` must be one of .*scale='row'"),
        (lambda: compression.TernGrad(clip=-1), "clip.*Received: clip=-1"),
        (lambda: compression.TernGrad(clip=0), "clip.*Received: clip=0"),
        (lambda: compression.PowerSGD(rank=0), "rank.*Received: rank=0"),
        (lambda: compression.DGC(momentum=1.0), "below 1. Received: momentum=1.0"),
        (lambda: compression.DGC(error_feedback=True), "Received: error_feedback=True"),
        (lambda: compression.FP16(min_bytes=-1), "min_bytes.*Received: min_bytes=-1"),
        (lambda: compression.FP16(start_step=0.5), "start_step.*Received: start_step=0.5"),
        (lambda: compression.FP16(error_feedback=1), "True or False. Received: error_feedback=1"),
        (lambda: compression.get("noop"), "the model does not learn.*Received: not_training=False"),
        (lambda: Choice.of({}), "Received: compression={}"),
        (lambda: Choice.of({1: "topk"}), "Received: compression={1: 'topk'}"),
        (lambda: Choice.of({"*": "gzip"}), "Unknown compressor"),
        (lambda: tfdist.Strategy("mirrored", compression="gzip"), "Unknown compressor"),
        (lambda: tfdist.Strategy("mirrored", seed=-1), "seed.*Received: seed=-1"),
    ],
)
def test_what_is_wrong_is_said_when_it_is_given(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="ratios"):
        compression.get("topk", ratios=0.1)


def test_registering_needs_a_new_name():
    class Nameless(compression.FP16):
        name = ""

    class Taken(compression.FP16):
        pass

    for cls in (Nameless, Taken):
        with pytest.raises(ValueError, match="a name that no other one has. Received: name="):
            compression.register(cls)
    with pytest.raises(TypeError, match="Only subclasses of Compressor"):
        compression.register(int)


def test_the_first_pattern_that_fits_counts():
    choice = Choice.of({"embedding/*": "topk", "*/bias": None, "*": "int8"})
    assert [c and c.name for c in choice.for_paths(PATHS)] == ["topk", "int8", None]


def test_a_pattern_for_nothing_is_warned_of_and_one_that_comes_too_late_refused():
    with pytest.warns(UserWarning, match=r"fit no trainable variable: \['dens/\*'\]"):
        Choice.of({"dens/*": "topk"}).for_paths(PATHS)
    with pytest.raises(ValueError, match=r"Received: \['dense/kernel'\], which come too late"):
        Choice.of({"dense/*": "topk", "dense/kernel": "int8"}).for_paths(PATHS)


def test_a_choice_survives_its_configuration():
    for option in ("topk", compression.QSGD(3), {"embedding/*": None, "*": compression.TopK(0.1)}):
        choice = Choice.of(option)
        assert Choice.of(choice.get_config()) == choice
    named = Choice.of({"name": "int8", "*": None})
    assert [c and c.name for c in named.for_paths(["net/name", "net/other"])] == ["int8", None]
    assert Choice.of(None) is None
    assert Choice.of({"*": None}) is None


@pytest.mark.parametrize(
    "optimizer",
    [lambda: keras.optimizers.SGD(0.1, momentum=0.9), lambda: keras.optimizers.Adam()],
)
def test_dgc_refuses_a_second_momentum(optimizer):
    with pytest.raises(ValueError, match="DGC has the momentum itself.*Received: "):
        tfdist.DistributedOptimizer(optimizer(), compression="dgc")
    without = compression.DGC(momentum=0.0)
    assert tfdist.DistributedOptimizer(optimizer(), compression=without).options.compression
