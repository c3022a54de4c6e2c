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
import os, time
from stability.crew import crew

if __name__ == "__main__":
    with crew() as pool:
        pool.submit(os.getpid).result()
        waiting = [pool.submit(time.sleep, 600) for _ in range(2)]
        print(*pool._processes, flush=True)
        time.sleep(600)
"""


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_command_that_is_killed(tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as command:
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
