"""The statistics of a tensor, in one list: what is measured, how parts merge, which column it is.

`recording.stats` measures each `Field` of a tensor, which makes a vector, and `columns` turns
vectors into columns of the layers table. Whatever can overflow or underflow is held relative to the
largest finite magnitude s = max |x|, so that any finite tensor has finite statistics (but for `var`
of fp64 above 1e154), and dividing out a loss scale is one division.

NaN in a vector means "not measured" and becomes null in the table. NaN in the table means that the
statistic is undefined: no entry is finite, or a share is 0/0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class Entries(NamedTuple):
    """The entries of N tensors of T tokens each, as `Field.measure` needs them.

    What several fields share is computed once, by `recording.stats`.
    """

    held_NTE: "Tensor"
    """As their format holds them."""
    mag_NTE: "Tensor"
    """Their magnitudes; NaN stays NaN."""
    finite_NTE: "Tensor"
    tiny: float
    """Smallest normal number of the format."""
    max: float
    """Largest number of the format."""
    numel: "Tensor"
    nonfinite: "Tensor"
    zeros: "Tensor"
    scale: "Tensor"
    """The largest finite magnitude s."""
    scaled_NE: "Tensor"
    """x/s in a wide format; 0 where x is not finite."""
    mean: "Tensor"
    """Mean of the finite x/s."""
    token_squares_NT: "Tensor"
    """Sum of squares of each token's x/s."""

    def squared_deviations(self) -> "Tensor":
        """Sum over the finite entries of (x/s - mean)**2."""
        with_zeros = (self.scaled_NE - self.mean[:, None]).norm(dim=1).square()
        # Non-finite entries have become zeros: subtract their share of the squares.
        return (with_zeros - self.nonfinite * self.mean.square()).clamp(min=0)


def count(mask_NTE: "Tensor") -> "Tensor":
    """How many entries of each tensor are true, (N,)."""
    return mask_NTE.sum(-1).sum(-1)  # on a CPU several times faster than over both axes at once


@dataclass(frozen=True)
class Measured:
    """N measured tensors, as the columns need them."""

    vectors_NF: Array
    divisor: Array | float
    """The loss scale that the values still carry."""

    def __getitem__(self, name: str) -> Array:
        """The entries of a field, as the vectors hold them."""
        return self.vectors_NF[:, INDEX[name]]

    @property
    def finite(self) -> Array:
        """Number of finite entries."""
        return self["numel"] - self["nonfinite"]

    @property
    def scale(self) -> Array:
        """The largest finite magnitude s, the divisor taken out; NaN where no entry is finite."""
        return np.where(self.finite > 0, self["absmax"], np.nan) / self.divisor


@dataclass(frozen=True)
class Field:
    """One statistic: an entry of the vector and a column of the layers table."""

    name: str
    type: Literal["int64", "float64"]
    """Type of the column. An ``int64`` is a count; it describes the tensor as its format held it,
    so that the loss scale does not touch it."""
    doc: str
    measure: "Callable[[Entries], Tensor] | None" = None
    """The entry of the vector, for each of N tensors; None for what is measured of some tensors
    only (`of`), which has a rule of its own."""
    column: Callable[[Array, Measured], Array] = lambda stored, measured: stored
    """(this field's entries, all that was measured) -> the column's numbers."""
    power: int = 0
    """The entry is held over s**power."""
    merge: Literal["sum", "own"] = "sum"
    """How the entries of parts become that of the whole: they add up, each brought to the common s,
    or `recording.stats` has a rule of its own for the field."""
    of: Literal["entries", "tokens", "updates"] = "entries"
    """Which tensors have it: all, those with an axis of tokens, or changes of parameters."""
    required: bool = False

    @property
    def is_count(self) -> bool:
        return self.type == "int64"


