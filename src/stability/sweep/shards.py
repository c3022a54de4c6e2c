"""What a run costs, and how the runs of a grid are dealt to several commands."""

from collections.abc import Sequence

from stability.config.knobs import Config


def cost(config: Config) -> float:
    """Relative work of a run: tokens times multiplications per token, about 12 d^2 L + 256 d.

    256 is the order of a vocabulary; the weight of the head need not be exact.
    """
    model, train = config.model, config.train
    width = model.width
    per_token = 12 * width**2 * config.depth + 256 * width
    return float((train.steps + 1) * train.batch_size * model.context * per_token)


def deal(costs: Sequence[float], shards: int) -> list[list[int]]:
    """Deal runs to shards so that the shards cost about the same.

    The dearest run comes first, and each goes to the shard that costs least so far. The costs of
    two shards then differ by one run at most, the dearest. (Graham 1969, "Bounds on multiprocessing
    timing anomalies": the longest shard is at most 4/3 of the shortest possible one.)

    Args:
        costs: of each run.
        shards: how many parts to make.

    Returns:
        For each shard the indices of its runs, ascending; the same for the same costs.
    """
    dealt: list[list[int]] = [[] for _ in range(shards)]
    sums = [0.0] * shards
    for run in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        least = min(range(shards), key=lambda s: (sums[s], len(dealt[s]), s))
        dealt[least].append(run)
        sums[least] += costs[run]
    return [sorted(part) for part in dealt]
