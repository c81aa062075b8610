"""Starts `tfdist run --rendezvous` as on several machines; all of them are this one."""

import socket
import subprocess
import time

SECRET = {"TFDIST_SECRET": "known to all launchers"}
NOTES = """
    note(f"task-{rank}", json.dumps([task, config["cluster"], "TFDIST_SECRET" in os.environ]))
"""


def start(launcher, body, address, *options, count=1, machines=2, environ=SECRET, notes):
    is_fixed = "--min" not in options
    given = ("--rendezvous", address, *(["--machines", machines] if is_fixed else []), *options)
    command = launcher.command(body, *given, count=count)
    command[command.index(str(launcher.script)) + 1] = str(notes.directory)
    process = subprocess.Popen(
        command,
        env=launcher.environment(**environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    launcher._started.append(process)
    return process


def wait_until_served(address):
    host, _, port = address.partition(":")
    end = time.monotonic() + 20
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)


def said(process, timeout=40):
    output, errors = process.communicate(timeout=timeout)
    return process.returncode, output.decode(), errors.decode()
