"""`tfdist.Strategy`: names, "auto" and what is not there yet."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist


def test_mirrored_takes_its_options(two_replicas):
    strategy = tfdist.Strategy("mirrored", devices=["CPU:0", "CPU:1"], accumulation_steps=3)
    assert isinstance(strategy, tfdist.MirroredStrategy)
    assert strategy.num_replicas_in_sync == 2
    assert strategy.options.accumulation_steps == 3


def test_unknown_name_is_refused():
    with pytest.raises(ValueError, match="Unknown strategy.*mirrored.*Received: name='mirored'"):
        tfdist.Strategy("mirored")


def test_a_parameter_server_needs_a_cluster():
    with pytest.raises(ValueError, match="tfdist run -n 3 --ps 1.*Received: no TF_CONFIG"):
        tfdist.Strategy("parameter_server")


@pytest.mark.parametrize(
    ("name", "cls"),
    [("multi_worker", tfdist.MultiWorkerMirroredStrategy), ("horovod", tfdist.HorovodStrategy)],
)
def test_a_single_process_is_a_job_of_one(name, cls):
    strategy = tfdist.Strategy(name, accumulation_steps=2)
    assert isinstance(strategy, cls)
    assert strategy.processes.size == 1
    assert strategy.is_chief
    assert strategy.options.accumulation_steps == 2


def test_multi_worker_in_one_process_takes_all_its_devices():
    assert tfdist.Strategy("multi_worker").num_replicas_in_sync == 4


def test_unknown_option_is_refused():
    with pytest.raises(TypeError, match="bucket_bites"):
        tfdist.Strategy("mirrored", bucket_bites=3)


def test_auto_on_one_machine_is_mirrored_and_says_why(monkeypatch):
    said = []
    monkeypatch.setattr(tf.get_logger(), "info", lambda *entry: said.append(entry))
    assert isinstance(tfdist.Strategy(), tfdist.MirroredStrategy)
    assert any("mirrored" in entry and "one process" in str(entry) for entry in said)


def test_auto_with_parameter_servers_needs_a_chief(monkeypatch):
    cluster = {"worker": ["a:1", "a:2"], "ps": ["a:3"]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    with pytest.raises(ValueError, match="needs a `chief`.*tfdist run -n 3 --ps 1.*Received"):
        tfdist.Strategy("auto")


def test_auto_with_one_worker_is_mirrored(monkeypatch):
    monkeypatch.setenv(
        "TF_CONFIG",
        json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}),
    )
    assert isinstance(tfdist.Strategy("auto"), tfdist.MirroredStrategy)


@pytest.mark.parametrize("text", ["{", "[1]", '"x"'])
def test_auto_refuses_a_broken_tf_config(text, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match="TF_CONFIG .*Received"):
        tfdist.Strategy("auto")


@pytest.fixture
def evaluator(monkeypatch):
    """Makes this process the evaluator of a cluster that does not name it."""
    cluster = {"chief": ["a:1"], "worker": ["a:2"], "ps": ["a:3"]}
    task = {"type": "evaluator", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))


@pytest.mark.parametrize("name", ["auto", "parameter_server", "multi_worker"])
def test_an_evaluator_waits_for_nobody_and_does_not_train(evaluator, name):
    strategy = tfdist.Strategy(name, staleness=tfdist.staleness.InverseLR(), input="dynamic")
    assert type(strategy) is tfdist.MirroredStrategy
    assert strategy.is_evaluator
    assert not strategy.is_chief
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones((8, 2)), np.ones((8, 1))
    assert np.isfinite(model.evaluate(x, y, verbose=0))
    with pytest.raises(ValueError, match=r"SidecarEvaluator.*Received: a call of fit in the task"):
        model.fit(x, y, verbose=0)


def test_a_strategy_of_this_machine_trains_as_ever_in_an_evaluator(evaluator):
    strategy = tfdist.Strategy("mirrored", accumulation_steps=2)
    assert (strategy.is_evaluator, strategy.options.accumulation_steps) == (False, 2)


def test_the_class_for_parameter_servers_says_what_to_make_in_an_evaluator(evaluator):
    with pytest.raises(ValueError, match=r"tfdist\.Strategy\(.*Received: task=evaluator 0"):
        tfdist.ParameterServerStrategy()
