"""`tfdist plan`: whether more devices help, with which strategy, and what they bring."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from tfdist.cli.quantities import Bandwidth, Duration, Price, Size, Workers
from tfdist.plan import candidates, decisions, table
from tfdist.plan.machine import Cluster, Machines, link_of, read_cluster
from tfdist.plan.prediction import Planner, Prediction

_EXAMPLE = """\b
Example:
  tfdist plan model.keras --batch-size 64 --bandwidth 1Gbit/s
  tfdist plan train.py --cluster test.json --workers 1,2,4,...,64 --price 2.5/h --samples 50000
  tfdist plan train.py --bandwidth 10Gbit/s --device-step 110ms -- --epochs 3
  tfdist plan --explain
"""
_LATENCY = 5e-5
_WORKERS = [1, 2, 4, 8, 16, 32]


@dataclasses.dataclass(frozen=True)
class _Options:
    """What the command line says, besides the model."""

    batch_size: int | None
    cluster: Cluster | None
    bandwidth: float | None
    latency: float | None
    per_host: int | None
    device_step: float | None
    workers: list[int] | None
    strong: bool
    servers: int
    samples: int | None
    price: float | None
    memory: float | None
    efficiency: float
    every: bool


@click.command(context_settings={"max_content_width": 100}, epilog=_EXAMPLE)
@click.argument("model", required=False, type=click.Path(dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--batch-size", type=click.IntRange(1), help="Samples of each worker in a step.")
@click.option("--cluster", type=click.Path(dir_okay=False), help="What `tfdist test --json` wrote.")
@click.option("--bandwidth", type=Bandwidth(), help="Of a host's link, such as 1Gbit/s.")
@click.option("--latency", type=Duration(), help="Of an empty message (default: 50us).")
@click.option("--per-host", type=click.IntRange(1), help="Workers on each host (default: 1).")
@click.option(
    "--device-step",
    type=Duration(),
    help="A training step on one device, such as 110ms. Otherwise some steps run here.",
)
@click.option("--workers", type=Workers(), help="Such as 1,2,4,...,64 (default: 1,2,4,...,32).")
@click.option("--strong", is_flag=True, help="Divides the batch among the workers.")
@click.option("--ps", "servers", type=click.IntRange(1), default=1, help="Parameter servers.")
@click.option("--samples", type=click.IntRange(1), help="Samples of an epoch.")
@click.option("--price", type=Price(), help="Of a worker for an hour, such as 2.5/h.")
@click.option("--memory", type=Size(), help="Of a device, such as 16GB: what does not fit is out.")
@click.option(
    "--efficiency",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.5,
    help="Recommends as many workers as are used to this part at least (default: 0.5).",
)
@click.option("--all", "every", is_flag=True, help="Shows all choices, not the usual ones.")
@click.option("--explain", is_flag=True, help="Shows which strategy is for what, and no figures.")
@click.option("--json", "as_json", is_flag=True, help="Prints JSON, for programs.")
@click.pass_context
def plan(
    context: click.Context,
    model: str | None,
    arguments: tuple[str, ...],
    cluster: str | None,
    explain: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Predicts whether more devices help, which strategy to use, and what it will bring.

    MODEL is a model.keras, or a script whose first `fit` has the model; what follows `--` is given
    to the script. Nothing is trained. All figures are predictions: the page "Planning" of the docs
    says how well they meet what was measured.
    """
    if explain:
        _explain(as_json)
        return
    if model is None:
        context.fail("give a model.keras or a script, or --explain. Received: no MODEL")
    try:
        chosen = _Options(cluster=None if cluster is None else read_cluster(cluster), **options)
        machines = _machines(chosen)
        planner, notes = _planner(model, arguments, chosen, machines)
    except ValueError as error:
        context.fail(str(error))
    predictions = _predicted(planner, chosen)
    alone = planner.alone()
    advice = candidates.recommend(
        alone, predictions, chosen.efficiency, chosen.memory, chosen.samples
    )
    epoch = table.Epoch(chosen.samples, chosen.price)
    if as_json:
        found = {
            "assumptions": notes,
            "predicted": True,
            "predictions": table.as_data([alone, *predictions], epoch),
            "recommendation": dataclasses.asdict(advice),
        }
        click.echo(json.dumps(found, indent=2))
        return
    shown = [p for p in predictions if chosen.every or _is_shown(p, predictions, chosen)]
    lines = [*notes, "", *table.as_text([alone, *shown], epoch), ""]
    lines += ["All figures are predicted, not measured.", ""]
    lines += [f"Recommended: {advice.code or 'one device'}"]
    lines += [f"  with {advice.workers} workers"] if advice.code else []
    click.echo("\n".join([*lines, f"  {advice.reason}"]))


