"""Covariance recursion through a config's model: embedding, sublayers, head, then backward.

Each sublayer is the placement's own equation, run on covariances (`covariance`) instead of tensors,
with the norms, weights' stds and activations that the config names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from stability.config import instantiate
from stability.config.knobs import Config, ConfigError
from stability.config.names import BLOCK_SUBLAYERS, EMBED_LAYER, SUBLAYER_KINDS
from stability.parts.activation_kernels import Matrix
from stability.parts.activations import Activation
from stability.parts.inits import Init, Weight, start_std
from stability.parts.placements import Norms, Placement
from stability.theory import norm_kernels
from stability.theory.covariance import Cov, Tape, gaussian, normed
from stability.theory.limits import NoTheory, naming_external
from stability.theory.norm_kernels import Kernel
from stability.theory.sublayers import Attention, linear, mlp, root

Tokens = NDArray[np.int64]
MAX_TOKENS = 512
"""Most tokens followed, over all groups; further sequences of the batch are left out."""
MAX_TOKENS_ATTENTION = 256
"""The same where sequences run together through attention: its cost grows as their third power."""


@dataclass(frozen=True)
class TokenGroup:
    """One group of tokens that the recursion follows, N in all."""

    token: Tokens
    target: Tokens
    """Below 0 where the token does not count."""
    position: Tokens
    mask: NDArray[np.bool_]
    """Whether token j is seen from token i."""
    counted: int
    """Tokens in the loss of the whole batch."""


class SiteCovariance:
    """The covariance at one site, with its key (layer, sublayer, site) and its number of features.

    ``saturated``: its gradient has come through attention whose scores saturate.
    """

    def __init__(self, layer: int, sublayer: str, name: str, width: int, x: Cov) -> None:
        self.key = (layer, sublayer, name)
        self.width, self.x = width, x
        self.saturated = False


class Net:
    """The stack of one config, as maps of covariances."""

    def __init__(self, config: Config, vocab: int) -> None:
        self.config, self.model, self.vocab = config, config.model, vocab
        if self.model.dropout > 0:
            raise NoTheory("model.dropout > 0")
        self.depth, self.width = config.depth, config.model.width
        self.hidden = round(self.model.mlp_ratio * self.width)
        self.names = BLOCK_SUBLAYERS[self.model.sublayers]
        self.init: Init = _built(config.init.build, "init")
        self.activation = _activation(config.activation.build)
        streams = self.placement(0, self.names[0]).streams
        if len(streams) > 1:
            raise NoTheory(f"the placement carries {len(streams)} streams")
        self.norm_kernel = _norm_kernel(config.norm_type.build, self.width)

    def gains(self, sublayer: str, layer: int, placement: Placement) -> dict[str, float]:
        """fan_in * std^2 of each weight of a sublayer."""
        found = {}
        for role in SUBLAYER_KINDS[sublayer].roles:
            fan_in = self.hidden if role == "mlp_out" else self.width
            fan_out = self.hidden if role in ("mlp_in", "mlp_gate") else self.width
            std = self.std(role, (fan_in, fan_out), layer, placement)
            found[role] = fan_in * std**2
        return found

    def std(
        self, role: str, fans: tuple[int, int], layer: int, placement: Placement | None
    ) -> float:
        weight = Weight.of(role, fans, layer, self.depth, len(self.names))
        return float(start_std(self.init, weight, placement))

    def norm(self, x: Cov) -> Cov:
        return normed(self.norm_kernel, x)

    def branch(
        self, sublayer: str, gains: Mapping[str, float], batch: TokenGroup
    ) -> Callable[[Cov], Cov]:
        """The map C -> C, with its adjoint, of a sublayer. Raises NoTheory where none is known."""
        if sublayer == "linear":
            return partial(linear, gains["linear"])
        if sublayer == "mlp":
            return partial(mlp, self.activation, gains)
        if sublayer != "attn":
            raise NoTheory(f"no covariance map of the sublayer {sublayer}")
        offset = None
        if self.model.position == "rope":
            offset = np.subtract.outer(batch.position, batch.position).astype(float)
        head = self.width // self.model.heads
        heads = _heads(len(batch.token)) // (1 if offset is None else 2)  # complex ones cost twice
        return Attention(gains, head, batch.mask, offset, heads)

    def run(self, batch: TokenGroup, seed: int) -> list[SiteCovariance]:
        """C and G at every site, in forward order.

        Args:
            batch: the tokens to follow.
            seed: of the sampled heads and logits.

        Raises:
            NoTheory: a sublayer or sum has no covariance map.
        """
        tape = Tape(seed, self.width)
        x = self._embed(tape, batch)
        sites = [SiteCovariance(EMBED_LAYER, "embed", "resid_post", self.width, x)]
        for layer in range(self.depth):
            for sublayer in self.names:
                x = self._sublayer(x, layer, sublayer, batch, sites)
        self._head(x, batch, sites)
        tape.reverse()
        return sites

    def _embed(self, tape: Tape, batch: TokenGroup) -> Cov:
        same = np.equal.outer(batch.token, batch.token).astype(float)
        if self.model.position == "learned":
            same += np.equal.outer(batch.position, batch.position)
        x = Cov(tape, self.config.init.embed_std**2 * same, np.ones(len(same)))
        x.deviations = gaussian(x)
        return x

    def _sublayer(
        self, x: Cov, layer: int, sublayer: str, batch: TokenGroup, sites: list[SiteCovariance]
    ) -> Cov:
        placement = self.placement(layer, sublayer)
        f = self.branch(sublayer, self.gains(sublayer, layer, placement), batch)

        def add(name: str, x: Cov) -> Cov:
            sites.append(SiteCovariance(layer, sublayer, name, self.width, x))
            return x

        def branch(x: Cov) -> Cov:
            # A site has a gradient of its own: what flows through this place and no other.
            x = add("branch_in", 1.0 * x)
            if isinstance(f, Attention) and f.saturates(x.C):
                for site in sites:
                    site.saturated = True
            return add("branch_out", f(x))

        def norm(name: str, x: object) -> Cov:
            gain, out = placement.norm_gain(name), self.norm(cast(Cov, x))
            return out if gain == 1 else gain * out

        norms = Norms(norm)
        x = add("resid_pre", x)
        with naming_external(placement):
            out = placement(x, branch, norms)
            if not isinstance(out, Cov):
                raise TypeError(f"its equation returns {type(out).__name__}")
        return add("resid_post", out)

    def placement(self, layer: int, sublayer: str) -> Placement:
        node = self.config.norm.build
        made: Placement = _built(node, "norm", self.depth, layer, sublayer)
        return made

    def _head(self, x: Cov, batch: TokenGroup, sites: list[SiteCovariance]) -> None:
        """Final norm, logits, and the gradient of the loss with respect to the logits.

        A logit of the tied table has the mean d s^2 c_i at the token's own symbol, where c_i is
        what x_L kept of the embedding. Logits are sampled, P their softmax, Y the targets; the
        gradient of logit v at token i is (P - Y)_iv / counted.
        """
        sites.append(SiteCovariance(self.depth, "head", "resid_pre", self.width, x))
        placement = self.placement(self.depth - 1, self.names[-1])
        with naming_external(placement):
            x = placement.end(x, Norms(lambda name, x: self.norm(cast(Cov, x))))
            if not isinstance(x, Cov):
                raise TypeError(f"its end returns {type(x).__name__}")
        top, x = x, 1.0 * x
        sites.append(SiteCovariance(self.depth, "head", "branch_in", self.width, x))
        if self.model.tie_embeddings:
            std = self.config.init.embed_std
            own = self.width * std**2 * x.embedding_factor
        else:
            std = self.std("head", (self.width, self.vocab), self.depth, None)
            own = np.zeros(len(x.C))
        C = self.width * std**2 * x.C + np.diag(own**2) / self.vocab
        logits = x.then(C, lambda G: self.vocab * std**2 * G)
        error, along = _loss_gradient(self.width * std**2 * x.C, own, batch, self.vocab, x.tape.rng)
        logits.G = error / (self.vocab * batch.counted**2)
        top.radial = along / (self.width * batch.counted**2)
        sites.append(SiteCovariance(self.depth, "head", "branch_out", self.vocab, logits))


def _built(node: Mapping[str, Any], key: str, *args: Any) -> Any:
    """What a node of the config builds. Raises NoTheory where the class is refused, or refuses."""
    try:
        return instantiate.build(node, key, *args)
    except ConfigError as error:
        raise NoTheory(str(error)) from error


def _activation(node: Mapping[str, Any]) -> Activation:
    made: Activation = _built(node, "activation")
    if not made.has_kernel:
        raise NoTheory(f"no kernel of {node['_target_']}")
    return made


def _norm_kernel(node: Mapping[str, Any], width: int) -> Kernel:
    """The kernel of a norm type: by name in `norm_kernels`, or the attribute of the norm's class.

    By name first, since the module of the norms imports torch.
    """
    target = str(node["_target_"])
    module, _, name = target.rpartition(".")
    kernel = getattr(norm_kernels, name, None) if module == "stability.parts.norms" else None
    if kernel is None:
        try:
            kernel = getattr(instantiate.resolve(target, "norm_type.build"), "kernel", None)
        except ConfigError as error:  # not allowed here, or not importable
            raise NoTheory(str(error)) from error
    if kernel is None:
        raise NoTheory(f"no kernel of {target}")
    try:
        made: Kernel = instantiate.make(kernel, node, "norm_type.build", width)
    except ConfigError as error:
        raise NoTheory(str(error)) from error
    if not hasattr(made, "joint"):
        raise NoTheory(f"the kernel of {target} lacks the attribute joint")
    return made


def _heads(tokens: int) -> int:
    """Heads to sample: 32 at 64 tokens; fewer where there are more tokens to average over."""
    return int(np.clip(32 * (64 / tokens) ** 2, 4, 32))


def _loss_gradient(
    C: Matrix, own: Matrix, batch: TokenGroup, vocab: int, rng: np.random.Generator
) -> tuple[Matrix, Matrix]:
    """E[R R^T] [N, N] and E[(sum_v R_iv logits_iv)^2] [N] with R = P - Y.

    The logits are sampled, of covariance C for each symbol.
    """
    N, samples = len(C), max(1, 400_000 // (vocab * len(C)))
    counted, half = batch.target >= 0, root(C)
    total, along = np.zeros((N, N)), np.zeros(N)
    for _ in range(samples):
        logits = half @ rng.standard_normal((N, vocab))
        logits[np.arange(N), batch.token] += own
        P = np.exp(logits - logits.max(1, keepdims=True))
        P /= P.sum(1, keepdims=True)
        P[counted, batch.target[counted]] -= 1
        P[~counted] = 0
        total += P @ P.T
        along += (P * logits).sum(1) ** 2
    return total / samples, along / samples


def groups(x_BT: Tokens, y_BT: Tokens, causal: bool, joint: bool) -> list[TokenGroup]:
    """Groups of tokens that interact, at most `MAX_TOKENS` in all (or one sequence).

    One sequence each, or, if ``joint`` (BatchNorm), one group of the first sequences.
    """
    B, T = x_BT.shape
    size = max(1, min(B, MAX_TOKENS // T)) if joint else 1
    counted = max(int((y_BT >= 0).sum()), 1)
    mask = np.kron(np.eye(size), np.tri(T) if causal else np.ones((T, T))).astype(bool)
    position = np.tile(np.arange(T), size)
    starts = range(1) if joint else range(min(B, max(1, MAX_TOKENS // T)))
    return [
        TokenGroup(x_BT[b : b + size].ravel(), y_BT[b : b + size].ravel(), position, mask, counted)
        for b in starts
    ]
