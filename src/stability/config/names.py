"""Names that configs, tables and models share: where in a network, and what is recorded there."""

from typing import NamedTuple


class Key(NamedTuple):
    """Where in a network: block (0-based; embedding -1, head = depth), sublayer, name."""

    layer: int
    sublayer: str
    name: str

    def spelt(self) -> str:
        """For a message."""
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
    "scores": "attention logits q k / sqrt(K), unmasked entries, first sequences of the batch",
    "attn_rows": "entropy in nats of each row of the attention matrix, same positions",
}
"""Sites of activations. Rows about parameters carry the parameter's name in ``site`` instead."""

SUBLAYERS = ("embed", "attn", "mlp", "linear", "head")
BLOCK = "block"
"""Sublayer of a row about a whole block."""
