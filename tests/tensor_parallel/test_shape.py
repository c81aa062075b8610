"""How ranks are laid out in a mesh, and what connects them."""

import json

import pytest

from tfdist.engines.mesh import Layout
from tfdist.tensor_parallel.shape import backend_of, check_shape, layout_of, may_have_groups


@pytest.mark.parametrize(
    "shape, size, expected",
    [
        (None, 4, (1, 4)),
        ({"model": 2}, 4, (2, 2)),
        ({"data": 4}, 4, (4, 1)),
        ({"data": 2, "model": 3}, 6, (2, 3)),
        ({"model": 1}, 1, (1, 1)),
    ],
)
def test_an_axis_that_is_left_out_gets_the_rest(shape, size, expected):
    layout = layout_of(shape, size - 1, size)
    assert (layout.data, layout.model) == expected


@pytest.mark.parametrize("shape", [{"model": 3}, {"data": 8}, {"data": 2, "model": 1}])
def test_a_mesh_has_as_many_ranks_as_the_job(shape):
    with pytest.raises(ValueError, match="as many ranks as the job.*Received: shape="):
        layout_of(shape, 0, 4)


@pytest.mark.parametrize("shape", [4, {}, {"batch": 2}, {"data": 0}, {"model": 1.5}])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="Received"):
        check_shape(shape)


def test_ranks_that_follow_each_other_have_one_model():
    layout = Layout(data=2, model=3, rank=4)
    assert (layout.data_rank, layout.model_rank) == (1, 1)
    assert layout.model_groups == [[0, 1, 2], [3, 4, 5]]
    assert layout.data_groups == [[0, 3], [1, 4], [2, 5]]


def test_only_two_axes_make_groups():
    shapes = [None, {"data": 1, "model": 4}, {"data": 4, "model": 1}]
    assert not any(map(may_have_groups, shapes))
    assert may_have_groups({"data": 2, "model": 2}) and may_have_groups({"model": 2})


def test_a_process_alone_needs_no_horovod(monkeypatch):
    for name in ("TF_CONFIG", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert backend_of("auto", local_devices=1) == "multi_worker"


def test_parameter_servers_connect_no_ranks(monkeypatch):
    cluster = {"worker": ["localhost:1"], "ps": ["localhost:2"], "chief": ["localhost:3"]}
    task = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    with pytest.raises(ValueError, match="horovod.*Received: .*'parameter_server'"):
        backend_of("auto", local_devices=1)


def test_other_backends_are_refused():
    with pytest.raises(ValueError, match="backend"):
        backend_of("mirrored", local_devices=1)