FIELDS = (
    Field("numel", "int64", "entries of the tensor", lambda x: x.numel, required=True),
    Field(
        "mean",
        "float64",
        "mean over the finite entries",
        lambda x: x.mean,
        lambda stored, measured: measured.scale * stored,
        power=1,
        merge="own",
    ),
    Field(  # held as the sum of squared deviations from the mean
        "var",
        "float64",
        "population variance over the finite entries",
        lambda x: x.squared_deviations(),
        lambda stored, measured: measured.scale * (measured.scale * (stored / measured.finite)),
        power=2,
        merge="own",
    ),
    Field(  # held as the sum of squares
        "rms",
        "float64",
        "root of the mean square over the finite entries",
        lambda x: x.token_squares_NT.sum(-1),
        lambda stored, measured: measured.scale * np.sqrt(stored / measured.finite),
        power=2,
    ),
    Field(  # held as it is: this is s
        "absmax",
        "float64",
        "largest magnitude among the finite entries",
        lambda x: x.scale,
        lambda stored, measured: measured.scale,
        merge="own",
    ),
    Field(  # held as the sum of magnitudes
        "absmean",
        "float64",
        "mean magnitude over the finite entries",
        lambda x: x.scaled_NE.norm(1, dim=1),
        lambda stored, measured: measured.scale * (stored / measured.finite),
        power=1,
    ),
    Field(  # held as the sum of squares at position 0
        "first_share",
        "float64",
        "share of the sum of squares that sits at token position 0",
        column=lambda stored, measured: stored / measured["rms"],
        power=2,
        of="tokens",
    ),
    Field(  # held as it is, and as 0 where no token has a finite entry
        "token_rms_median",
        "float64",
        "median over tokens of the token's rms, padding left out",
        column=lambda stored, measured: (
            np.where(measured.finite > 0, stored, np.nan) / measured.divisor
        ),
        merge="own",
        of="tokens",
    ),
    Field(
        "nonfinite",
        "int64",
        "entries that are NaN or infinite",
        lambda x: x.nonfinite,
    ),
    Field(
        "zeros",
        "int64",
        "entries that are exactly zero (underflow shows here)",
        lambda x: x.zeros,
    ),
    Field(
        "subnormal",
        "int64",
        "non-zero entries below the dtype's smallest normal number",
        lambda x: count(x.mag_NTE < x.tiny) - x.zeros,
    ),
    Field(
        "near_max",
        "int64",
        "finite entries within a factor 2 of the dtype's maximum",
        lambda x: count(x.finite_NTE & (x.mag_NTE >= x.max / 2)),
    ),
    Field(
        "lost",
        "int64",
        "kind update: entries whose non-zero update was rounded to nothing",
        of="updates",
    ),
)
"""In the order of the table's columns."""

SUBNORMAL = 0.01
"""Share of subnormal entries in a gradient from which on the user is told."""

COUNTS = tuple(f.name for f in FIELDS if f.is_count and f.of == "entries")
VALUES = tuple(f.name for f in FIELDS if not f.is_count and f.of == "entries")
"""What every tensor has; the vector begins with it: the counts, then the values."""
OTHERS = tuple(f.name for f in FIELDS if f.of != "entries")
"""What only some tensors have: the end of the vector."""

INDEX = {name: place for place, name in enumerate((*COUNTS, *VALUES, *OTHERS))}
"""Name of a field -> its place in the vector."""


def columns(
    vectors_NF: Array, divisor: Array | float = 1.0
) -> dict[str, np.ma.MaskedArray[Any, np.dtype[Any]]]:
    """Columns of the layers table, a row for each of N vectors, in the order of `FIELDS`.

    What was not measured is masked, and so is every value of a tensor without entries.

    Args:
        vectors_NF: what `recording.stats` measured.
        divisor: divides every value: the loss scale.
    """
    of = Measured(np.asarray(vectors_NF, dtype=np.float64), divisor)
    found = {}
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for field in FIELDS:
            held = of[field.name]
            absent = np.isnan(held)
            if field.is_count:
                numbers = np.where(absent, 0, held).astype(np.int64)
            else:
                numbers, absent = field.column(held, of), absent | (of["numel"] == 0)
            found[field.name] = np.ma.masked_array(numbers, mask=absent)
    return found
