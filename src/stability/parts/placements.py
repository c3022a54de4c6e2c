"""Where the norm sits: one equation per class, and nothing else.

A placement is called with the residual stream ``x``, the sublayer ``f`` and the norms ``norm``
that the block owns. It is plain Python, so the same line runs on tensors (the model), on
covariances (the theory), on text (the catalogue, see `equation`) and on recorded calls (the
tests).

Which norms a block must own is read off the equation itself: ``norm(...)`` asks for ``norm``,
``norm.out(...)`` for a second one named ``norm.out``.

A factor that is trained is an attribute that `Placement.trained` names: a number on covariances and
in the text, a parameter in the model.

A placement may carry several streams: it names them in ``streams``, and its equation takes and
returns a tuple, see `stability.parts.stream_placements`.

To add one: a class here or in a module of your own, and a yaml in ``norm/`` with its label, its
order in legends and ``build: {_target_: ...}``. It is built as
``cls(depth, layer, sublayer, **rest)``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

from stability.config.names import RESIDUAL_ROLES
from stability.parts.published import Published

Operand = Any
"""Tensor x_BTD, covariance, text or call trace: whatever supports ``+`` and ``number *``."""

Fn = Callable[[Operand], Operand]


class Placement(Published, ABC):
    """Base of every placement.

    Args:
        depth: number L of blocks.
        layer: 0-based index of the block this instance serves.
        sublayer: name of the sublayer it wraps (``attn``, ``mlp``, ``linear``).
    """

    final_norm = False
    """Whether the stack ends in a norm before the head."""

    trained: ClassVar[Mapping[str, bool]] = {}
    """Attributes that are trained, from the value they are made with -> whether each feature has
    its own; else there is one number for the sublayer."""

    scales_with_depth = False
    """Whether the equation makes branches smaller with depth, beside what the init does.

    False where a norm of the branch's output undoes the init's std.
    """

    streams: ClassVar[tuple[str, ...]] = ("x",)
    """Names of the streams. With more than one, the state of the equation is a tuple of them."""

    def __init__(self, depth: int, layer: int, sublayer: str) -> None:
        self.depth, self.layer, self.sublayer = depth, layer, sublayer

    @abstractmethod
    def __call__(self, x: Operand, f: Fn, norm: Any) -> Operand:
        """The equation."""

    def begin(self, x0: Operand) -> Operand:
        """The state before the first sublayer, of the embedding x0: every stream is x0."""
        return x0 if len(self.streams) == 1 else (x0,) * len(self.streams)

    def end(self, state: Operand, norm: Any) -> Operand:
        """What the head reads; ``norm`` holds the norms that the head owns.

        Raises:
            TypeError: there are several streams, and the class does not say how they end.
        """
        if len(self.streams) > 1:
            raise TypeError(f"{type(self).__name__} has several streams and no end of its own")
        return norm(state) if self.final_norm else state

    def init_gain(self, role: str) -> float:
        """Factor on the init's std for weights of this role, see `stability.parts.inits.ROLES`."""
        return 1.0

    def norm_gain(self, name: str) -> float:
        """What gamma starts at, for the norm of this name (``""`` or ``out``)."""
        return 1.0


class Pre(Placement):
    """x + f(N(x)); the stack ends in a norm."""

    source = "GPT-2 (Radford et al. 2019); arXiv:2002.04745"
    reported = "Transformer on IWSLT14 and WMT14: trains without warm-up to results like Post-LN's"

    final_norm = True

    def __call__(self, x: Operand, f: Fn, norm: Any) -> Operand:
        return x + f(norm(x))


class Post(Placement):
    """N(x + f(x))."""

    source = "arXiv:1706.03762"
    reported = "Transformer (big) on WMT14: BLEU 28.4 English-German, 41.8 English-French"
    combine = "needs warm-up: IWSLT14 German-English ends at BLEU 8.45 without (arXiv:2002.04745)"

    def __call__(self, x: Operand, f: Fn, norm: Any) -> Operand:
        return norm(x + f(x))


