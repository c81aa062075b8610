"""Scripts of chiefs, workers and parameter servers that need no TensorFlow."""

import textwrap

# What workers and parameter servers do in scripts that need no TensorFlow.
SERVES = """
def wait_for_end(name):
    wait_for(f"pid-{name}")
    stat = Path(f"/proc/{(here / f'pid-{name}').read_text()}/stat")
    while stat.read_text().rpartition(") ")[2][0] != "Z":  # the launcher keeps it so
        time.sleep(0.02)


def serve():
    wait_for_end(0)
    time.sleep(0.3)
    note(f"ended-{rank}")
    sys.exit()


def kill(name, number):
    os.kill(int((here / f"pid-{name}").read_text()), number)
"""


def script(body):
    return SERVES + textwrap.dedent(body)


def pids(launcher, *names):
    return launcher.pids(*(f"pid-{name}" for name in names))


def shortened(command, seconds=1):
    """The command, with less patience for what follows the loss of a worker."""
    change = (
        "import dataclasses\n"
        "from tfdist.launcher import members\n"
        f"members.WORKER = dataclasses.replace(members.WORKER, settle={seconds})\n"
    )
    main = "import sys; from tfdist.cli.main import main; sys.exit(main())"
    return [command[0], "-c", change + main, *command[3:]]
