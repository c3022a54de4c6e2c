"""Processes that share work are gone when the command is, however it ended."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, time
from stability import shell
from stability.theory.workers import process_pool

@shell.quiet_exit
def main():
    with process_pool() as pool:
        pool.submit(os.getpid).result()
        waiting = [pool.submit(time.sleep, {seconds}) for _ in range(2)]
        print(*pool._processes, flush=True)
        time.sleep(600)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell said "&"
    raise SystemExit(main())
"""


def start(folder: Path, seconds: int) -> subprocess.Popen[str]:
    """A command in a group of its own whose workers sleep so long."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(seconds=seconds))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, script], text=True, start_new_session=True, **pipes)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_command_that_is_killed(tmp_path, number):
    with start(tmp_path, 600) as command:
        workers = [int(pid) for pid in command.stdout.readline().split()]
        try:
            assert workers and all(map(lives, workers))
            command.send_signal(number)
            command.wait()
            patience = time.monotonic() + 30
            while any(map(lives, workers)) and time.monotonic() < patience:
                time.sleep(0.1)
            assert not any(map(lives, workers))
        finally:
            for pid in workers:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_ctrl_c_ends_the_command_and_says_nothing(tmp_path):
    with start(tmp_path, 2) as command:
        command.stdout.readline()
        os.killpg(command.pid, signal.SIGINT)  # as a terminal does: workers are told too
        try:
            _, said = command.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
    assert command.returncode == 130
    assert said == ""
