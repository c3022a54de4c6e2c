"""``python -m stability.status SWEEP``: how far a planned sweep is, why runs failed, what is left.

The time left is that of the unfinished runs' cost at the rate, in seconds per cost, of the runs
that have completed; a run that goes on counts in full.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stability import shell
from stability.config.knobs import ConfigError
from stability.results.atomic import Unreadable
from stability.sweep import lock, plan_file, resume
from stability.sweep.grid import Cell
from stability.sweep.progress import duration
from stability.sweep.shards import cost


@dataclass
class Status:
    """What is known of the runs of a plan."""

    counts: Counter[str] = field(default_factory=Counter)
    """Runs by status; ``dead`` ran in a process that has ended, ``waiting`` were not started."""
    failures: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Cause -> folders of the runs that failed by it."""
    cost_done: float = 0.0
    """Cost of completed runs."""
    seconds: float = 0.0
    """Seconds that these took."""
    cost_left: float = 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds of one worker; None before a run has completed."""
        return self.seconds / self.cost_done * self.cost_left if self.cost_done else None

    def add(self, cell: Cell) -> None:
        """Count a run."""
        info, work = resume.read(cell.folder), cost(cell.config)
        status = "waiting" if info is None else str(info["status"])
        if status == "running" and not lock.is_held(cell.folder, cell.config.lock_minutes):
            status = "dead"
        if status == "completed" and resume.finished(cell.folder, cell.config) is None:
            status = "waiting"
        self.counts[status] += 1
        if info is not None and status == "completed":
            self.cost_done += work
            self.seconds += info["seconds"] or 0.0
        elif info is not None and status == "failed":
            self.failures[str(info["error"])].append(cell.folder.name)
        elif status != "diverged":
            self.cost_left += work

    def lines(self) -> list[str]:
        """The text that is printed."""
        total = self.counts.total()
        counted = ", ".join(f"{n} {status}" for status, n in self.counts.most_common())
        found = [f"{total} run{'s' * (total != 1)}: {counted}"]
        for cause, folders in sorted(self.failures.items(), key=lambda item: -len(item[1])):
            found.append(f"failed {len(folders)} times: {cause}  ({folders[0]})")
        if self.cost_left and self.seconds_left is not None:
            running = self.counts["running"]
            at_once = f", {duration(self.seconds_left / running)} by {running}" if running else ""
            found.append(f"left: {duration(self.seconds_left)} by one worker{at_once}")
        return found


@shell.quiet_exit
def main(argv: Sequence[str] | None = None) -> int:
    """The command: 0, or 2 after a line that says why there is no status."""
    parser = shell.command_parser("status", "Count the runs of a plan, and say what is left.")
    parser.add_argument("sweep", type=Path, metavar="SWEEP", help="the folder of a planned sweep")
    args = parser.parse_args(argv)
    status = Status()
    try:
        for cell in plan_file.read(args.sweep)[0]:
            status.add(cell)
    except (Unreadable, ConfigError) as error:
        print(f"stability.status: {error}", file=sys.stderr)
        return 2
    print("\n".join(status.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
