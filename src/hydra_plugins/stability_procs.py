"""The launcher ``procs``.

Hydra imports every plugin at each start: the work is in `stability.sweep.pool`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class ProcsConf:
    """Node of ``hydra/launcher=procs``; its knobs are keys of the config: n_jobs, isolate, ..."""

    _target_: str = "hydra_plugins.stability_procs.ProcsLauncher"


ConfigStore.instance().store(group="hydra/launcher", name="procs", node=ProcsConf)


class ProcsLauncher(Launcher):
    """Worker processes on this machine; gets the composed cells themselves from the sweeper."""

    signal: int | None = None
    """The signal that stopped the sweep."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self._config = config

    def accept(self, cells: Sequence[Any], gpus: int, watcher: Any) -> None:
        """Take the composed cells: files that are edited later do not change them."""
        self._cells, self._gpus, self._watcher = cells, gpus, watcher

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run them; how each ended is the return value of its job."""
        from stability.cli import compose
        from stability.sweep import devices, pool

        settings = devices.worker_settings(
            self._cells, compose.trusted(self._config.hydra), self._gpus
        )
        config = self._cells[0].config
        runs = pool.Pool(
            settings, self._watcher, isolate=config.isolate, fail_fast=config.fail_fast
        )
        runs.run(self._cells)
        self.signal = runs.stopped_by
        ends = [runs.ends.get(cell.run, pool.RunEnd("waiting")) for cell in self._cells]
        return [JobReturn(status=JobStatus.COMPLETED, _return_value=end) for end in ends]
