"""`tfdist.Strategy`: names, "auto" and what is not there yet."""

import json

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


@pytest.mark.parametrize("name", ["multi_worker", "horovod", "parameter_server"])
def test_planned_name_says_so(name):
    with pytest.raises(ValueError, match=f"'{name}' is not available yet.*Received"):
        tfdist.Strategy(name)


@pytest.mark.parametrize("option", ["compression", "staleness"])
def test_planned_option_says_so(option):
    with pytest.raises(ValueError, match=f"`{option}` is not available yet"):
        tfdist.Strategy("mirrored", **{option: "fp16"})
    tfdist.Strategy("mirrored", **{option: None})


def test_unknown_option_is_refused():
    with pytest.raises(TypeError, match="bucket_bites"):
        tfdist.Strategy("mirrored", bucket_bites=3)


def test_auto_on_one_machine_is_mirrored_and_says_why(monkeypatch):
    said = []
    monkeypatch.setattr(tf.get_logger(), "info", lambda *entry: said.append(entry))
    assert isinstance(tfdist.Strategy(), tfdist.MirroredStrategy)
    assert any("mirrored" in entry and "one process" in str(entry) for entry in said)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOROVOD_RANK": "0"}, "horovod"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "horovod"),
        (
            {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"], "ps": ["b:2"]}})},
            "parameter_server",
        ),
        ({"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:2"]}})}, "multi_worker"),
        ({"TF_CONFIG": json.dumps({"cluster": {"chief": ["a:1"], "worker": ["b:2"]}})}, "multi_w"),
    ],
)
def test_auto_follows_the_environment(environment, expected, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    message = f"'{expected}.*not available yet.*Received: name='auto', which means .*because"
    with pytest.raises(ValueError, match=message):
        tfdist.Strategy("auto")


def test_auto_with_one_worker_is_mirrored(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1"]}}))
    assert isinstance(tfdist.Strategy("auto"), tfdist.MirroredStrategy)


@pytest.mark.parametrize("text", ["{", "[1]", '"x"'])
def test_auto_refuses_a_broken_tf_config(text, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match="TF_CONFIG must be a JSON object. Received"):
        tfdist.Strategy("auto")
