"""Where curated numbers can be sent, beside the files of a run: TensorBoard and Weights & Biases.

Neither framework is imported before it is used. A sink is made of the object that the user's loop
has already: a ``torch.utils.tensorboard.SummaryWriter`` (or any that has its ``add_scalar``), or a
run of ``wandb.init``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
"""An image: height, width, three colours."""

LIVE_STEP = "stability/step"
"""Name under which a run of Weights & Biases gets the number of the step."""


@runtime_checkable
class SummaryWriter(Protocol):
    """What is used of TensorBoard's writer."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...


@runtime_checkable
class WandbRun(Protocol):
    """What is used of a run of Weights & Biases."""

    def log(self, data: dict[str, Any], step: int) -> object: ...


class Sink(Protocol):
    """Takes the numbers of a step."""

    def scalars(self, numbers: Mapping[str, float], step: int) -> None:
        """Send the numbers of one step; steps must not decrease."""

    def image(self, name: str, pixels_HW3: Pixels, step: int) -> None:
        """Send an image."""


def sink_of(writer: SummaryWriter | WandbRun) -> Sink:
    """The sink that writes to a writer of TensorBoard or to a run of Weights & Biases.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(writer, SummaryWriter):
        return _TensorBoard(writer)
    if isinstance(writer, WandbRun):
        return _Wandb(writer)
    raise TypeError(
        f"{type(writer).__name__} has neither add_scalar (TensorBoard's SummaryWriter) "
        "nor log (a run of wandb.init)"
    )


def live_sink_of(writer: SummaryWriter | WandbRun) -> Sink:
    """`sink_of`, for a writer to which the user's loop sends numbers as well.

    A run of Weights & Biases counts steps itself and drops what comes with an earlier step. So the
    number of the step is sent as a number, and is the axis of the others.

    Raises:
        TypeError: see `sink_of`.
    """
    sink = sink_of(writer)
    return _LiveWandb(sink.run) if isinstance(sink, _Wandb) else sink


@dataclass(frozen=True)
class _TensorBoard:
    writer: Any

    def scalars(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def image(self, name: str, pixels_HW3: Pixels, step: int) -> None:
        self.writer.add_image(name, pixels_HW3, step, dataformats="HWC")


@dataclass(frozen=True)
class _Wandb:
    run: Any

    def scalars(self, numbers: Mapping[str, float], step: int) -> None:
        self.run.log(dict(numbers), step=step)

    def image(self, name: str, pixels_HW3: Pixels, step: int) -> None:
        import wandb

        self.run.log({name: wandb.Image(pixels_HW3)}, step=step)


@dataclass(frozen=True)
class _LiveWandb(_Wandb):
    defined: set[str] = field(default_factory=set)
    """Names that have their axis."""

    def scalars(self, numbers: Mapping[str, float], step: int) -> None:
        for name in numbers.keys() - self.defined:
            self.run.define_metric(name, step_metric=LIVE_STEP)
            self.defined.add(name)
        self.run.log({LIVE_STEP: step, **numbers})
