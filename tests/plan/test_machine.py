"""The file of a cluster is read, or refused with what is missing."""

import json

import pytest

from tfdist.plan.machine import Machines, link_of, read_cluster

LINK = {"latency_seconds": 2e-4, "bandwidth_bytes_per_second": 1e8}
GOOD = {"ranks": 8, "ranks_per_host": 4, "link": LINK, "anything": ["else"]}


def written(tmp_path, data):
    path = tmp_path / "test.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_what_a_test_of_the_cluster_wrote_is_read(tmp_path):
    cluster = read_cluster(written(tmp_path, GOOD | {"device_step": 0.11}))
    assert (cluster.ranks, cluster.per_host, cluster.device_step) == (8, 4, 0.11)
    assert (cluster.link.alpha, cluster.link.beta) == (2e-4, 1e-8)
    assert read_cluster(written(tmp_path, GOOD)).device_step is None


@pytest.mark.parametrize(
    ("machines", "device"),
    [
        ([{"gpus": []}, {"gpus": []}], "cpu"),
        ([{"gpus": []}, {"gpus": ["GPU:0"]}], "gpu"),
        ([{"gpus": []}, {"cores": 2}], None),
        ([], None),
        ("two", None),
        ([3], None),
    ],
)
def test_a_test_of_the_cluster_says_what_ranks_train_on(tmp_path, machines, device):
    assert read_cluster(written(tmp_path, GOOD | {"machines": machines})).device == device
    assert read_cluster(written(tmp_path, GOOD)).device is None


@pytest.mark.parametrize(
    ("data", "received"),
    [
        ("{", "test.json"),
        ([], "no `link`"),
        (GOOD | {"link": 3}, "no `link`"),
        (GOOD | {"ranks": "8"}, "ranks='8'"),
        (GOOD | {"ranks": 1e300}, r"ranks=1e\+300"),
        (GOOD | {"ranks_per_host": 0.5}, "ranks_per_host=0.5"),
        (GOOD | {"ranks_per_host": True}, "ranks_per_host=True"),
        (GOOD | {"link": {**LINK, "latency_seconds": 0}}, "latency_seconds=0"),
        (GOOD | {"link": {"latency_seconds": 1}}, "bandwidth_bytes_per_second=None"),
    ],
)
def test_files_that_lack_something_are_refused(tmp_path, data, received):
    with pytest.raises(ValueError, match=f"Received: .*{received}"):
        read_cluster(written(tmp_path, data))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="No such file.*Received: .*none.json"):
        read_cluster(tmp_path / "none.json")


def test_headers_take_a_part_of_the_rate():
    assert 1 / link_of(1.25e8, 0.0).beta == pytest.approx(1.177e8, rel=1e-3)


def test_ranks_of_one_host_do_not_use_its_link():
    machines = Machines(link_of(1e8, 1e-3), per_host=4)
    assert [machines.hosts(ranks) for ranks in (1, 4, 5, 9)] == [1, 1, 2, 3]
    assert machines.between(4) == machines.inside
    assert machines.between(5) == machines.link


def test_workers_of_a_host_may_share_its_cores():
    machines = Machines(link_of(1e8, 1e-3), per_host=4, slowdown=1.5)
    assert [machines.slowdown_of(ranks) for ranks in (1, 2, 4, 6)] == [1.5] * 4
    machines = Machines(link_of(1e8, 1e-3), per_host=4, slowdown=1.5, shares_cores=True)
    assert [machines.slowdown_of(ranks) for ranks in (1, 2, 4, 6)] == [1.5, 3, 6, 6]
