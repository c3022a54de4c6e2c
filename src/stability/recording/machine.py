"""The number format's limits and the device's name for run.json; needs torch."""

import platform
from typing import Any

import torch


def finfo(name: str, dtype: torch.dtype) -> dict[str, Any]:
    """The limits of a number format, under the name that configs give it."""
    limits = torch.finfo(dtype)
    return {
        "dtype": name,
        "max": limits.max,
        "tiny": limits.tiny,
        "eps": limits.eps,
        "smallest_subnormal": limits.smallest_normal * limits.eps,
    }


def device_name(device: torch.device) -> str:
    """The device, and what it is."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({platform.machine()}, {torch.get_num_threads()} threads)"
