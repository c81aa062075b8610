"""`tfdist plan`: whether more devices help, with which strategy, and what they bring."""

from __future__ import annotations

import dataclasses
import json

import click

from tfdist.cli.quantities import Bandwidth, Duration, Part, Price, Size, Workers
from tfdist.plan import decisions
from tfdist.plan.machine import COSTS

_MOST = 10**15  # samples, workers of a host, servers
_LARGEST_BATCH = 2**31 - 1  # shapes in a trace have 32 bits

_EXAMPLE = """\b
Example:
  tfdist plan model.keras --batch-size 64 --bandwidth 1Gbit/s
  tfdist plan train.py --cluster test.json --workers 1,2,4,...,64 --price 2.5/h
  tfdist plan train.py --bandwidth 1Gbit/s --price 2.5/h --samples 50000
  tfdist plan train.py --bandwidth 10Gbit/s --device-step 110ms -- --epochs 3
  tfdist plan --explain
"""


@click.command(context_settings={"max_content_width": 100}, epilog=_EXAMPLE)
@click.argument("model", required=False, type=click.Path(dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--batch-size", type=click.IntRange(1, _LARGEST_BATCH), help="Samples of each worker in a step."
)
@click.option("--cluster", type=click.Path(dir_okay=False), help="What `tfdist test --json` wrote.")
@click.option("--bandwidth", type=Bandwidth(), help="Of a host's link, such as 1Gbit/s.")
@click.option("--latency", type=Duration(), help="Of an empty message (default: 50us).")
@click.option(
    "--per-host", type=click.IntRange(1, _MOST), help="Workers on each host (default: 1)."
)
@click.option(
    "--device-step",
    type=Duration(),
    help="A training step on one device, such as 110ms. Otherwise some steps run here.",
)
@click.option(
    "--device",
    type=click.Choice(list(COSTS)),
    help="What the devices are (default: as in the --cluster, or what this machine has).",
)
@click.option("--workers", type=Workers(), help="Such as 1,2,4,...,64 (default: 1,2,4,...,32).")
@click.option("--strong", is_flag=True, help="Divides the batch among the workers.")
@click.option(
    "--ps", "servers", type=click.IntRange(1, _MOST), default=1, help="Parameter servers."
)
@click.option(
    "--reducers",
    type=click.IntRange(0, _MOST),
    default=0,
    help="Further machines that could only sum gradients, as many as workers at most.",
)
@click.option(
    "--samples",
    type=click.IntRange(1, _MOST),
    help="Samples of an epoch (default: those of the script's `fit`, if they are known).",
)
@click.option("--price", type=Price(), help="Of a machine for an hour, such as 2.5/h.")
@click.option("--memory", type=Size(), help="Of a device, such as 16GB: what does not fit is out.")
@click.option(
    "--efficiency",
    type=Part(),
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
    every: bool,
    explain: bool,
    as_json: bool,
    **_: object,
) -> None:
    """Predicts whether more devices help, which strategy to use, and what it will bring.

    MODEL is a model.keras, or a script whose first `fit` has the model; what follows `--` is given
    to the script. `fit` trains nothing here, and other ways to train are refused; what else the
    script does before `fit` is done. All figures are predictions: the page "Planning" of the docs
    says how well they meet what was measured.
    """
    if explain:
        _explain(as_json)
        return
    if model is not None and model.endswith(".json"):
        context.fail(
            "--json is without a file, as it prints: write `tfdist plan MODEL --json > "
            f"{model}`. Received: {model!r} as the MODEL"
        )
    if model is None:
        context.fail("give a model.keras or a script, or --explain. Received: no MODEL")
    try:
        from tfdist.plan import question, table
    except ImportError as error:
        context.fail(
            f"reading a model needs TensorFlow and Keras: {error}. `tfdist doctor` says what is "
            f"wrong; `tfdist plan --explain` works without. Received: {model!r}"
        )
    try:
        names = {field.name for field in dataclasses.fields(question.Question)}
        asked = {name: value for name, value in context.params.items() if name in names}
        found = question.answer(question.Question(**asked))
    except ValueError as error:
        context.fail(str(error))
    epoch, advice = found.question.epoch, found.advice
    if as_json:
        data = {
            "predicted": True,
            "assumptions": found.notes,
            "predictions": table.as_data([found.alone, *found.predictions], epoch),
            "recommendation": dataclasses.asdict(advice),
        }
        click.echo(json.dumps(data, indent=2))
        return
    shown = [found.alone, *found.predictions] if every else found.shown()
    lines = [*found.notes, "", *table.as_text(shown, epoch), ""]
    lines += ["All figures are predicted, not measured.", ""]
    lines += [f"Recommended: {advice.code or ('one device' if advice.workers else 'nothing')}"]
    lines += [f"  with {advice.workers} workers"] if advice.code else []
    if advice.reducers:
        lines += [f"  and {advice.reducers} reducers (`tfdist run --reducers`)"]
    click.echo("\n".join([*lines, f"  {advice.reason}"]))


def _explain(as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(d) for d in decisions.DECISIONS], indent=2))
    else:
        click.echo("\n".join(decisions.as_text()))
