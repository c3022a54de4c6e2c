"""What was probably meant by a name that does not exist."""

import difflib
from collections.abc import Iterable, Sequence

OTHER_NAMES = {
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float": "fp32",
    "float32": "fp32",
    "single": "fp32",
    "double": "fp64",
    "float64": "fp64",
    "he": "kaiming",
    "glorot": "xavier",
    "ln": "layernorm",
    "layer_norm": "layernorm",
    "rms": "rmsnorm",
    "rms_norm": "rmsnorm",
    "bn": "batchnorm",
    "batch_norm": "batchnorm",
    "preln": "pre",
    "prenorm": "pre",
    "postln": "post",
    "postnorm": "post",
    "nonorm": "none",
    "silu": "swiglu",
    "experiment": "experiments",
    "layers": "depth",
    "width": "model.width",
    "placement": "norm",
    "precision": "dtype",
}
"""Names that other tools and papers use -> the name here."""

LONG_LIST = 30
"""A list of legal names with more entries than this is not printed where a name is near."""


def near(word: str, names: Iterable[str], count: int = 1) -> list[str]:
    """The names that a word is likely to stand for, at most `count`, the likeliest first."""
    names, low = list(names), word.lower()
    other = OTHER_NAMES.get(low.replace("-", ""))
    found = [other] if other in names else []
    found += [name for name in names if name.lower() == low]
    found += difflib.get_close_matches(low, names, n=count)
    if len(low) > 3:
        found += [name for name in names if low in name]
    return list(dict.fromkeys(found))[:count]


def meant(word: str, names: Iterable[str], count: int = 1) -> str:
    """``did you mean pre?``, or nothing where no name is near."""
    found = near(word, names, count)
    return f"did you mean {', '.join(found)}?" if found else ""


def must_be_one_of(word: str, names: Sequence[str]) -> str:
    """The reason of a refusal: the legal names, and which of them was probably meant."""
    hint = meant(word, names, count=3 if len(names) > LONG_LIST else 1)
    if hint and len(names) > LONG_LIST:
        return f"is none of the {len(names)} names; {hint}"
    return f"must be one of {', '.join(names)}" + (f"; {hint}" if hint else "")