class NoNorm(Placement):
    """x + f(x): the residual stream without any norm."""

    source = "arXiv:1512.03385, without its norm"
    combine = "its variance grows exponentially with depth unless the init scales branches down"

    def __call__(self, x: Operand, f: Fn, norm: Any) -> Operand:
        return x + f(x)


class Plain(Placement):
    """f(x): no norm and no residual connection."""

    source = "arXiv:1512.03385, the plain nets"
    reported = "CIFAR-10: training and test error are higher with 56 layers than with 20"
    combine = "its gradient vanishes or explodes with depth unless the init keeps variance"

    def __call__(self, x: Operand, f: Fn, norm: Any) -> Operand:
        return f(x)


class Peri(Placement):
    """x + N'(f(N(x))); the stack ends in a norm."""

    source = "arXiv:2502.02732 (Gemma 2 and 3)"
    reported = "to 3.2B parameters: more even variance and gradients than Pre-LN and Post-LN"

    final_norm = True

    def __call__(self, x: Operand, f: Fn, norm: Any) -> Operand:
        return x + norm.out(f(norm(x)))


class DeepNorm(Placement):
    """N(alpha x + f(x)) with the constants of a decoder of L blocks.

    alpha = (2L)^(1/4) on the stream; beta = (8L)^(-1/4) on the std of V, O and the MLP's matrices,
    while Q and K keep their gain of 1.
    """

    source = "arXiv:2203.00555"
    reported = (
        "1,000 layers train; over 7,482 directions of translation 200 layers (3.2B) are 5 BLEU"
        " above a model of 48 layers and 12B"
    )
    combine = "init=xavier: beta is a factor on Xavier's std"

    def __init__(self, depth: int, layer: int, sublayer: str) -> None:
        super().__init__(depth, layer, sublayer)
        self.alpha = (2 * depth) ** 0.25
        self.beta = (8 * depth) ** -0.25

    def __call__(self, x: Operand, f: Fn, norm: Any) -> Operand:
        return norm(self.alpha * x + f(x))

    def init_gain(self, role: str) -> float:
        return 1.0 if role in ("q", "k") else self.beta


class Sandwich(Peri):
    """x + N'(f(N(x))) with the std of residual projections over sqrt(2L); ends in a norm."""

    source = "arXiv:2105.13290 (CogView)"
    reported = "4B parameters in fp16: trains where Pre-LN overflows"

    def init_gain(self, role: str) -> float:
        return (2 * self.depth) ** -0.5 if role in RESIDUAL_ROLES else 1.0


class OutputNorm(Placement):
    """x + N'(f(x)): only what a branch returns is normed; the stack ends in a norm."""

    source = "arXiv:2501.00656 (OLMo 2)"
    reported = "with QK-norm, at 7B: no spikes of the loss, where the Pre-LN model before had them"
    final_norm = True

    def __call__(self, x: Operand, f: Fn, norm: Any) -> Operand:
        return x + norm.out(f(x))


class DepthScaledSandwich(Peri):
    """x + N'(f(N(x))) where gamma of N' starts at c / sqrt(L); the stack ends in a norm.

    What N' returns has the rms of its gamma, so a block adds (c_attn^2 + c_mlp^2) / L to the
    variance, and all blocks c_attn^2 + c_mlp^2: 0.267 at every depth.

    Args:
        attn: c of attention.
        mlp: c of the MLP, and of a linear branch.
    """

    source = "arXiv:2504.07866 (Pangu Ultra)"
    reported = "94 layers, 1.6B parameters: no spikes, where a plain sandwich still has them"
    combine = "init=tiny, in its source"

    def __init__(
        self, depth: int, layer: int, sublayer: str, attn: float = 0.283, mlp: float = 0.432
    ) -> None:
        super().__init__(depth, layer, sublayer)
        self.start = (attn if sublayer == "attn" else mlp) / math.sqrt(depth)

    def norm_gain(self, name: str) -> float:
        return self.start if name == "out" else 1.0


