"""How many workers this machine has room for, and which GPU each of them gets."""

import os
from collections.abc import Sequence
from pathlib import Path

from stability.sweep.grid import Cell
from stability.sweep.worker import WorkerSettings


def cores() -> int:
    """CPU cores that this process may use; a container's quota counts."""
    affinity = hasattr(os, "sched_getaffinity")
    usable = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return usable
    return usable if quota == "max" else min(usable, max(1, int(quota) // int(period)))


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
