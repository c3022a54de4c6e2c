"""What a config's model costs: parameters, and floating-point operations per token.

Both are counted on the model itself, built without memory, so that every part is counted alike.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from stability.config.knobs import Config
from stability.model.build import parts_of
from stability.model.gpt import GPT

SHAPE = ("model=gpt2",)
"""Overrides that choose the size at which parts are compared: 12 blocks of width 768."""
_ATEN = torch.ops.aten
ARITHMETIC = {torch.Tag.pointwise, torch.Tag.reduction}
MOVES = {_ATEN.clone, _ATEN.copy_, _ATEN._to_copy, _ATEN.fill_}
"""Operations on entries that compute nothing."""
VOCAB = 256
"""Symbols where ``model.vocab`` is auto: bytes."""


class Cost(NamedTuple):
    """What a model costs, or what one costs more than another."""

    parameters: int
    flops: float
    """Of a forward pass, per token."""

    def minus(self, other: "Cost") -> "Cost":
        return Cost(self.parameters - other.parameters, self.flops - other.flops)


class Operations(TorchDispatchMode):
    """Counts floating-point operations of whatever runs inside.

    A matrix product of (m, k) and (k, n) counts 2 m k n. An elementwise operation and a reduction
    count one per entry of the largest tensor they touch. What only moves data counts nothing.
    Operations made of others, such as a layer norm, count as those.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        composed = _ATEN.native_layer_norm, _ATEN._softmax
        self._made_of = {**core_aten_decompositions(), **get_decompositions(composed)}

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        name = func._overloadpacket
        product = flop_registry.get(name)
        is_one = bool(ARITHMETIC & set(func.tags)) and name not in MOVES
        if product is None and not is_one and func in self._made_of:
            with self:
                return self._made_of[func](*args, **given)
        out = func(*args, **given)
        if product is not None:
            self.count += product(*args, **given, out_val=out)
        elif is_one:
            self.count += max(map(_entries, (*args, *given.values(), out)))
        return out


def _entries(value: object) -> int:
    """Entries of the largest tensor in a value."""
    if isinstance(value, Tensor):
        return value.numel()
    return max(map(_entries, value), default=0) if isinstance(value, list | tuple) else 0


def cost(config: Config) -> Cost:
    """What the config's model costs, in training mode and without flash kernels.

    Every attention logit counts, as a kernel that forms all of them computes it, also those that a
    causal mask hides.
    """
    vocab = VOCAB if config.model.vocab == "auto" else int(config.model.vocab)
    plain = config.changed({"model.attention": "math", "model.dropout": 0.0})
    with torch.device("meta"), torch.no_grad():
        model = GPT(plain.model, plain.depth, vocab, parts_of(plain))
        tokens_BT = torch.zeros(1, plain.model.context, dtype=torch.long)
        with Operations() as operations:
            model(tokens_BT)
    parameters = sum(p.numel() for p in model.parameters())
    return Cost(parameters, operations.count / plain.model.context)
