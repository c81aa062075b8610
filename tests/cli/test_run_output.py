"""What the ranks print is shown readably, and kept whole."""

import fcntl
import os
import pty
import struct
import subprocess
import termios

from tests.cli.launching import messages

# As Keras writes its progress bar.
BAR = (
    b"\x1b[1m 1/20\x1b[0m [=>......] - loss: 0.5"
    + b"\b" * 30
    + b"\r\x1b[1m20/20\x1b[0m [=======>]\n"
)
WRITES_BAR = f"sys.stdout.buffer.write({BAR!r})\nsys.stdout.flush()\n"


def read_terminal(process, master):
    """Everything that a process writes to the terminal whose other end is `master`."""
    data = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        data += piece
    process.wait(timeout=30)
    os.close(master)
    return data


def run_in_terminal(launcher, body, *options, size=(24, 80)):
    master, slave = pty.openpty()
    mode = termios.tcgetattr(slave)
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, mode)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    process = subprocess.Popen(
        launcher.command(body, *options),
        env=launcher.environment(),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    data = read_terminal(process, master)
    return process.returncode, data


def test_rank_0_is_shown_byte_by_byte(launcher):
    binary = bytes(range(256)) + BAR
    body = f"""
    if rank == 0:
        sys.stdout.buffer.write({binary!r})
        sys.stdout.flush()
        os.write(2, {BAR!r})
    """
    finished = launcher.run(body)
    assert finished.returncode == 0
    assert finished.stdout == binary
    assert finished.stderr == BAR


def test_the_others_are_shown_in_lines_with_their_rank(launcher):
    body = f"""
    if rank == 0:
        sys.exit()
    {WRITES_BAR.splitlines()[0]}
    print("one")
    print("two", end="", flush=True)
    time.sleep(0.2)
    print(" three", file=sys.stderr)
    print("no newline", end="")
    """
    finished = launcher.run(body, count=3)
    assert sorted(set(finished.stdout.splitlines())) == [
        *(b"[1] \x1b[1m20/20\x1b[0m [=======>]", b"[1] one", b"[1] twono newline"),
        *(b"[2] \x1b[1m20/20\x1b[0m [=======>]", b"[2] one", b"[2] twono newline"),
    ]
    assert sorted(finished.stderr.splitlines()) == [b"[1]  three", b"[2]  three"]


def test_a_line_of_another_rank_does_not_run_into_the_progress_bar(launcher):
    body = """
    if rank == 0:
        print("1/2 [===   ]", end="", flush=True)
        note("bar")
        wait_for("said")
        time.sleep(0.5)
        print("\\r2/2 [======]")
    else:
        wait_for("bar")
        time.sleep(0.3)
        print("hello")
        note("said")
    """
    assert launcher.run(body).stdout == b"1/2 [===   ]\n[1] hello\n\r2/2 [======]\n"


def test_both_streams_keep_their_order_where_they_go_to_one_place(launcher):
    body = """
    for i in range(5000):
        os.write(1 + i % 2, f"{i}\\n".encode())
    """
    finished = subprocess.run(
        launcher.command(body, count=1),
        env=launcher.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
    )
    assert finished.stdout == b"".join(b"%d\n" % i for i in range(5000))


def test_everything_is_kept_in_a_log_per_rank(launcher):
    body = f"""
    {WRITES_BAR.splitlines()[0]}
    sys.stdout.flush()
    print("rank", rank, "of", task["type"], "x" * 200000)
    """
    directory = launcher.directory / "some" / "logs"
    finished = launcher.run(body, "--log-dir", directory)
    assert finished.returncode == 0
    for rank in range(2):
        expected = BAR + f"rank {rank} of worker {'x' * 200000}\n".encode()
        assert (directory / f"rank-{rank}.log").read_bytes() == expected
    assert finished.stderr == b""


def test_without_a_directory_logs_are_kept_only_when_they_are_wanted(launcher):
    assert launcher.run("print('hello')").returncode == 0
    assert launcher.logs() == {} and not list(launcher.temporary.iterdir())
    finished = launcher.run("print('hello')", "--verbose")
    assert set(launcher.logs()) == {"rank-0.log", "rank-1.log"}
    assert "2 processes, strategy multi_worker, logs in" in messages(finished)[0]


def test_rank_0_has_a_terminal_where_the_launcher_has_one(launcher):
    body = f"""
    import shutil
    note(f"tty-{{rank}}", (sys.stdout.isatty(), sys.stderr.isatty(), sys.stdin.isatty()))
    if rank == 0:
        note("size", tuple(os.get_terminal_size(1)))
        wait_for("tty-1")
        {WRITES_BAR.splitlines()[0]}
        sys.stdout.flush()
    """
    code, shown = run_in_terminal(launcher, body, size=(33, 111))
    assert code == 0
    assert shown == BAR
    assert launcher.note("tty-0") == "(True, True, True)"
    assert launcher.note("tty-1") == "(False, False, False)"
    assert launcher.note("size") == "(111, 33)"


def test_rank_0_has_no_terminal_where_the_launcher_has_none(launcher):
    launcher.run('note(f"tty-{rank}", (sys.stdout.isatty(), sys.stderr.isatty()))')
    assert launcher.note("tty-0") == launcher.note("tty-1") == "(False, False)"


def test_rank_0_reads_the_input(launcher):
    body = 'note(f"input-{rank}", sys.stdin.read())'
    subprocess.run(
        launcher.command(body), env=launcher.environment(), input=b"hello", timeout=30, check=True
    )
    assert (launcher.note("input-0"), launcher.note("input-1")) == ("hello", "")


def test_what_a_killed_rank_printed_last_is_not_lost(launcher):
    body = """
    print("last words")
    os.kill(os.getpid(), signal.SIGKILL)
    """
    finished = launcher.run(body, count=1)
    assert finished.stdout == b"last words\n"
    assert launcher.logs() == {"rank-0.log": b"last words\n"}


def test_much_output_is_shown_whole(launcher):
    body = """
    for i in range(20000):
        print(f"{rank} {i} " + "x" * 50)
    """
    shown = launcher.run(body, count=3).stdout.decode().splitlines()
    for rank in range(3):
        prefix = f"[{rank}] " if rank else ""
        lines = [line for line in shown if line.startswith(f"{prefix}{rank} ")]
        assert lines == [f"{prefix}{rank} {i} {'x' * 50}" for i in range(20000)]


# What TensorFlow 2.21 prints in each process, and Horovod's and users' lines between.
BANNERS = b"""\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795474732.245953   25612 cudart_stub.cc:31] Could not find cuda drivers on your
2026-11-23 22:29:06.1234: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the \
appropriate compiler flags.
E0000 00:00:1795474755.261800   25611 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA
I0000 00:00:1795474755.453223   26867 coordination_service.cc:505] Example stragglers:
/job:worker/replica:0/task:1
I0000 00:00:1795474855.757801   31144 eager_service_impl.cc:355] SessionOptions: goo.gle/debugonly
device_count {
  key: "CPU"
  value: 1
}
allow_soft_placement: true

W0000 00:00:1795474760.870840   25611 dataset.cc:997] Input of Dataset will not \
be optimized because the dataset does not implement the AsGraphDefInternal() method
W0000 00:00:1795474863.552432   32369 local_rendezvous.cc:412] Local rendezvous is aborting with \
status: OUT_OF_RANGE: End of sequence
"""
LINES = b"""\
INFO:tensorflow:tfdist: strategy 'horovod', because
key: "of mine"
E0000 00:00:1795474762.778054   26879 ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE
W0000 00:00:1795474804.178722   28359 local_rendezvous.cc:412] Local rendezvous is aborting with \
status: UNKNOWN: Horovod has been shut down
2026-11-23 22:29:06.1234: F tensorflow/core/x.cc:1] Check failed
I am training
"""


def test_banners_of_tensorflow_stay_in_the_logs_only(launcher, tmp_path):
    body = f"""
    sys.stderr.buffer.write({BANNERS!r} + {LINES!r} + {BANNERS!r})
    sys.stderr.flush()
    wait_for("pid-0", "pid-1")
    os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else time.sleep(60)
    """
    finished = launcher.run(body, "--log-dir", tmp_path / "logs")
    shown = [line for line in finished.stderr.splitlines() if line.startswith(b"[1] ")]
    expected = [b"[1] " + line for line in LINES.splitlines()]
    assert shown == expected * 2  # once while it ran, once in the report
    assert (tmp_path / "logs" / "rank-1.log").read_bytes() == BANNERS + LINES + BANNERS
    assert BANNERS + LINES + BANNERS in finished.stderr  # rank 0 is shown as it is