class Trinity(DepthScaledSandwich):
    """x + N'(f(N(x))) where gamma of N' starts at 1 / sqrt(L): all blocks together add 2."""

    source = "Arcee Trinity"
    reported = "no spikes in 17T tokens"

    def __init__(self, depth: int, layer: int, sublayer: str) -> None:
        super().__init__(depth, layer, sublayer, attn=1.0, mlp=1.0)


class LayerNormScaling(Placement):
    """x + f(N(x) / sqrt(l)), l = 1 .. L the block; the stack ends in a norm."""

    source = "arXiv:2502.05795"
    reported = "130M to 1B parameters: lower perplexity than Pre-LN; deep blocks contribute more"
    combine = "not with an init that scales residual projections with depth, such as init=gpt2"
    final_norm = True
    scales_with_depth = True

    def __init__(self, depth: int, layer: int, sublayer: str) -> None:
        super().__init__(depth, layer, sublayer)
        self.scale = (layer + 1) ** -0.5

    def __call__(self, x: Operand, f: Fn, norm: Any) -> Operand:
        return x + f(self.scale * norm(x))


class Mix(Placement):
    """N(x + f(x)) in the first floor(L / 4) blocks, x + f(N(x)) above; the stack ends in a norm."""

    source = "arXiv:2412.13795 (Mix-LN)"
    reported = "70M to 7B parameters: lower perplexity than Pre-LN and Post-LN"
    combine = "needs warm-up, as Post-LN does"
    final_norm = True

    def __call__(self, x: Operand, f: Fn, norm: Any) -> Operand:
        return norm(x + f(x)) if self.layer < self.depth // 4 else x + f(norm(x))


class Keel(Placement):
    """N'(alpha x + f(N(x))), alpha = 2L."""

    source = "arXiv:2601.19895"

    def __init__(self, depth: int, layer: int, sublayer: str) -> None:
        super().__init__(depth, layer, sublayer)
        self.alpha = 2.0 * depth

    def __call__(self, x: Operand, f: Fn, norm: Any) -> Operand:
        return norm.out(self.alpha * x + f(norm(x)))


class DepthMuP(Placement):
    """x + f(N(x)) / L, the branch factor of CompleteP; the stack ends in a norm."""

    source = "arXiv:2505.01618 (CompleteP)"
    reported = "to 1.5B parameters: one learning rate serves all depths"
    combine = "only the branch factor: learning rates and eps are not scaled"
    final_norm = True
    scales_with_depth = True

    def __call__(self, x: Operand, f: Fn, norm: Any) -> Operand:
        return x + 1 / self.depth * f(norm(x))


class ReZero(Placement):
    """x + a f(x), one trained a for each sublayer, 0 at the start."""

    source = "arXiv:2003.04887"
    reported = "enwiki8: 12 layers train 56% faster than Post-LN; 120 layers train"
    trained: ClassVar[Mapping[str, bool]] = {"a": False}

    def __init__(self, depth: int, layer: int, sublayer: str) -> None:
        super().__init__(depth, layer, sublayer)
        self.a = 0.0

    def __call__(self, x: Operand, f: Fn, norm: Any) -> Operand:
        return x + self.a * f(x)


class SkipInit(ReZero):
    """x + a f(x), one trained a for each sublayer, 1 / sqrt(2L) at the start."""

    source = "arXiv:2002.10444"
    reported = "ResNets of 1,000 layers train without BatchNorm"
    scales_with_depth = True

    def __init__(self, depth: int, layer: int, sublayer: str) -> None:
        super().__init__(depth, layer, sublayer)
        self.a = (2 * depth) ** -0.5


