"""Which strategies and options are compared, and which of them is recommended."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from tfdist.plan import trained
from tfdist.plan.candidate import Candidate
from tfdist.plan.codecs import SECONDS_PER_BYTE
from tfdist.plan.machine import Machines
from tfdist.plan.prediction import Prediction
from tfdist.plan.table import duration, size

SEVERAL_PROCESSES = ("multi_worker", "horovod")
# DGC is an optimizer too, so it is never a change of one option.
COMPRESSION = tuple(name for name in SECONDS_PER_BYTE if name != "dgc")
# What codes the gradients for parameter servers, and the weights that workers read.
_WITH_SERVERS: tuple[tuple[str | None, str | None], ...] = (
    *((name, None) for name in (None, *COMPRESSION)),
    *((None, "bf16"), ("fp16", "bf16"), ("powersgd", "bf16"), ("powersgd", "int8")),
    ("int8", "int8"),
)
# What others send is gathered, or so short that it does not go through reducers.
_WITH_REDUCERS = (None, "fp16")
# What the short table shows besides the best.
_SHORT_COMPRESSION = (None, "fp16", "powersgd", "topk")

# How far options go from the result of one device: exact, rounded, compressed with error feedback
# or at random, apart for some steps, asynchronous.
_ROUNDS = ("fp16", "bf16", "int8")
# A choice that is further from one device, or needs more machines, must save this part of the time.
_WORTH = 0.15
# Of two that are as far, the first one counts if the other one saves less.
_LIKE = 0.03
# An epoch has at least so many updates: with fewer, a model hardly learns.
UPDATES = 20
# More samples per second than one device, for less nobody should start a cluster.
_LEAST_GAIN = 1.2
# Below so many seconds a step is less than what is around it: by docs/watching.md a step of a tiny
# model in `fit` takes 0.6 ms on one device, and 2.6 ms on two ranks.
_LEAST_STEP = 2e-3
_TOO_SHORT = (
    "Stay on one device: a step takes {} there. Keras and TensorFlow need as long around each "
    "step, and more with several ranks, which is not predicted. Try larger batches first."
)


def candidates(
    workers: int, machines: Machines, reducers: int = 0, on_gpus: bool = False
) -> list[Candidate]:
    """All choices for so many workers.

    Args:
        workers: the number of workers.
        machines: what they run on.
        reducers: how many other machines could be reducers. More than workers save no time.
        on_gpus: whether the workers of a host are GPUs of one process. On CPUs each worker is a
            process: `mirrored` has one replica there, and `multi_worker` no groups.
    """
    if workers == 1:
        return []
    hosts = machines.hosts(workers)
    is_one_process = on_gpus and hosts == 1
    strategies = ("mirrored", *SEVERAL_PROCESSES) if is_one_process else SEVERAL_PROCESSES
    found = [
        Candidate(strategy, compression)
        for strategy in strategies
        for compression in (None, *COMPRESSION)
    ]
    if on_gpus and hosts > 1 and machines.per_host > 1 and workers % machines.per_host == 0:
        # Horovod's groups take longer than its ring on most links (docs/exchange_algorithms.md).
        found += [
            Candidate("multi_worker", compression, exchange="hierarchical")
            for compression in (None, *COMPRESSION)
        ]
    for strategy in strategies:
        # "gradients" is the same without accumulation.
        found += [Candidate(strategy, sharding=kind) for kind in ("optimizer", "parameters")]
        found += [Candidate(strategy, code, local) for local, code in trained.LOCAL_CHOICES]
    reducers = min(reducers, workers)
    if reducers:
        found += [Candidate("multi_worker", c, reducers=reducers) for c in _WITH_REDUCERS]
    found.append(Candidate("parameter_server", synchronous=True))
    return found + [
        Candidate("parameter_server", pushed, pull_compression=pulled)
        for pushed, pulled in _WITH_SERVERS
    ]


def is_short(candidate: Candidate) -> bool:
    """Whether the short table shows the choice."""
    if candidate.local is not None:
        return trained.is_good(candidate) and not candidate.local.streams
    if candidate.has_servers:
        return candidate.compression is None and candidate.pull_compression is None
    return candidate.compression in _SHORT_COMPRESSION


def distance(candidate: Candidate) -> int:
    """How far the result is from that of one device: 0 is the same."""
    if candidate.is_exact:
        return 0
    if candidate.is_asynchronous:
        return 4
    if candidate.local is not None:
        return 3
    return 1 if candidate.compression in _ROUNDS else 2


def best(predictions: Iterable[Prediction], memory: float | None = None) -> Prediction | None:
    """The choice that changes the result least, unless another one saves much time.

    Args:
        predictions: for one number of workers.
        memory: the bytes that a device has; None for no bound.

    Returns:
        The choice; None if none fits in the memory.
    """
    chosen: Prediction | None = None
    fitting = [
        p
        for p in predictions
        if (memory is None or p.memory <= memory) and trained.is_good(p.candidate)
    ]
    for prediction in sorted(fitting, key=lambda p: distance(p.candidate)):
        if chosen is None or _is_worth(prediction, chosen):
            chosen = prediction
    return chosen


def _is_worth(prediction: Prediction, chosen: Prediction) -> bool:
    further = distance(prediction.candidate) > distance(chosen.candidate)
    further = further or prediction.machines > chosen.machines
    return prediction.step < (1 - (_WORTH if further else _LIKE)) * chosen.step


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """What to do.

    Attributes:
        workers: the number of workers; 1 to stay on one device, 0 if nothing fits.
        code: the line of code to write; None to stay.
        reason: in a sentence.
        reducers: the number of machines that only sum, besides.
    """

    workers: int
    code: str | None
    reason: str
    reducers: int = 0


def recommend(
    alone: Prediction,
    predictions: Sequence[Prediction],
    least_efficiency: float,
    memory: float | None = None,
    samples: int | None = None,
) -> Recommendation:
    """The largest number of workers of which each is used well, and the choice for it.

    Args:
        alone: one device.
        predictions: for all numbers of workers.
        least_efficiency: what counts as used well: samples per second, by those of as many devices
            that work alone.
        memory: the bytes that a device has; None for no bound.
        samples: of an epoch, for `with_few_updates`; None if they are not known.
    """
    few = with_few_updates(alone, predictions, samples)
    counts = sorted({p.workers for p in predictions}.difference(few))
    found = _bests(predictions, counts, memory)

    def is_good(p: Prediction) -> bool:
        return p.efficiency >= least_efficiency and _gain(p, alone) >= _LEAST_GAIN

    good = [p for p in found if is_good(p)]
    excluded = [p for p in _bests(predictions, few, memory) if is_good(p)]
    if not found:
        return _nothing(alone, counts, memory, bool(predictions), _faster(alone, excluded))
    fits = memory is None or alone.memory <= memory
    if not good and fits:
        fastest = max(found, key=lambda p: p.samples_per_second)
        return _stay(alone, fastest, least_efficiency, _but_for_updates(alone, excluded))
    if fits and alone.step < _LEAST_STEP:
        return Recommendation(1, None, _TOO_SHORT.format(duration(alone.step)))
    chosen = good[-1] if good else max(found, key=lambda p: p.efficiency)
    reason = (
        f"{chosen.workers} workers make {_gain(chosen, alone):.1f} times the samples per second of "
        f"one device, {100 * chosen.efficiency:.0f} % of what they would without an exchange"
    )
    dense = [p for p in predictions if p.workers == chosen.workers and p.candidate.is_exact]
    if dense and not chosen.candidate.is_exact:
        exact = best(dense, memory) or min(dense, key=lambda p: p.step)
        reason += (
            f"; with the result of one device ({exact.candidate.title}) it would be "
            f"{_gain(exact, alone):.1f} times, as all meet in each step, and "
            f"{exact.sent / 1e6:.3g} MB travel instead of {chosen.sent / 1e6:.3g} MB"
        )
    if not chosen.candidate.is_exact:
        reason += "; the result is not that of one device, and may need more steps"
    if (loss := trained.loss(chosen.candidate)) is not None:
        reason += (
            f": a small character model came to {loss:.3f} times the loss of synchronous steps"
        )
    if chosen.batch_size != alone.batch:
        steps = f" in {chosen.accumulated} steps" if chosen.accumulated > 1 else ""
        reason += (
            f"; an update is of {chosen.samples_per_update:,} samples{steps}: pass "
            f"batch_size={chosen.batch_size} to `fit`, or batch a data set so, and look for "
            "another learning rate"
        )
    if not fits:
        reason += "; one device has too little memory"
    reason += _but_for_updates(chosen, excluded)
    candidate = chosen.candidate
    return Recommendation(chosen.workers, candidate.code, reason + ".", candidate.reducers)


def with_few_updates(
    alone: Prediction, predictions: Iterable[Prediction], samples: int | None
) -> list[int]:
    """The numbers of workers that are not recommended: an epoch has less than `UPDATES` updates.

    Where one device makes no more updates than the workers do, they are no reason to stay there.

    Args:
        alone: one device.
        predictions: for all numbers of workers.
        samples: of an epoch; None if they are not known.
    """
    most = float("inf") if samples is None else samples
    most = max(most, UPDATES * alone.accumulated * alone.global_batch)
    return sorted(
        {p.workers for p in predictions if UPDATES * p.accumulated * p.global_batch > most}
    )


def _bests(
    predictions: Iterable[Prediction], counts: Iterable[int], memory: float | None
) -> list[Prediction]:
    """The best choice for each of these numbers of workers, where there is one."""
    bests = [best([p for p in predictions if p.workers == n], memory) for n in counts]
    return [prediction for prediction in bests if prediction is not None]


def _faster(chosen: Prediction, excluded: Iterable[Prediction]) -> str:
    """Which choice would be faster, but for the updates of an epoch; "" if none is."""
    fastest = max(excluded, key=lambda p: p.samples_per_second, default=chosen)
    if fastest.samples_per_second <= chosen.samples_per_second:
        return ""
    return f"; {fastest.workers} workers would be faster ({fastest.candidate.title})"


def _but_for_updates(chosen: Prediction, excluded: Iterable[Prediction]) -> str:
    faster = _faster(chosen, excluded)
    return faster and f"{faster}, but an epoch would have less than {UPDATES} updates"


def _gain(prediction: Prediction, alone: Prediction) -> float:
    return prediction.samples_per_second / alone.samples_per_second


def _stay(alone: Prediction, fastest: Prediction, least: float, but: str) -> Recommendation:
    return Recommendation(
        1,
        None,
        f"Stay on one device: a step takes {duration(alone.step)} there. The fastest choice, "
        f"{fastest.candidate.title} on {fastest.workers} workers, takes {duration(fastest.step)} "
        f"and makes {_gain(fastest, alone):.2g} times the samples per second: each worker is used "
        f"to {100 * fastest.efficiency:.2g} %, and at least {100 * least:.0f} % were asked "
        f"for{but}.",
    )


def _nothing(
    alone: Prediction,
    counts: Sequence[int],
    memory: float | None,
    was_asked: bool,
    faster: str,
) -> Recommendation:
    if counts:
        why = f"no choice for {counts[-1]} workers fits in {size(memory or 0)}"
    else:
        why = "no number of workers above 1 was asked about"
        why += f" for which an epoch has {UPDATES} updates{faster}" if was_asked else ""
    if memory is None or alone.memory <= memory:
        return Recommendation(1, None, f"Stay on one device: {why}.")
    return Recommendation(
        0,
        None,
        f"Nothing fits: one device needs {size(alone.memory)} for weights, gradients, optimizer "
        f"and activations, and has {size(memory)}; {why}.",
    )
