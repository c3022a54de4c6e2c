"""Gradient scalers: who wants to know of their scales and of the steps that they leave out.

`torch.amp.GradScaler` offers no hooks. While somebody is told, its ``scale`` and ``step`` are
wrapped.
"""

from functools import wraps
from typing import Any, Protocol

import torch

_SCALER = torch.amp.GradScaler


class Told(Protocol):
    """Who is told."""

    def scaled(self, scaler: Any) -> None:
        """The scaler has multiplied a loss."""

    def scaler_begins_step(self) -> None:
        """A scaler is about to step an optimizer, or to leave the step out."""

    def scaler_ends_step(self, scaler: Any, optimizer: Any) -> None:
        """It has done so."""


_told: list[Told] = []
_wrapped: dict[str, Any] = {}


def tell(who: Told) -> None:
    """Tell somebody of every scaler."""
    if not _told:
        _wrapped.update({name: _SCALER.__dict__[name] for name in ("scale", "step")})
        setattr(_SCALER, "scale", _telling_scale(_wrapped["scale"]))  # noqa: B010
        setattr(_SCALER, "step", _telling_step(_wrapped["step"]))  # noqa: B010
    _told.append(who)


def tell_no_more(who: Told) -> None:
    """Stop telling somebody; when nobody is left, scalers are as they were. May be repeated."""
    if who not in _told:
        return
    _told.remove(who)
    if not _told:
        for name, original in _wrapped.items():
            setattr(_SCALER, name, original)


def _telling_scale(scale: Any) -> Any:
    @wraps(scale)
    def telling(scaler: Any, outputs: Any) -> Any:
        result = scale(scaler, outputs)
        for who in [*_told]:
            who.scaled(scaler)
        return result

    return telling


def _telling_step(step: Any) -> Any:
    @wraps(step)
    def telling(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        for who in [*_told]:
            who.scaler_begins_step()
        result = step(scaler, optimizer, *args, **kwargs)
        for who in [*_told]:
            who.scaler_ends_step(scaler, optimizer)
        return result

    return telling
