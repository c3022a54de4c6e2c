"""The sweeper ``grid``.

Hydra imports every plugin at each start: the work is in `stability.cli.plan`.
"""

from dataclasses import dataclass, field
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class GridConf:
    """Node of ``hydra/sweeper=grid``; `params` is an experiment's grid: key -> ``a,b`` or list."""

    _target_: str = "hydra_plugins.stability_grid.GridSweeper"
    _recursive_: bool = False  # a grid is data: a _target_ in it builds nothing
    params: dict[str, Any] = field(default_factory=dict)


ConfigStore.instance().store(group="hydra/sweeper", name="grid", node=GridConf)


class GridSweeper(BasicSweeper):
    """Every combination of the values given, each run once, in its own named folder."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__(max_batch_size=None, params=params)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Name the sweep before the launcher is made, which may place its own files by it."""
        from stability.cli import compose, plan

        self._named = config.name is not None
        config.name = plan.name_of(config)
        compose.refuse_foreign(config.hydra.launcher)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> None:
        """Do the whole sweep.

        Raises:
            ConfigError: something is refused; nothing has been written.
            Finished: the command's exit code is not 0.
        """
        from stability.cli import compose, plan

        assert self.hydra_context is not None and self.config is not None
        loader = self.hydra_context.config_loader
        planned = plan.Plan(loader, self.config, self.params)
        trusted = compose.trusted(self.config.hydra)
        plan.run(planned.cells(arguments), self.launcher, trusted, self._named)
