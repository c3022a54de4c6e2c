"""What is legal and probably not meant, said once before a sweep starts."""

from collections.abc import Iterable

from stability.config import instantiate
from stability.config.knobs import Config
from stability.config.names import BLOCK_SUBLAYERS
from stability.parts.inits import Init
from stability.parts.placements import Placement


def cautions(configs: Iterable[Config]) -> list[str]:
    """A sentence for each pair of a placement and an init that both scale branches with depth.

    Raises:
        ConfigError: a class is refused.
    """
    pairs = {(c.choices["norm"], c.choices["init"]): c for c in configs}
    return [
        f"norm={norm} and init={init} both make branches smaller with depth"
        for (norm, init), config in pairs.items()
        if _scales_twice(config)
    ]


def _scales_twice(config: Config) -> bool:
    place = config.depth, 0, BLOCK_SUBLAYERS[config.model.sublayers][0]
    placement = instantiate.build(config.norm.build, "norm.build", *place, kind=Placement)
    init = instantiate.build(config.init.build, "init.build", kind=Init)
    return placement.scales_with_depth and init.scales_with_depth
