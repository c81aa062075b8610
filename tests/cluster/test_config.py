"""TF_CONFIG: what is accepted means the same to TensorFlow; what is not is one plain line."""

import json
from datetime import timedelta
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster import Cluster


def read(config):
    text = config if isinstance(config, str) else json.dumps(config)
    return Cluster.from_environment({"TF_CONFIG": text})


def config(workers=("a:2222", "b:2222"), task=("worker", 0), **jobs):
    cluster = {"worker": list(workers), **jobs} if workers else jobs
    return {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}


def changed(**fields):
    return {**config(), **fields}


# --- what a cluster knows -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "rank", "is_chief", "address"),
    [
        (("chief", 0), 0, True, "c:1"),
        (("worker", 0), 1, False, "a:2222"),
        (("worker", 1), 2, False, "b:2222"),
        (("ps", 0), None, False, "p:1"),
        (("evaluator", 0), None, False, None),
    ],
)
def test_ranks_count_the_chief_first(task, rank, is_chief, address):
    cluster = read(config(task=task, chief=["c:1"], ps=["p:1"]))
    assert cluster.workers == ("c:1", "a:2222", "b:2222")
    assert (cluster.rank, cluster.size, cluster.is_chief) == (rank, 3, is_chief)
    assert cluster.address == address


def test_without_a_chief_worker_0_is_the_chief():
    assert read(config()).is_chief
    assert not read(config(task=("worker", 1))).is_chief


def test_text_and_back():
    cluster = read(config(task=("worker", 1), chief=["[::1]:8"]))
    assert read(cluster.to_tf_config()) == cluster


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": " \n"}])
def test_no_tf_config_is_no_cluster(environ):
    assert Cluster.from_environment(environ) is None


def test_reads_the_process_environment(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps(config()))
    assert Cluster.from_environment().size == 2


@pytest.mark.parametrize(
    "extra",
    [
        {"environment": "cloud"},
        {"rpc_layer": "grpc"},
        {"rpc_layer": None},
        {"job": "{}", "task": {"type": "worker", "index": 0, "cloud": "x", "trial": "1"}},
    ],
)
def test_what_cluster_managers_add_is_fine(extra):
    assert read({**config(), **extra}).size == 2


# --- mistakes -------------------------------------------------------------------------------------

