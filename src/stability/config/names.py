"""Names that configs, tables and models share: where in a network, and what is recorded there."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Key(NamedTuple):
    """Where in a network: block (0-based; embedding -1, head = depth), sublayer, name."""

    layer: int
    sublayer: str
    name: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Key":
        """The place of a row of the layers table, or of ``first_bad`` in run.json."""
        return cls(row["layer"], row["sublayer"], row["site"])

    def __str__(self) -> str:
        """The place in words, for messages."""
        return f"layer {self.layer}, {self.sublayer}, {self.name}"


EMBED_LAYER = -1
"""``layer`` of the embedding; the head has ``layer = depth``."""

KINDS = {
    "act": "activation",
    "grad": "gradient of the loss with respect to the activation, loss scale divided out",
    "weight": "parameter",
    "weight_grad": "gradient of the loss with respect to the parameter, before clipping",
    "update": "change that this step made to the parameter",
}

SITES = {
    "resid_pre": "residual stream before the sublayer (head: x_L, before the final norm)",
    "branch_in": "what the sublayer reads (head: after the final norm)",
    "branch_out": "what the sublayer returns (head: logits)",
    "resid_post": "residual stream after the sublayer (embedding: x_0)",
    "scores": "attention logits q k / sqrt(K), unmasked entries of at most 64 query positions",
    "attn_rows": "entropy in nats of each row of the attention matrix, same positions",
}
"""Sites of activations. Rows about parameters carry the parameter's name in ``site`` instead."""


class SublayerKind(NamedTuple):
    """Description of a kind of sublayer: its weight matrices and the config keys that it reads."""

    branch: str
    """What it puts on the residual stream, in words."""
    roles: Mapping[str, str]
    """Its matrices: name -> what it does. The last one writes to the residual stream."""
    knobs: tuple[str, ...] = ()
    """Keys of the config that only sublayers of this kind read."""


SUBLAYER_KINDS = {
    "attn": SublayerKind(
        "attention",
        {
            "q": "query projection",
            "k": "key projection",
            "v": "value projection",
            "attn_out": "attention's output projection, writes to the residual stream",
        },
        ("model.heads", "model.causal", "model.attention"),
    ),
    "mlp": SublayerKind(
        "MLP",
        {
            "mlp_in": "MLP's first matrix",
            "mlp_gate": "MLP's gate, with a gated activation",
            "mlp_out": "MLP's second matrix, writes to the residual stream",
        },
        ("model.mlp_ratio", "activation"),
    ),
    "linear": SublayerKind(
        "linear branch",
        {"linear": "the matrix of a linear branch, writes to the residual stream"},
    ),
}
"""Kinds of sublayers, in the order in which a forward pass meets them."""

RESIDUAL_ROLES = tuple([*kind.roles][-1] for kind in SUBLAYER_KINDS.values())
"""Roles of the matrices that write to the residual stream."""

BLOCK_SUBLAYERS = {"attn_mlp": ("attn", "mlp"), "linear": ("linear",), "mlp": ("mlp",)}
"""Option of ``model.sublayers`` -> the sublayers of a block, in the order in which they run."""

INNER_SUBLAYERS = frozenset(name for names in BLOCK_SUBLAYERS.values() for name in names[:-1])
"""Sublayers that are never the last of their block: their output is not that of the block."""

BLOCK = "block"
"""Sublayer of a row about a whole block."""

FINAL_NORM = "final_norm"
"""Sublayer of an external model's norm after the last block; its layer is the number of blocks."""

STACKS = ("encoder", "decoder")
"""Stacks of an external model that count their layers apart, in front of the sublayers' names."""

SUBLAYER_ORDER = ("embed", *SUBLAYER_KINDS, "head")
"""Sublayers in the order in which a forward pass meets them within one ``layer``."""

SITE_ORDER = ("resid_pre", "branch_in", "scores", "attn_rows", "branch_out", "resid_post")
"""Sites in the order in which a forward pass meets them within one sublayer."""

PHASES = {"weight": 0, "act": 1, "grad": 2, "weight_grad": 2, "update": 3}
"""Kind -> the part of a step in which its tensors come to be."""


def execution_key(kind: str, place: tuple[int, ...], site: int = 0) -> tuple[int, ...]:
    """Sort key of a tensor of one step: its position in the order of execution.

    Weights as the step finds them; activations forward; then, from the head down, gradients of
    activations and of the weights they meet; updates.

    Args:
        kind: one of `KINDS`.
        place: orders the sublayers as the forward pass meets them: one number, or a layer and the
            place of the sublayer in `SUBLAYER_ORDER`.
        site: orders the tensors of one kind in a sublayer as the forward pass meets them.
    """
    phase = PHASES[kind]
    if kind in ("grad", "weight_grad"):
        return (phase, *(-number for number in place), kind == "weight_grad", -site)
    return (phase, *place, False, site)
