"""What is recommended, and when to stay on one device."""

import ast
import dataclasses

import pytest

import tfdist
from tests.compression.replicas import own_names
from tfdist.compression.choice import Choice
from tfdist.local.choices import DiLoCo, LocalSGD
from tfdist.options import Options
from tfdist.plan import candidates, models
from tfdist.plan.alpha_beta import Link
from tfdist.plan.machine import Costs, Machines, link_of
from tfdist.plan.prediction import ONE_DEVICE, Candidate, Planner
from tfdist.plan.workload import Device, Message, TracedVariable, Workload
from tfdist.staleness import Policies
from tfdist.step.tables import Tables
from tfdist.strategies.parameter_server import checks
from tfdist.strategies.registry import BACKENDS

SIZE = 40_000_000
MODEL = Workload(64, (TracedVariable("w", (10_000_000,), "float32", 4, 1.0),), 1 / 3, SIZE)


def messages(compression, ranks, workload):
    small = {None: 1, "fp16": 2, "powersgd": 100}.get(compression, 10)
    kind = "sum" if compression in (None, "fp16", "powersgd") else "gather"
    parts = [SIZE // 10] * 10
    return [
        Message(part // small, part, (i + 1) / 10, kind, 1, compression)
        for i, part in enumerate(parts)
    ]


def planner(rate, step=1.0, **options):
    machines = Machines(link_of(rate, 5e-5), costs=Costs(), **options)
    return Planner(MODEL, messages, Device(step, 64), machines)


def predictions(made, counts=(2, 4, 8)):
    return [made.predict(c, n) for n in counts for c in candidates.candidates(n, made.machines)]


def advice(made, counts=(2, 4, 8), least=0.5, **options):
    return candidates.recommend(made.alone(), predictions(made, counts), least, **options)


def test_on_a_fast_link_the_exact_choice_is_recommended():
    found = advice(planner(1.25e9))
    assert found.code == 'tfdist.Strategy("multi_worker")' and found.workers == 8
    assert "times the samples per second of one device" in found.reason


def test_on_a_slow_link_compression_is_recommended_with_the_reason():
    found = advice(planner(1.25e7))
    assert found.code == 'tfdist.Strategy("multi_worker", compression="powersgd")'
    assert "not that of one device" in found.reason and "70 MB travel" in found.reason


def test_the_batch_for_fit_is_that_of_all_workers():
    found = advice(planner(1.25e9))
    assert "an update is of 512 samples: pass batch_size=512 to `fit`" in found.reason
    divided = advice(dataclasses.replace(planner(1.25e9), strong=True))
    assert divided.workers > 1 and "batch_size" not in divided.reason


def test_the_batch_for_fit_is_that_of_one_worker_with_parameter_servers():
    only = [Candidate("parameter_server")]
    for strong, found in ((False, None), (True, 16)):
        made = dataclasses.replace(planner(1.25e9), strong=strong)
        told = candidates.recommend(made.alone(), [made.predict(c, 4) for c in only], 0.1)
        assert told.workers == 4
        assert (f"pass batch_size={found} to `fit`" in told.reason) == (found is not None)
        assert ("batch_size" in told.reason) == (found is not None)


def test_what_converges_badly_is_not_recommended():
    every = predictions(planner(1.25e7), (8,))
    (random,) = [p for p in every if p.candidate == Candidate("multi_worker", "randomk")]
    fastest = dataclasses.replace(random, step=random.step / 1000)
    assert candidates.best([*every, fastest]).candidate.compression == "powersgd"


def test_where_nothing_helps_one_device_is_recommended():
    found = advice(planner(1e4, step=1e-3))
    assert (found.workers, found.code) == (1, None)
    assert found.reason.startswith("Stay on one device: a step takes 1 ms there.")


def test_a_model_that_does_not_fit_is_sharded():
    room = 2.3 * SIZE  # weights, gradients, and an eighth of slots and of sums
    found = advice(planner(1.25e9), counts=(8,), memory=room)
    assert found.code == 'tfdist.Strategy("multi_worker", sharding="optimizer")'
    assert "one device has too little memory" in found.reason
    found = advice(planner(1.25e9), counts=(8,), memory=SIZE / 2)
    assert found.code is None and found.reason.startswith("Nothing fits: one device needs 120 MB")


def test_an_epoch_needs_some_updates():
    assert advice(planner(1.25e9), samples=64 * 4 * 20).workers == 4
    assert advice(planner(1.25e9), samples=64).code is None


def test_the_reason_says_what_would_be_faster_but_for_the_updates():
    found = advice(planner(1.25e9), samples=64 * 4 * 20).reason
    faster = '; 8 workers would be faster (tfdist.Strategy("multi_worker")), but an epoch would'
    assert f"{faster} have less than 20 updates." in found
    assert "faster" not in advice(planner(1.25e9), samples=64 * 8 * 20).reason


def test_to_stay_may_be_faster_with_more_updates():
    made = planner(1.25e9)
    two, eight = (made.predict(Candidate("multi_worker"), n) for n in (2, 8))
    slow = dataclasses.replace(two, step=4 * two.step, efficiency=two.efficiency / 4)
    told = candidates.recommend(made.alone(), [slow, eight], 0.5, samples=64 * 2 * 20)
    assert told.code is None and "asked for; 8 workers would be faster" in told.reason
    # Too many workers that wait for the link are no loss.
    wasted = dataclasses.replace(eight, efficiency=0.4)
    told = candidates.recommend(made.alone(), [slow, wasted], 0.5, samples=64 * 2 * 20)
    assert told.code is None and "8 workers" not in told.reason


def test_steps_that_are_shorter_than_what_is_around_them_stay_on_one_device():
    made = planner(1.25e9)
    for step, stays in ((1e-3, True), (3e-3, False)):
        fast = dataclasses.replace(made, device=Device(step, made.device.batch))
        predicted = predictions(fast, (2, 4))
        quick = [dataclasses.replace(p, step=step, efficiency=0.9) for p in predicted]
        found = candidates.recommend(fast.alone(), quick, 0.5)
        assert (found.code is None) == stays
        assert ("Stay on one device: a step takes 1 ms" in found.reason) == stays


def test_without_several_workers_there_is_nothing_to_recommend():
    assert advice(planner(1e9), counts=()).reason.endswith("workers above 1 was asked about.")
    found = advice(planner(1e9), counts=(2,), samples=5)
    assert "was asked about for which an epoch has 20 updates; 2 workers would be" in found.reason
    found = advice(planner(1e4, step=1e-3), counts=(2,), samples=5)  # which are not faster
    assert found.reason.endswith("was asked about for which an epoch has 20 updates.")


def test_lines_of_code_make_strategies():
    machines = planner(1e8, per_host=4).machines
    every = [c for n in (4, 8) for c in candidates.candidates(n, machines, on_gpus=True)]
    assert len(every) > 100
    for candidate in every:
        (call,) = ast.parse(candidate.code).body
        (name,) = call.value.args
        assert name.value == candidate.strategy and candidate.strategy in BACKENDS
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.value.keywords}
        given = {name: eval(text, {"tfdist": tfdist}) for name, text in options.items()}
        policies = Policies.of(given.pop("staleness", None))
        assert policies.synchronous == candidate.synchronous
        pulled = checks.pull(given.pop("pull_compression", None), policies, None)
        assert (pulled and pulled.name) == candidate.pull_compression
        made = Options(**given)
        assert (made.local, made.sharding) == (candidate.local, candidate.sharding)
        assert made.exchange in ("auto", candidate.exchange)
        assert made.compression == Choice.of(candidate.compression)


def test_all_compressors_are_compared_but_those_that_are_no_choice():
    assert {*candidates.COMPRESSION} == own_names() - {"none", "noop", "dgc"}


def test_options_are_written_without_defaults():
    code = tfdist.compression.QSGD(7, norm="max", error_feedback=True)
    written = Candidate("horovod", code, DiLoCo(32, fragments=4, overlap=6)).code
    assert written == (
        'tfdist.Strategy("horovod", compression=tfdist.compression.QSGD(error_feedback=True, '
        "levels=7, norm='max'), local=tfdist.DiLoCo(steps=32, fragments=4, overlap=6))"
    )
    servers = Candidate("parameter_server", pull_compression="bf16", synchronous=True)
    assert servers.code == (
        'tfdist.Strategy("parameter_server", pull_compression="bf16", '
        "staleness=tfdist.staleness.Synchronous())"
    )
    assert servers.kinds[:3] == ("parameter_server", "pull_compression", "staleness")


def test_a_batch_that_is_divided_takes_longer_by_the_fixed_part():
    device = Device(1.0, 64, fixed=0.2)
    made = dataclasses.replace(planner(1e15), device=device, strong=True)
    four = made.predict(Candidate("horovod"), 4)
    assert four.batch == 16 and four.step >= 0.2 + 0.8 / 4
    assert four.efficiency == pytest.approx(1.0 / (4 * four.step))


def test_one_device_exchanges_nothing():
    alone = planner(1.25e8).alone()
    assert (alone.candidate, alone.sent, alone.efficiency) == (ONE_DEVICE, 0.0, 1.0)


def test_devices_of_one_host_do_not_use_the_link():
    made = dataclasses.replace(
        planner(1e5, per_host=8), machines=Machines(Link(1.0, 1.0), per_host=8, costs=Costs())
    )
    assert advice(made).code == 'tfdist.Strategy("multi_worker")'


def test_parameter_servers_of_one_host_do_not_use_the_link():
    machines = Machines(Link(1e-3, 1e-6), 8)
    of_servers = dataclasses.replace(planner(1e5, per_host=8), machines=machines)
    slow = of_servers.predict(Candidate("parameter_server"), 4)
    fast = of_servers.predict(Candidate("parameter_server"), 16)
    assert slow.step < fast.step / 4  # not over the link between hosts


def test_workers_that_share_cores_take_as_many_times_as_long():
    machines = Machines(Link(0.0, 1e-15), 4, Link(0.0, 1e-15), Costs(), shares_cores=True)
    made = dataclasses.replace(planner(1e9), machines=machines)
    steps = [made.predict(Candidate("horovod"), n).step for n in (1, 2, 4, 8)]
    assert steps == pytest.approx([1, 2, 4, 4], rel=1e-4)
    divided = dataclasses.replace(made, strong=True)
    steps = [divided.predict(Candidate("horovod"), n).step for n in (1, 2, 4, 8)]
    assert steps == pytest.approx([1, 1, 1, 0.5], rel=1e-4)
    assert advice(made, (2, 4)).code is None


def test_parameter_servers_wait_for_the_link_of_a_host_with_many_workers():
    machines = Machines(Link(0.0, 1e-7), per_host=4, costs=Costs())
    made = dataclasses.replace(planner(1e9), machines=machines, servers=64)
    found = made.predict(Candidate("parameter_server"), 8)
    assert found.step == pytest.approx(4 * SIZE * 1e-7)
    assert made.predict(Candidate("parameter_server"), 4).step < found.step / 4  # inside the host


def with_reducers(made, workers, reducers):
    """The exact choices of `multi_worker`: without and with reducers."""
    every = [
        made.predict(c, workers) for c in candidates.candidates(workers, made.machines, reducers)
    ]
    exact = [p for p in every if p.candidate.is_exact and not p.candidate.sharding]
    return [p for p in exact if p.candidate.strategy == "multi_worker"]


def test_reducers_are_compared_where_there_are_machines_for_them():
    made = planner(1.25e7)
    (alone,) = with_reducers(made, 4, 0)
    ring, reduced = with_reducers(made, 4, 4)
    assert ring == alone
    assert reduced.candidate.code == 'tfdist.Strategy("multi_worker")'
    assert reduced.candidate.title == 'tfdist.Strategy("multi_worker") with 4 reducers'
    assert reduced in with_reducers(made, 4, 1000)
    assert reduced.candidate.kinds == ("multi_worker", "reducers")
    assert (ring.machines, reduced.machines) == (4, 8)
    assert (ring.sent, reduced.sent) == (pytest.approx(1.5 * SIZE), SIZE)
    assert reduced.step < ring.step
    assert with_reducers(made, 4, 1)[1].step > ring.step
    assert not with_reducers(made, 1, 4)


def test_reducers_are_recommended_where_they_save_time():
    made = planner(1.25e7)
    pair = with_reducers(made, 8, 8)
    assert candidates.best(pair).candidate.reducers == 8
    told = candidates.recommend(made.alone(), pair, 0.01)
    assert (told.workers, told.reducers) == (8, 8)
    slow = with_reducers(made, 8, 1)
    assert candidates.best(slow).candidate.reducers == 0


def test_short_messages_travel_between_the_workers_also_with_reducers():
    short = [Message(1000, 1000, 1.0)]
    made = dataclasses.replace(planner(1.25e7), messages=lambda *_: short)
    ring, reduced = with_reducers(made, 4, 4)
    assert (reduced.step, reduced.sent) == (ring.step, ring.sent)


TABLE = TracedVariable("table", (100_000, 100), "float32", 4, 1.0, rows=50)
SMALL = TracedVariable("small", (100, 1000), "float32", 4, 0.5)


def with_a_table(tables=Tables.NONE):
    workload = dataclasses.replace(MODEL, variables=(SMALL, TABLE), tables=tables, moments=())
    known = models.Found(workload, Device(1.0, 64), Costs(), [])
    machines = Machines(Link(0.0, 1e-7), costs=Costs())
    return Planner(workload, known.messages, known.device, machines)


@pytest.mark.parametrize("tables", Tables)
def test_whole_tables_travel_with_sharding(tables):
    made = with_a_table(tables)
    none, optimizer, parameters = (
        made.predict(Candidate("horovod", sharding=kind), 2)
        for kind in (None, "optimizer", "parameters")
    )
    rows, small = 50 * 404, SMALL.nbytes
    assert none.sent == rows + small
    assert optimizer.sent == none.sent + TABLE.nbytes / 2
    assert parameters.sent == none.sent + small / 2 + TABLE.nbytes / 2
    assert optimizer.step > none.step + 0.9 * 1e-7 * TABLE.nbytes / 2


def test_rows_that_would_travel_as_a_table_travel_as_rows_with_sharding():
    made = with_a_table(tables=Tables.SUMS)
    many = dataclasses.replace(TABLE, rows=150_000)
    workload = dataclasses.replace(made.workload, variables=(SMALL, many))
    made = dataclasses.replace(made, workload=workload)
    assert made.predict(Candidate("horovod"), 2).sent == SMALL.nbytes + TABLE.nbytes
    found = made.predict(Candidate("horovod", sharding="optimizer"), 2)
    assert found.sent == SMALL.nbytes + 150_000 * 404 + TABLE.nbytes / 2


@pytest.mark.parametrize("compression", [None, "int8"])
def test_all_weights_travel_in_a_round_of_local_steps(compression):
    made = with_a_table()
    found = made.predict(Candidate("horovod", compression, LocalSGD(8)), 2)
    size = SMALL.nbytes + TABLE.nbytes
    assert found.sent == pytest.approx((size if compression is None else size / 4) / 8, rel=0.02)
    assert found.step > 1.0 + 0.99e-7 * found.sent