MISTAKES = [
    ("{", "TF_CONFIG is not JSON: .* at line 1, column 2. Received: '{'"),
    ("{'cluster': 1}", "TF_CONFIG is not JSON"),
    ("[" * 100_000, "TF_CONFIG is nested too deeply"),
    ('{"a": ' + "1" * 5000 + "}", "TF_CONFIG has a number with too many digits"),
    ('{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}}', "field 'worker' twice in one object"),
    ([1], r"must be a JSON object with `cluster` and `task`. Received: '\[1\]'"),
    ({}, r"TF_CONFIG: `cluster` is missing. Received: {}"),
    ({"cluster": {"worker": ["a:1"]}}, "`task` is missing. Received: {'cluster'"),
    (changed(cluster=[]), r"TF_CONFIG: cluster must be a JSON object. Received: cluster=\[\]"),
    (changed(cluster=None), "cluster must be a JSON object. Received: cluster=None"),
    (changed(cluster={}), "cluster must name at least one worker. Received: cluster={}"),
    (config(master=["m:1"]), "unknown job; the jobs are chief, worker, .* Received: job='master'"),
    (config(workers=(), ps=["p:1"], task=("ps", 0)), "cluster must have a `worker` or `chief` job"),
    (config(ps={"0": "p:1"}), "cluster.ps must be a list of addresses. Received: cluster.ps={'0'"),
    (config(ps="p:1"), "cluster.ps must be a list of addresses. Received: cluster.ps='p:1'"),
    (config(ps=[]), r"cluster.ps must have at least one address. Received: cluster.ps=\[\]"),
    (config(chief=["c:1", "d:1"]), r"cluster.chief must have one address only. Received: .*'d:1'"),
    (config(chief=["a:2222"]), r"cluster.chief\[0\] is the same address as cluster.worker\[0\]"),
    (config(["a:1", "A:1"]), r"worker\[1\] is the same address as .* Received: .*worker\[1\]='A"),
    (config(["localhost:1", "127.0.0.1:1"]), r"worker\[1\] is the same address as .*worker\[0\]"),
    (config(["[::1]:1", "localhost.:1"]), r"worker\[1\] is the same address as .*worker\[0\]"),
    (config(["[::1]:1", "[0:0:0::1]:1"]), r"worker\[1\] is the same address as .*worker\[0\]"),
    (config(["[fe80::1]:1", "[FE80:0::1]:1"]), r"is the same address as .*worker\[0\]"),
    (changed(task=["worker", 0]), "task must be a JSON object. Received: task="),
    (changed(task={"index": 0}), "`task.type` is missing. Received: task={'index': 0}"),
    (changed(task={"type": "worker"}), "`task.index` is missing. Received: task="),
    (config(task=("boss", 0)), "task.type must be one of chief, worker, .*task.type='boss'"),
    (config(task=([], 0)), r"task.type must be one of chief, worker, .*task.type=\[\]"),
    (config(task=("ps", 0)), "one of the cluster's jobs, worker. Received: task.type='ps'"),
    (config(task=("worker", 2)), "task.index must be from 0 to 1, .* Received: task.index=2"),
    (config(task=("worker", -1)), "task.index must be from 0 to 1, .* Received: task.index=-1"),
    (config(task=("evaluator", 1)), "task.index must be 0, .* Received: task.index=1"),
    (config(task=("worker", "0")), "task.index must be an integer. Received: task.index='0'"),
    (config(task=("worker", True)), "task.index must be an integer. Received: task.index=True"),
    (config(task=("worker", 0.0)), "task.index must be an integer. Received: task.index=0.0"),
    (changed(rpc_layer=5), "rpc_layer must be a string. Received: rpc_layer=5"),
    (changed(rpc_layer=[]), r"rpc_layer must be a string. Received: rpc_layer=\[\]"),
]

ADDRESSES = [
    "a:b",
    "a",
    "a:",
    ":2222",
    "a:0",
    "a:-1",
    "a:65536",
    "a:02222",
    "a:2222 ",
    "a:2222\n",
    "a:22:22",
    "a b:2222",
    "::1:2222",
    "[::1]",
    "[::1]:0",
    "[nonsense]:2222",
    "[::1\n]:2222",
    "[fe80::1%\n]:2222",
    "grpc://a:2222",
    "a:٣",
    "ä:2222",
    "\ud800:1",
    "",
    5,
    None,
    ["a:2222"],
    {},
]


@pytest.mark.parametrize(("broken", "message"), MISTAKES)
def test_a_mistake_names_the_field_and_the_value(broken, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(broken)
    assert_one_line(caught.value)


@pytest.mark.parametrize("address", ADDRESSES, ids=ascii)
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError) as caught:
        read(config(["a:2222", address]))
    assert_one_line(caught.value)
    assert str(caught.value) == (
        "TF_CONFIG: cluster.worker[1] must be host:port with a port from 1 to 65535. "
        f"Received: cluster.worker[1]={address!r}"
    )


@pytest.mark.parametrize("address", ["h:1", "h_1.x-y.org:65535", "10.0.0.1:80", "[fe80::1]:2222"])
def test_an_address_is_accepted(address):
    assert read(config(["a:2222", address])).workers[1] == address


def test_a_long_value_is_cut():
    with pytest.raises(ValueError) as caught:
        read(config(ps=f"p{'x' * 100_000}"))
    assert len(str(caught.value)) < 400


# --- generated configurations ---------------------------------------------------------------------

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70000),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["worker", "ps", "chief", "evaluator", "master", "a:1", "a:0", "[::1]:9", ":"]),
)
jsons = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.text(max_size=4), st.sampled_from(["cluster", "task", "type", "index"])),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)
addresses = st.builds(
    "{}:{}".format,
    st.one_of(st.from_regex(r"\A[a-z][a-z0-9_.-]{0,9}\Z"), st.just("[::1]"), st.just("10.0.0.1")),
    st.integers(1, 65535),
)


