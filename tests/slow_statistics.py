"""Each statistic by its definition, in fp64 on values brought near one: the slow twin."""

import math

import numpy as np
import torch

from stability.results import statistics

VALUES = (*statistics.VALUES, "first_share")
COUNTS = statistics.COUNTS


def twin(x: torch.Tensor, token_dim: int | None = None) -> dict[str, float]:
    """Each column by its definition. A power of two, taken out and put back, loses no bit."""
    limits = torch.finfo(x.dtype)
    held = x.double().numpy()
    finite = held[np.isfinite(held)]
    size = np.abs(finite)
    power = math.frexp(size.max())[1] if len(size) else 0
    y = np.ldexp(finite, -power)
    mean = y.mean() if len(y) else math.nan
    found = {
        "numel": held.size,
        "nonfinite": held.size - finite.size,
        "zeros": int((held == 0).sum()),
        "subnormal": int(((size > 0) & (size < limits.tiny)).sum()),
        "near_max": int((size >= limits.max / 2).sum()),
        "mean": mean,
        "var": ((y - mean) ** 2).mean() if len(y) else math.nan,
        "rms": math.sqrt((y**2).mean()) if len(y) else math.nan,
        "absmax": np.abs(y).max() if len(y) else math.nan,
        "absmean": np.abs(y).mean() if len(y) else math.nan,
        "first_share": math.nan,
    }
    for name in ("mean", "rms", "absmax", "absmean"):
        found[name] = float(np.ldexp(found[name], power))
    found["var"] = float(np.ldexp(found["var"], 2 * power))
    if token_dim is not None:
        first = np.take(held, 0, axis=token_dim)
        first = np.ldexp(first[np.isfinite(first)], -power)
        total = (y**2).sum()
        found["first_share"] = (first**2).sum() / total if total else math.nan
    return found


def token_rms_twin(x: torch.Tensor) -> np.ndarray:
    """Root mean square of each token's finite features, NaN where there is none."""
    tokens = x.double().numpy().reshape(-1, x.shape[-1])
    rms = []
    for token in tokens:
        finite = token[np.isfinite(token)]
        size = np.abs(finite).max(initial=0) or 1.0
        rms.append(math.sqrt(((finite / size) ** 2).mean()) * size if len(finite) else math.nan)
    return np.array(rms)