def _explain(as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(d) for d in decisions.DECISIONS], indent=2))
    else:
        click.echo("\n".join(decisions.as_text()))


def _machines(options: _Options) -> Machines:
    """The machines that the options mean.

    Raises:
        ValueError: when the link is not known.
    """
    known = options.cluster
    per_host = options.per_host or (known.per_host if known else 1)
    if options.bandwidth is not None:
        latency = options.latency or (known.link.alpha if known else _LATENCY)
        return Machines(link_of(options.bandwidth, latency), per_host)
    if known is None:
        raise ValueError(
            "The rate of the link decides, and is not known: give --cluster with what "
            "`tfdist test --json` has written, or --bandwidth, such as 1Gbit/s. "
            "Received: neither --cluster nor --bandwidth"
        )
    link = known.link
    if options.latency is not None:
        link = dataclasses.replace(link, alpha=options.latency)
    return Machines(link, per_host)


def _planner(
    model: str, arguments: tuple[str, ...], options: _Options, machines: Machines
) -> tuple[Planner, list[str]]:
    """What predicts, and what it has taken for granted; this imports TensorFlow.

    Raises:
        ValueError: when the model cannot be read.
    """
    try:
        from tfdist.plan import models
    except ImportError as error:
        raise ValueError(
            f"Reading a model needs TensorFlow and Keras: {error}. `tfdist doctor` says what is "
            f"wrong; `tfdist plan --explain` works without. Received: {model!r}"
        ) from None
    step = options.device_step or (options.cluster.device_step if options.cluster else None)
    found = models.read(model, arguments, options.batch_size, step)
    machines = dataclasses.replace(machines, core_per_byte=found.core_per_byte)
    planner = Planner(
        found.workload, found.messages, found.device, machines, options.strong, options.servers
    )
    batch = "samples for all workers" if options.strong else "samples of each worker"
    notes = [
        *found.notes,
        f"A step has {found.device.batch} {batch}; it takes "
        f"{table.duration(found.device.step)} on one device.",
        f"Link of a host: {8e-9 / machines.link.beta:.3g} Gbit/s of gradients, "
        f"{1e6 * machines.link.alpha:.3g} us; workers on each host: {machines.per_host}.",
        "Memory is that of weights, gradients and optimizer, without activations.",
    ]
    return planner, notes


def _predicted(planner: Planner, options: _Options) -> list[Prediction]:
    counts = options.workers or _WORKERS
    if options.workers is None and options.cluster is not None:
        counts = sorted(
            {*(n for n in _WORKERS if n < options.cluster.ranks), options.cluster.ranks}
        )
    if options.strong:
        counts = [count for count in counts if count <= planner.device.batch]
    return [
        planner.predict(candidate, count)
        for count in counts
        for candidate in candidates.candidates(count, planner.machines)
    ]


def _is_shown(prediction: Prediction, every: list[Prediction], options: _Options) -> bool:
    """Whether the short table shows it: the usual choices, and the best for its workers."""
    if candidates.is_short(prediction.candidate):
        return True
    same = [p for p in every if p.workers == prediction.workers]
    return candidates.best(same, options.memory) is prediction
