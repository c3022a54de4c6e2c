"""How many workers this machine has room for, and which GPU each of them gets."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from stability.sweep.grid import Cell
from stability.sweep.worker import WorkerSettings


def cores() -> int:
    """CPU cores that this process may use: the least of affinity, quota and Slurm's allocation."""
    affinity = hasattr(os, "sched_getaffinity")
    usable = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    return min([usable, *_quotas(), *_allocated()])


def _quotas() -> Iterator[int]:
    """The quotas, in cores, of this process's control group and of those above it."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    own = next((line[3:] for line in lines if line.startswith("0::/")), "/")
    place = PurePosixPath("/sys/fs/cgroup" + own)
    for group in (place, *place.parents[:-3]):
        with suppress(OSError, ValueError):  # no such group, or it has no quota ("max")
            quota, period = map(int, Path(group / "cpu.max").read_text().split())
            yield max(1, quota // period)


def _allocated() -> Iterator[int]:
    """The cores that Slurm gave to this task, or to its job on this machine."""
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        if (text := os.environ.get(name, "")).isdecimal():
            yield max(1, int(text))
            return


def worker_settings(
    cells: Sequence[Cell], trusted: Sequence[Path], gpus: int
) -> list[WorkerSettings]:
    """Settings of each worker that may exist at a time: one per GPU, or one per `threads` cores."""
    config = cells[0].config
    wanted, device = config.n_jobs, config.device
    names = gpu_names(gpus) if device in ("auto", "cuda") else []
    threads = max(cell.config.threads for cell in cells)
    fitting = len(names) or (max(1, cores() // threads) if device in ("auto", "cpu") else 1)
    number = min(fitting if wanted == "auto" else wanted, len(cells))
    own = [names[i % len(names)] if names else None for i in range(number)]
    return [WorkerSettings(tuple(trusted), gpu) for gpu in own]


def gpu_names(number: int) -> list[str]:
    """The GPUs of this process, as ``CUDA_VISIBLE_DEVICES`` names them one by one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[:number] if visible else [str(i) for i in range(number)]
