"""Sites: modules that mark where a tensor can be recorded.

The model places them. A recorder attaches hooks to them; inside a compiled graph, where hooks do
not fire, it lets them measure themselves.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stability.config.token_positions import positions
from stability.parts.norms import at_least_fp32
from stability.recording import one_pass, stats
from stability.results.statistics import FIELDS, Array


class Site(nn.Module):
    """The identity, as a module: returns a view of its input.

    The view is a tensor with a gradient of its own: what flows through this place and no other. An
    eager recorder hooks the module. Inside a compiled graph hooks do not fire, so there the site
    measures what passes itself, see `prepare`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.recording = False
        self.measured: Tensor | None = None
        self.leaf: Tensor | None = None

    def prepare(self, tokens: int, device: torch.device) -> None:
        """Prepare to measure inside a compiled graph, in passes made while ``recording`` is set.

        Each forward pass then writes the statistics of the activation to ``measured``, and each
        backward pass adds those of its gradient to ``leaf.grad``. The leaf has no part in the
        forward pass: its gradient only carries the numbers out of the graph.

        Args:
            tokens: of one pass; ``measured`` holds a vector of statistics and each token's rms.
            device: of the model.
        """
        dtype, entries = stats.fp64_dtype(device), len(FIELDS) + tokens
        self.measured = torch.zeros(entries, dtype=dtype, device=device)
        self.leaf = torch.zeros(entries, dtype=dtype, device=device, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        if not self.recording or self.measured is None:
            return x.view_as(x)
        self.measured.copy_(torch.cat(stats.measure_tokens(x)))
        return _GradientToLeaf.apply(x, self.leaf)  # type: ignore[no-untyped-call]


class _GradientToLeaf(torch.autograd.Function):
    """The identity in x; the gradient of the leaf is the statistics of x's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, leaf: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, torch.cat(stats.measure_tokens(grad))


QUERIES = 64
"""Scores are shown for at most this many evenly spaced query positions of each sequence."""


class ShownEntries(NamedTuple):
    """The entries of a (T, T) matrix of scores that are shown."""

    queries_Q: Tensor
    """Their positions."""
    seen_QT: Tensor
    """Which keys each query may see."""
    flat: Tensor
    """Those entries' places in a flattened (Q, T)."""
    seen_Q: Array
    """How many keys each query may see."""


@lru_cache(maxsize=8)
def _shown_entries(time: int, causal: bool, device: torch.device) -> ShownEntries:
    queries = torch.tensor(positions(time, QUERIES))
    seen = torch.arange(time) <= queries[:, None] if causal else torch.ones(len(queries), time) > 0
    flat, counts = seen.flatten().nonzero()[:, 0], seen.sum(-1).numpy()
    return ShownEntries(queries.to(device), seen.to(device), flat.to(device), counts)


class ScoresSite(nn.Module):
    """The site between (q, k) and the softmax. What it shows is computed only when recorded.

    Fused attention never forms the scores, so `observe` forms them from q and k, in at least fp32,
    for `QUERIES` query positions. The choice does not depend on how a batch is split into parts.
    """

    names = ("scores", "attn_rows")

    def __init__(self, causal: bool, context: int) -> None:
        super().__init__()
        self.causal, self.context = causal, context
        self.recording = False
        self.measured: Tensor | None = None
        self.shown: ShownEntries | None = None

    def prepare(self, tokens: int, device: torch.device) -> None:
        """As `Site.prepare`: ``measured`` gets a vector of statistics for each of `names`."""
        dtype = stats.fp64_dtype(device)
        self.measured = torch.zeros(len(self.names), len(FIELDS), dtype=dtype, device=device)
        self.shown = _shown_entries(self.context, self.causal, device)

    def forward(self, q_BHTK: Tensor, k_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        output = q_BHTK.view_as(q_BHTK), k_BHTK.view_as(k_BHTK)
        if self.recording and self.measured is not None and self.shown is not None:
            tensors = self._scores_and_entropy(output, self.shown)
            self.measured.copy_(torch.stack([stats.measure(t) for t in tensors]))
        return output

    def observe(self, output: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """``scores``: the unmasked logits q k / sqrt(K), flat; ``attn_rows``: each row's entropy.

        The entropy of row t is -sum_s a_ts ln a_ts in nats, between 0 and ln(t + 1).
        """
        q_BHTK = output[0]
        shown = _shown_entries(q_BHTK.shape[-2], self.causal, q_BHTK.device)
        return dict(zip(self.names, self._scores_and_entropy(output, shown), strict=True))

    @torch.no_grad()
    def _scores_and_entropy(
        self, output: tuple[Tensor, Tensor], shown: ShownEntries
    ) -> tuple[Tensor, Tensor]:
        q, k = (at_least_fp32(t.detach()) for t in output)
        if len(shown.queries_Q) < q.shape[-2]:
            q = q[..., shown.queries_Q, :]
        with torch.autocast(q.device.type, enabled=False):  # it would round the products
            scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
        if one_pass.is_able(scores):
            found = one_pass.seen_scores(scores.flatten(0, -3), shown.seen_Q)
            if found is not None:
                return found
        return scores.flatten(-2)[..., shown.flat].flatten(), row_entropy(scores, shown.seen_QT)


def row_entropy(scores: Tensor, seen: Tensor) -> Tensor:
    """Entropy -sum_s a_ts ln a_ts of each row of the softmax over the entries that are seen."""
    log_a = torch.log_softmax(scores.masked_fill(~seen, -math.inf), dim=-1)
    a = log_a.exp()
    return -(a * log_a.masked_fill(a == 0, 0)).sum(-1)