class LayerScale(Placement):
    """x + a f(N(x)), one trained a for each feature and sublayer; the stack ends in a norm.

    a starts at 0.1 up to 18 blocks, 1e-5 up to 24, 1e-6 beyond.
    """

    source = "arXiv:2103.17239 (CaiT)"
    reported = "ImageNet: vision transformers of 36 and 48 layers train and gain accuracy"
    final_norm = True
    scales_with_depth = True
    trained: ClassVar[Mapping[str, bool]] = {"a": True}

    def __init__(self, depth: int, layer: int, sublayer: str) -> None:
        super().__init__(depth, layer, sublayer)
        self.a = 0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6

    def __call__(self, x: Operand, f: Fn, norm: Any) -> Operand:
        return x + self.a * f(norm(x))


@dataclass(frozen=True)
class Text:
    """An expression as text. A sum is put in brackets before it is scaled."""

    body: str
    is_sum: bool = False

    def __add__(self, other: "Text") -> "Text":
        return Text(f"{self.body} + {other.body}", is_sum=True)

    def __rmul__(self, factor: float) -> "Text":
        number = f"{factor:.3g}" if isinstance(factor, Real) else "a"  # a parameter of the model
        return Text(f"{number} ({self.body})" if self.is_sum else f"{number} {self.body}")

    __mul__ = __rmul__


class Norms:
    """Stands for the norms of a block; collects the names that an equation asks for.

    ``norm(x)`` has the name ``""``, ``norm.out(x)`` the name ``out``.
    """

    def __init__(self, apply: Callable[[str, object], object]) -> None:
        self._apply = apply
        self.used: list[str] = []

    def _call(self, name: str, x: object) -> object:
        if name not in self.used:
            self.used.append(name)
        return self._apply(name, x)

    def __call__(self, x: object) -> object:
        return self._call("", x)

    def __getattr__(self, name: str) -> Callable[[object], object]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda x: self._call(name, x)


def _text_norms(gain_of: Callable[[str], float] = lambda name: 1.0) -> Norms:
    def apply(name: str, x: object) -> Text:
        label = f"N_{name}" if name else "N"
        normed = Text(f"{label}({x.body})")  # type: ignore[attr-defined]
        gain = gain_of(name)
        return normed if gain == 1 else gain * normed

    return Norms(apply)


def _text_state(placement: Placement) -> Operand:
    state = tuple(map(Text, placement.streams))
    return state[0] if len(state) == 1 else state


def _text_run(placement: Placement) -> tuple[list[str], list[str]]:
    """Each stream's update as text, and the names of the norms."""
    norms, name = _text_norms(placement.norm_gain), type(placement).__name__
    result = placement(_text_state(placement), lambda x: Text(f"f({x.body})"), norms)
    parts = result if isinstance(result, tuple) else (result,)
    for part in parts:
        if not isinstance(part, Text):
            raise TypeError(f"{name} returned {type(part).__name__}")
    if len(parts) != len(placement.streams):
        raise TypeError(f"{name} returned {len(parts)} streams, not {len(placement.streams)}")
    return [part.body for part in parts], norms.used


def equation(placement: Placement) -> str:
    """The placement's update as text, with its constants: ``N(2.21 x + f(x))``.

    With several streams each has its name in front: ``x: N(x + f(x)), r: r + f(x)``.
    """
    texts = _text_run(placement)[0]
    if len(texts) == 1:
        return texts[0]
    return ", ".join(f"{n}: {text}" for n, text in zip(placement.streams, texts, strict=True))


def norms_used(placement: Placement) -> list[str]:
    """Names of the norms that the equation calls: ``[""]``, ``["", "out"]`` or ``[]``."""
    return _text_run(placement)[1]


def ending(placement: Placement) -> tuple[str, list[str]]:
    """What the head reads as text, ``N(x)``, and the names of the norms that this calls.

    Raises:
        TypeError: it is not one operand.
    """
    norms = _text_norms()
    result = placement.end(_text_state(placement), norms)
    if not isinstance(result, Text):
        raise TypeError(f"{type(placement).__name__}.end returned {type(result).__name__}")
    return result.body, norms.used
