"""Timeline where replicas train apart: exchanges follow the steps of a round."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.callbacks.test_timeline import batches, model_of, spans_of, trace
from tests.devices import DEVICES
from tfdist.callbacks.trace import events_of
from tfdist.step.spans import BEGIN, COMPUTED, Point, Spans

ROUND = "exchange of the round"


def apart(local, **options):
    return tfdist.MirroredStrategy(DEVICES[:2], local=local, **options)


def both(*steps):
    """What both replicas have in these steps."""
    return {(replica, step) for replica in (0, 1) for step in steps}


def begins_and_ends(event):
    return event["ts"], event["ts"] + event["dur"]


def assert_it_follows_its_step(found, name):
    steps = spans_of(found, "step")
    for (replica, step), event in spans_of(found, name).items():
        begins, ends = begins_and_ends(event)
        assert begins_and_ends(steps[replica, step])[1] <= begins + 1
        if (replica, step + 1) in steps:
            assert ends <= begins_and_ends(steps[replica, step + 1])[0] + 1


@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}])
def test_the_exchange_follows_the_last_step_of_a_round(options, tmp_path):
    strategy = apart(tfdist.LocalSGD(2))
    found = trace(model_of(strategy, **options), batches(), tmp_path / "trace.json", (0, 6))
    for name in ("step", "wait for data", "compute", "update"):
        assert set(spans_of(found, name)) == both(*range(6)), name
    for name in (ROUND, "exchange 0"):
        assert set(spans_of(found, name)) == both(1, 3, 5), name
    assert_it_follows_its_step(found, ROUND)
    for key, event in spans_of(found, "exchange 0").items():
        outer = spans_of(found, ROUND)[key]
        assert begins_and_ends(outer)[0] <= event["ts"]
        assert begins_and_ends(event)[1] <= begins_and_ends(outer)[1] + 1


def test_a_round_that_an_epoch_ends_is_seen_after_its_last_step(tmp_path):
    model = model_of(apart(tfdist.LocalSGD(4)))
    path = tmp_path / "trace.json"
    # What ends such a round is traced here, without notes.
    model.fit(batches(count=5), verbose=0, shuffle=False)
    found = trace(model, batches(count=5), path, (0, 11), epochs=2)
    assert set(spans_of(found, "step")) == both(*range(10))
    assert set(spans_of(found, ROUND)) == both(3, 4, 8, 9)
    assert_it_follows_its_step(found, ROUND)


def test_each_fragment_has_its_exchange(tmp_path):
    local = tfdist.DiLoCo(4, fragments=2, outer_learning_rate=1.0, outer_momentum=0.0)
    found = trace(model_of(apart(local)), batches(count=8), tmp_path / "trace.json", (0, 8))
    assert set(spans_of(found, "exchange of fragment 0")) == both(1, 5)
    assert set(spans_of(found, "exchange of fragment 1")) == both(3, 7)
    assert_it_follows_its_step(found, "exchange of fragment 1")
    assert spans_of(found, ROUND) == {}


def test_the_codec_is_a_part_of_the_exchange(tmp_path):
    strategy = apart(tfdist.LocalSGD(2), compression="int8")
    found = trace(model_of(strategy), batches(), tmp_path / "trace.json", (0, 6))
    for name in (ROUND, "encode", "exchange of payloads 0", "decode"):
        assert set(spans_of(found, name)) == both(1, 3, 5), name


def normalized(strategy):
    with strategy.scope():
        layers = [keras.layers.Dense(64), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((1,)), *layers])
        model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mse")
    return model


@pytest.mark.parametrize(
    ("local", "options"),
    [
        pytest.param(tfdist.LocalSGD(3), {}, marks=pytest.mark.full),
        (
            tfdist.LocalSGD(2),
            {"accumulation_steps": 2, "compression": tfdist.compression.Int8(min_bytes=0)},
        ),
        (tfdist.DiLoCo(4, fragments=2, overlap=1), {}),
        pytest.param(tfdist.LocalSGD(2, after=3), {}, marks=pytest.mark.full),
        pytest.param(tfdist.LocalSGD("100s"), {}, marks=pytest.mark.full),
    ],
    ids=["rounds", "coded", "overlap", "after", "by time"],
)
def test_weights_are_those_without_it(local, options, tmp_path):
    def trained(callbacks):
        keras.utils.set_random_seed(1)
        model = normalized(apart(local, **options))
        model.fit(batches(count=7), epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
        return model

    timeline = tfdist.callbacks.Timeline(tmp_path / "trace.json", (2, 12))
    traced, usual = trained([timeline]), trained([])
    for ours, expected in zip(traced.get_weights(), usual.get_weights()):
        np.testing.assert_array_equal(ours, expected)
    assert any("exchange of" in point.name for point in timeline._spans.points)


_OF_NOTES = {"Const", "ReadVariableOp", "AssignVariableOp", "PyFuncStateless", "Identity"}
_OF_NOTES |= {"EnsureShape", "NoOp", "Placeholder", "_Arg", "_Retval", "StopGradient"}


def operations_of_a_step(model):
    """How many operations of each kind a step has, in and outside of conditions."""
    strategy = model.distribute_strategy
    spec = strategy.experimental_distribute_dataset(batches()).element_spec
    step = tf.function(lambda *batch: strategy.run(model.train_step, args=(batch,)))
    graph = step.get_concrete_function(*spec).graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return collections.Counter(node.op for node in nodes)


def test_a_step_within_a_round_exchanges_nothing_more():
    model = normalized(apart(tfdist.LocalSGD(3)))
    model.fit(batches(), verbose=0, shuffle=False)
    usual = operations_of_a_step(model)
    model.distribute_strategy.spans = Spans(0, 9)
    noting = operations_of_a_step(model)
    assert noting["PyFuncStateless"] > usual["PyFuncStateless"]
    for operation in set(usual | noting) - _OF_NOTES:
        assert noting[operation] == usual[operation], operation


def test_what_else_steps_set_is_a_part_of_the_exchange(tmp_path):
    model = normalized(apart(tfdist.LocalSGD(3)))
    found = trace(model, batches(), tmp_path / "trace.json", (0, 6))
    events = [event for event in found["traceEvents"] if event["name"] == ROUND]
    assert len(events) == 2 * 4  # the weights, and what BatchNormalization has counted
    assert set(spans_of(found, ROUND)) == both(2, 5)


def test_what_is_exchanged_beside_steps_belongs_to_the_step_before():
    spans = Spans(0, 9)
    spans.begin_step(3)
    spans._note(BEGIN, 0, None, None)
    spans.begin_beside("an exchange")
    spans.begin_step(4)
    spans._note("exchange of fragment 0 begins", 0, "an exchange", None)
    spans._note(BEGIN, 0, None, None)
    spans._note("exchange of fragment 0 ends", 0, "an exchange", None)
    assert [(point.name, point.step) for point in spans.points] == [
        (BEGIN, 3),
        ("exchange of fragment 0 begins", 3),
        (BEGIN, 4),
        ("exchange of fragment 0 ends", 3),
    ]


def test_a_step_that_another_group_repeats_is_forgotten_and_called_again():
    spans = Spans(1, 9)
    spans.change_group(repeats=True)  # before there are steps to note
    for step in (1, 2):
        spans.begin_step(step)
        spans._note(BEGIN, 0, None, None)
        if step == 1:
            spans.end_step()
            spans.change_group(repeats=True)  # between two steps nothing is repeated
    assert len(spans.calls) == 2
    spans.change_group(repeats=True)
    assert [(point.name, point.step) for point in spans.points] == [(BEGIN, 1)]
    assert len(spans.calls) == 3 and spans.changes == 2
    spans._note(BEGIN, 1, None, None)
    spans.change_group(repeats=False)  # where replicas train apart, their steps stay
    assert [point.step for point in spans.points] == [1, 2] and len(spans.calls) == 3


def test_what_is_made_again_between_two_steps_is_not_noted():
    spans = Spans(0, 9)
    spans.begin_step(0)
    spans._note(BEGIN, 0, None, None)
    spans.end_step()
    for name in (BEGIN, "update begins", "update ends"):
        spans._note(name, 0, None, None)
    spans.begin_step(1)
    spans._note(BEGIN, 0, None, None)
    assert [(point.name, point.step) for point in spans.points] == [(BEGIN, 0), (BEGIN, 1)]


def test_a_step_without_data_has_no_points():
    spans = Spans(0, 9)
    spans.begin_step(0)
    spans._note(BEGIN, 0, None, None)
    spans.end_step()
    spans.begin_step(1)  # Keras calls it, and then there are no data
    spans._note("exchange of the round begins", 0, None, None)
    assert [point.step for point in spans.points] == [0, 0]


def test_an_exchange_beside_the_next_step_is_no_part_of_either():
    fragment = "exchange of fragment 0"
    first = {BEGIN: 10, COMPUTED: 15, "update begins": 16, "update ends": 20}
    first |= {f"{fragment} begins": 22, "exchange 0 begins": 25, "exchange 0 ends": 45}
    first |= {f"{fragment} ends": 50}
    second = {BEGIN: 30, COMPUTED: 40}
    points = [Point(0, 1, name, 1000 * at) for name, at in first.items()]
    points += [Point(0, 2, name, 1000 * at) for name, at in second.items()]
    events = [e for e in events_of(0, points, [9000, 24000], 0) if e["ph"] == "X"]
    found = {(e["name"], e["args"]["step"]): (e["ts"], e["ts"] + e["dur"]) for e in events}
    assert found["step", 1] == (9.0, 20.0)
    assert found["step", 2] == (24.0, 40.0)
    assert found["wait for data", 2] == (24.0, 30.0)
    assert found[fragment, 1] == (22.0, 50.0)
    assert found["exchange 0", 1] == (25.0, 45.0)


def test_a_meeting_without_a_step_has_no_step():
    points = [Point(0, 4, f"{ROUND} {end}", 1000 * at) for end, at in (("begins", 5), ("ends", 9))]
    events = [event for event in events_of(0, points, [], 0) if event["ph"] == "X"]
    assert [(event["name"], event["ts"], event["dur"]) for event in events] == [(ROUND, 5.0, 4.0)]