@st.composite
def valid_configs(draw):
    counts = {
        "chief": draw(st.integers(0, 1)),
        "worker": draw(st.integers(0, 4)),
        "ps": draw(st.integers(0, 3)),
        "evaluator": draw(st.integers(0, 1)),
    }
    if counts["chief"] + counts["worker"] == 0:
        counts["worker"] = 1
    total = sum(counts.values())
    left = draw(st.lists(addresses, min_size=total, max_size=total, unique_by=str.lower))
    cluster = {}
    for job in draw(st.permutations(list(counts))):
        if counts[job]:
            cluster[job] = [left.pop() for _ in range(counts[job])]
    job = draw(st.sampled_from([*cluster, "evaluator"]))
    index = draw(st.integers(0, len(cluster.get(job, [0])) - 1))
    extra = draw(st.sampled_from([{}, {"environment": "cloud"}, {"rpc_layer": "grpc"}]))
    return {"cluster": cluster, "task": {"type": job, "index": index}, **extra}


@st.composite
def mutated_configs(draw):
    """A valid configuration with one or two places replaced, removed, renamed or repeated."""
    mutant = json.loads(json.dumps(draw(valid_configs())))
    for _ in range(draw(st.integers(1, 2))):
        places = list(_places(mutant))
        if not places:
            break
        container, key = draw(st.sampled_from(places))
        action = draw(st.sampled_from(["replace", "remove", "rename", "repeat"]))
        if action == "replace":
            container[key] = draw(jsons)
        elif action == "remove":
            del container[key]
        elif isinstance(container, dict):
            name = draw(st.sampled_from(["worker", "ps", "chief", "evaluator", "master", "Task"]))
            container[name] = container[key] if action == "repeat" else container.pop(key)
        else:
            container.append(container[key])
    return mutant


def _places(value):
    if isinstance(value, (dict, list)):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield value, key
            yield from _places(value[key])


def assert_one_line(error):
    message = str(error)
    assert message.startswith("TF_CONFIG")
    assert len(message.splitlines()) == 1
    assert len(message) < 1000


def assert_same_for_tensorflow(cluster, text):
    import tensorflow as tf

    with mock.patch.dict("os.environ", {"TF_CONFIG": text}):
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        expected = {job: list(tasks) for job, tasks in cluster.jobs.items()}
        assert resolver.cluster_spec().as_dict() == expected
        assert (resolver.task_type, resolver.task_id) == (cluster.task_type, cluster.task_index)
        assert isinstance(resolver.rpc_layer, (str, type(None)))


def assert_a_cluster_or_one_line(text):
    try:
        cluster = read(text)
    except ValueError as error:
        assert_one_line(error)
    else:
        if cluster is not None:
            assert_same_for_tensorflow(cluster, text)


generously = settings(deadline=timedelta(seconds=5), max_examples=300)


@pytest.mark.graph
@generously
@given(valid_configs())
def test_every_valid_configuration_is_accepted(valid):
    text = json.dumps(valid)
    assert_same_for_tensorflow(read(text), text)


@pytest.mark.graph
@generously
@given(mutated_configs())
def test_mutated_configurations_are_accepted_or_one_line(mutant):
    assert_a_cluster_or_one_line(json.dumps(mutant))


@pytest.mark.graph
@generously
@given(jsons)
def test_any_json_is_accepted_or_one_line(value):
    assert_a_cluster_or_one_line(json.dumps(value))


@pytest.mark.graph
@generously
@given(st.one_of(st.text(), valid_configs().map(json.dumps)), st.data())
def test_any_text_is_accepted_or_one_line(text, data):
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    assert_a_cluster_or_one_line(text[:start] + data.draw(st.text(max_size=3)) + text[end:])
