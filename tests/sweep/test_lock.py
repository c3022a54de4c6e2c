"""Two commands never execute the same run, and the lock of a dead owner is taken over."""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from stability.sweep import lock
from stability.sweep.lock_owner import Owner
from stub_runs import wait_for

DEAD = {"pid": 2**22 + 1}
"""No process has this pid: it is the limit of Linux."""

HOLD = """
import sys, time
from pathlib import Path
from stability.sweep import lock
with lock.claim(Path(sys.argv[1]), {minutes}):
    {body}
"""

TRY = """
import sys
from pathlib import Path
from stability.sweep import lock
try:
    with lock.claim(Path(sys.argv[1]), 10):
        print("taken")
except lock.LockHeld:
    print("held")
"""


def write_lock(folder, **changes):
    """The lock of an owner with the pid of this process, which started at another time."""
    owner = asdict(Owner.this_process()) | {"start_tick": "1", "token": "x"}
    path = folder / lock.LOCK_FILE
    path.write_text(json.dumps(owner | changes))
    return path


def make_older(path, seconds):
    os.utime(path, (time.time() - seconds,) * 2)


def take(folder):
    with lock.claim(folder, 10):
        pass


def hold(folder, body, minutes=10.0, before=(), **options):
    """A process that holds the lock while it runs `body`."""
    program = HOLD.format(minutes=minutes, body=body)
    return subprocess.Popen([*before, sys.executable, "-c", program, folder], **options)


def test_two_processes_do_not_hold_a_lock_at_once(tmp_path):
    with lock.claim(tmp_path, 10), pytest.raises(lock.LockHeld, match=str(os.getpid())):
        take(tmp_path)
    take(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("changes", [DEAD, {"pid": 2**70}, {"start_tick": "1"}])
def test_the_lock_of_a_dead_process_is_taken_over_at_once(tmp_path, changes):
    write_lock(tmp_path, **changes)
    take(tmp_path)


def test_a_process_that_was_killed_and_not_waited_for_is_dead(tmp_path):
    holder = hold(tmp_path, "time.sleep(60)")
    wait_for((tmp_path / lock.LOCK_FILE).exists)
    holder.kill()
    wait_for(lambda: Path(f"/proc/{holder.pid}/stat").read_text().rpartition(")")[2][1] == "Z")
    take(tmp_path)
    holder.wait()


def test_a_later_process_has_a_later_start():
    program = "from stability.sweep.lock_owner import Owner; print(Owner.this_process().start_tick)"
    later = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert 0 < int(Owner.this_process().start_tick) < int(later)


@pytest.mark.parametrize("changes", [{"pid": os.getppid()}, {"pid": 1}])
def test_an_owner_whose_start_is_not_known_lives_while_its_pid_does(tmp_path, changes):
    write_lock(tmp_path, start_tick=None, **changes)
    with pytest.raises(lock.LockHeld):
        take(tmp_path)


@pytest.mark.parametrize("changes", [{"host": "elsewhere"}, asdict(Owner.this_process())])
def test_the_lock_of_a_silent_owner_is_taken_over(tmp_path, changes):
    path = write_lock(tmp_path, **changes)
    for age in (0, 500, 590):
        make_older(path, age)
        with pytest.raises(lock.LockHeld, match=f"{changes.get('pid', '')} on {changes['host']}"):
            take(tmp_path)
    make_older(path, 601)
    take(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"host": "HOST"}', '{"host": "HOST", "pid": "7"}', "\xff"]
)
def test_a_lock_that_names_no_owner_counts_only_while_it_may_still_be_written(tmp_path, content):
    path = tmp_path / lock.LOCK_FILE
    text = content.replace("HOST", socket.gethostname())
    path.write_text(text, encoding="latin-1")
    with pytest.raises(lock.LockHeld, match="another process holds its lock"):
        take(tmp_path)
    make_older(path, 2 * lock.WRITE_TIMEOUT)
    with lock.claim(tmp_path, 10):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_pid_that_is_no_number_names_no_owner(tmp_path):
    make_older(write_lock(tmp_path, pid="7", host="elsewhere"), 2 * lock.WRITE_TIMEOUT)
    take(tmp_path)


def test_a_lock_that_cannot_be_written_is_none(tmp_path):
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        + HOLD.format(minutes=10, body="print('held')")
    )
    command = [sys.executable, "-B", "-c", program, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and os.strerror(errno.EFBIG) in done.stderr
    assert done.stdout == "" and list(tmp_path.iterdir()) == []


def test_a_process_that_died_while_it_judged_a_lock_blocks_it_for_a_minute(tmp_path):
    write_lock(tmp_path, **DEAD)
    guard = tmp_path / f"{lock.LOCK_FILE}.check"
    guard.touch()
    for age in (0, 50, 61):
        make_older(guard, age)
        with pytest.raises(lock.LockHeld):
            take(tmp_path)
    take(tmp_path)


def test_ages_do_not_depend_on_the_clock_of_this_machine(tmp_path, monkeypatch):
    path = write_lock(tmp_path, host="elsewhere")
    guard = tmp_path / f"{lock.LOCK_FILE}.check"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 10**6)
    for blocked in (path, guard):
        blocked.touch()
        with pytest.raises(lock.LockHeld):
            take(tmp_path)
        assert blocked.exists()


def test_heartbeats_renew_a_lock_and_its_loss_ends_the_process(tmp_path):
    process = hold(tmp_path, "time.sleep(60)", minutes=0.01)
    path = tmp_path / lock.LOCK_FILE
    wait_for(path.exists)
    first = path.stat().st_mtime_ns
    wait_for(lambda: path.stat().st_mtime_ns > first)
    write_lock(tmp_path, host="elsewhere")
    assert process.wait(timeout=20) == lock.LOST
    assert json.loads(path.read_text())["host"] == "elsewhere"


