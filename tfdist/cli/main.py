"""The command `tfdist`: runs the subcommand, and prints errors in one line."""

from __future__ import annotations

import signal
import sys

import click

from tfdist.cli.doctor import doctor
from tfdist.cli.plan import plan
from tfdist.cli.replay import replay
from tfdist.cli.run import run

_EXAMPLE = """\b
Example:
  tfdist doctor
  tfdist plan train.py --bandwidth 1Gbit/s
  tfdist run -n 2 train.py --epochs 3
  tfdist replay run.log train.py --epochs 3
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXAMPLE)
@click.version_option(package_name="tfdist", message="tfdist %(version)s")
def cli() -> None:
    """Trains Keras models on several devices, processes and machines."""


cli.add_command(run)
cli.add_command(doctor)
cli.add_command(plan)
cli.add_command(replay)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: what follows the program's name; None for the arguments of this process.

    Returns:
        The exit status: 2 for an error in the arguments.

    Example:

    >>> from tfdist.cli.main import main
    >>> main(["--version"])
    tfdist ...
    0
    """
    name = "tfdist"
    try:
        status = cli.main(arguments, prog_name=name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        name = context.command_path if context is not None else name
        click.echo(f"{name}: {' '.join(error.format_message().split())}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