def test_a_lock_that_was_deleted_is_lost(tmp_path):
    """At the next heartbeat, after 1.5 s: not as late as a read error, which may last for 4.5 s."""
    process = hold(tmp_path, "time.sleep(60)", minutes=0.1)
    wait_for((tmp_path / lock.LOCK_FILE).exists)
    (tmp_path / lock.LOCK_FILE).unlink()
    assert process.wait(timeout=4) == lock.LOST


def test_a_lock_that_was_lost_is_not_released(tmp_path):
    with lock.claim(tmp_path, 10):
        write_lock(tmp_path, host="elsewhere")
    assert (tmp_path / lock.LOCK_FILE).exists()


@pytest.mark.parametrize(("failures", "code"), [(2, 0), (10**6, lock.LOST)])
def test_an_owner_survives_read_errors_that_are_shorter_than_the_silence(tmp_path, failures, code):
    """Silence is 0.6 s, a heartbeat every 0.15 s: two failures pass, endless ones do not."""
    program = (
        "import errno, sys, time; from pathlib import Path; from stability.sweep import lock\n"
        "errors, read = [OSError(errno.ESTALE, 'stale')] * int(sys.argv[2]), Path.read_bytes\n"
        "def read_or_fail(path):\n"
        "    if errors: raise errors.pop()\n"
        "    return read(path)\n"
        "with lock.claim(Path(sys.argv[1]), 0.01):\n"
        "    Path.read_bytes = read_or_fail\n"
        "    time.sleep(2)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path, str(failures)], check=False)
    assert done.returncode == code
    assert (tmp_path / lock.LOCK_FILE).exists() == (code == lock.LOST)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_lock_that_cannot_be_read_is_not_taken_over(tmp_path, monkeypatch, number):
    path = write_lock(tmp_path, **DEAD)
    make_older(path, 10**4)

    def fail(path):
        raise OSError(number, os.strerror(number))

    with (
        monkeypatch.context() as disk,
        pytest.raises(lock.LockHeld, match="another process holds its lock"),
    ):
        disk.setattr(Path, "read_bytes", fail)
        take(tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    take(tmp_path)


def test_many_processes_race_for_a_stale_lock_and_one_wins(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from stability.sweep import lock\n"
        "while time.time() < float(sys.argv[2]): pass\n"
        "try:\n"
        "    with lock.claim(Path(sys.argv[1]), 10):\n"
        "        time.sleep(2); print('won')\n"
        "except lock.LockHeld: pass\n"
    )
    write_lock(tmp_path, **DEAD)
    start = str(time.time() + 3)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, tmp_path, start], stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    assert "".join(racer.communicate()[0] for racer in racers) == "won\n"


def test_a_lock_is_held_while_its_owner_lives_and_a_stale_one_is_removed(tmp_path):
    assert not lock.is_held(tmp_path, 10)
    with lock.claim(tmp_path, 10):
        assert lock.is_held(tmp_path, 10)
    path = write_lock(tmp_path, **DEAD)
    assert not lock.is_held(tmp_path, 10)
    assert not path.exists()
    path = write_lock(tmp_path, host="elsewhere")
    make_older(path, 590)
    assert lock.is_held(tmp_path, 10) and path.exists()
    make_older(path, 610)
    assert not lock.is_held(tmp_path, 10) and not path.exists()


# -- another namespace of pids: a container with the same host name --------------------------------


def test_a_pid_of_another_namespace_says_nothing(tmp_path):
    path = write_lock(tmp_path, pid_namespace="pid:[1]", **DEAD)
    with pytest.raises(lock.LockHeld):
        take(tmp_path)
    make_older(path, 601)
    take(tmp_path)


def unshare(*options):
    """A command's beginning that gives it its own pids."""
    return ["unshare", "--pid", "--fork", "--kill-child", *options]


def can_unshare():
    if shutil.which("unshare") is None:
        return False
    command = unshare("--mount-proc", "true")
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_unshare = pytest.mark.skipif(not can_unshare(), reason="may not make a pid namespace")


@needs_unshare
@pytest.mark.parametrize("proc", [[], ["--mount-proc"]], ids=["outer /proc", "own /proc"])
def test_a_live_owner_in_another_pid_namespace_keeps_its_lock(tmp_path, proc):
    holder = hold(tmp_path, "time.sleep(60)", before=unshare(*proc))
    wait_for(lambda: (tmp_path / lock.LOCK_FILE).exists())
    try:
        with pytest.raises(lock.LockHeld):
            take(tmp_path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()


@needs_unshare
@pytest.mark.parametrize("proc", [[], ["--mount-proc"]], ids=["outer /proc", "own /proc"])
def test_a_command_in_another_pid_namespace_does_not_take_a_live_lock(tmp_path, proc):
    with lock.claim(tmp_path, 10):
        command = [*unshare(*proc), sys.executable, "-c", TRY, tmp_path]
        assert subprocess.check_output(command, text=True) == "held\n"


def test_a_proc_of_another_namespace_tells_no_start(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "readlink", lambda path: Path("7" if path.name == "self" else "x"))
    write_lock(tmp_path, start_tick="1")
    with pytest.raises(lock.LockHeld):
        take(tmp_path)


@needs_unshare
def test_two_commands_in_a_namespace_with_the_outer_proc_do_not_hold_a_lock_at_once(tmp_path):
    body = f"import subprocess; subprocess.run([sys.executable, '-c', {TRY!r}, sys.argv[1]])"
    holder = hold(tmp_path, body, before=unshare(), stdout=subprocess.PIPE, text=True)
    assert holder.communicate()[0] == "held\n"
