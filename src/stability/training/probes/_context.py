"""What probes get: a copy of the model, the batch of a step, and one pass that they share."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stability.config.names import EMBED_LAYER, Key
from stability.model.build import Built, model_of, parts_of
from stability.model.gpt import GPT, Sublayer, loss_sum
from stability.model.sublayers import Linear
from stability.parts.batches import IGNORED
from stability.parts.placements import ending, norms_used
from stability.training.passes import Batch, val_batch

Place = tuple[int, str]
"""Layer and sublayer."""

Row = tuple[int, str, str, float]
"""Layer, sublayer, item, value."""


class Item(NamedTuple):
    """One series of values that a probe gives, for the documentation."""

    place: str
    name: str
    value: str


SUBLAYERS = "each sublayer"
NORMS = "each sublayer with a norm; (depth, `head`): the final norm"
LINEARS = "each sublayer; (depth, `head`) where untied"
STREAMS = "(-1, `embed`) for x_0; each sublayer for its x_post"
OUTPUT = "(depth, `head`)"
BLOCKS = "(block l, `block`)"
"""Places of items: layer and sublayer."""


class LinearPass(NamedTuple):
    """What passed a linear layer: input, output, gradient of the output, gradient of the weight."""

    x_BTI: Tensor
    y_BTO: Tensor
    delta_BTO: Tensor
    weight_grad_OI: Tensor


class SharedPass(NamedTuple):
    """Tensors of one forward and backward pass of the mean loss, in the order of execution."""

    streams: dict[Place, tuple[Tensor, Tensor]]
    """x_0 and each x_post, and the gradient there."""
    linears: dict[Key, LinearPass]
    norms: dict[Key, Tensor]
    """The input of each norm."""


class ProbeContext:
    """A run as the probes see it.

    Attributes:
        model: a copy in at least fp32; a probe may change it.
        x_BT, y_BT: the first part (``train.accumulate``) of the step's batch.

    Args:
        built: what the config builds; only read.
    """

    x_BT: Tensor
    y_BT: Tensor

    def __init__(self, built: Built) -> None:
        self.built, self.config = built, built.config
        self.vocab = built.model.embed.wte.shape[0]
        model = GPT(self.config.model, self.config.depth, self.vocab, parts_of(self.config))
        self.model = model.to(built.device, built.precision.at_least_fp32)

    def set_batch(self, batch: Batch) -> None:
        """Take the batch of another step."""
        parts = self.config.train.accumulate
        self.x_BT, self.y_BT = batch.x_BT.tensor_split(parts)[0], batch.y_BT.tensor_split(parts)[0]
        self.free_pass()

    def free_pass(self) -> None:
        """Free the tensors of the shared pass."""
        self.__dict__.pop("shared_pass", None)

    def load_weights(self, weights: Mapping[str, Any] | None = None) -> None:
        """Load weights, the run's own by default; dropout off, norms as in training."""
        self.model.load_state_dict(weights or self.built.model.state_dict())
        self.model.requires_grad_(True).eval()
        for norm in self.norms().values():
            norm.train()

    def places(self) -> Iterator[tuple[int, str, Sublayer]]:
        """Every sublayer in order, with its place."""
        for layer, block in enumerate(self.model.blocks):
            for name, sub in block.sublayers().items():
                yield layer, name, sub

    def norms(self) -> dict[Key, nn.Module]:
        """Every norm under the name its weights have: ``norm``, ``norm.out``."""
        found: dict[Key, nn.Module] = {}
        for layer, name, sub in self.places():
            for norm in norms_used(sub.placement):
                path = f"norm.{norm}" if norm else "norm"
                found[Key(layer, name, path)] = sub.get_submodule(path)
        for norm in ending(self.model.head.placement)[1]:
            path = f"norm.{norm}" if norm else "norm"
            found[Key(self.model.depth, "head", path)] = self.model.head.get_submodule(path)
        return found

    def linears(self) -> dict[Key, Linear]:
        """Every linear layer under its weight's name; a tied head is none."""
        found = {}
        for layer, name, sub in self.places():
            for path, module in sub.f.named_modules():
                if isinstance(module, Linear):
                    found[Key(layer, name, path)] = module
        if isinstance(self.model.head.head, Linear):
            found[Key(self.model.depth, "head", "head")] = self.model.head.head
        return found

    def streams(self) -> dict[Place, nn.Module]:
        """The sites of x_0 and of each x_post."""
        after = {(layer, name): sub.resid_post for layer, name, sub in self.places()}
        return {(EMBED_LAYER, "embed"): self.model.embed.resid_post, **after}

    @cached_property
    def shared_pass(self) -> SharedPass:
        """The pass over `x_BT`, made once for all probes of gradients and activations."""
        streams: dict[Place, Tensor] = {}
        norms: dict[Key, Tensor] = {}
        inputs: dict[Key, Tensor] = {}
        outputs: dict[Key, Tensor] = {}
        linears = self.linears()
        hooks = [m.register_forward_hook(_keep(streams, k, 1)) for k, m in self.streams().items()]
        hooks += [m.register_forward_hook(_keep(norms, k, 0)) for k, m in self.norms().items()]
        hooks += [m.register_forward_hook(_keep(inputs, k, 0)) for k, m in linears.items()]
        hooks += [m.register_forward_hook(_keep(outputs, k, 1)) for k, m in linears.items()]
        loss = loss_sum(self.model(self.x_BT), self.y_BT) / (self.y_BT != IGNORED).sum()
        for hook in hooks:
            hook.remove()
        weights = [m.weight for m in linears.values()]
        wanted = [*streams.values(), *outputs.values(), *weights]
        grads = iter(torch.autograd.grad(loss, wanted, materialize_grads=True))
        stream_pairs = {k: (x.detach(), next(grads)) for k, x in streams.items()}
        deltas = {k: next(grads) for k in outputs}
        flows = {
            k: LinearPass(inputs[k].detach(), outputs[k].detach(), deltas[k], next(grads))
            for k in linears
        }
        return SharedPass(stream_pairs, flows, {k: x.detach() for k, x in norms.items()})

    @cached_property
    def val_batch(self) -> Batch:
        """The first validation batch: the same at every step of every run on these data."""
        return val_batch(self.built, 0)

    @torch.no_grad()
    def output(self) -> Tensor:
        """F on the validation batch: what the head reads, after the final norm if any, in fp64."""
        kept: dict[str, Tensor] = {}
        hook = self.model.head.branch_in.register_forward_hook(_keep(kept, "F", 1))
        self.model(self.val_batch.x_BT)
        hook.remove()
        return kept["F"].double()

    @cached_property
    def initial_output(self) -> Tensor:
        """F of the weights that the run started from, drawn again from the seed."""
        self.load_weights(model_of(self.config, self.vocab).state_dict())
        return self.output()


def _keep(into: dict[Any, Tensor], key: Any, which: int) -> Callable[..., None]:
    """A forward hook that keeps the module's first input (0) or its output (1)."""

    def hook(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        into[key] = output if which else inputs[0]

    return hook


def square(x: Tensor) -> Tensor:
    """Entrywise square in fp64, where gradients of 1e-25 have one."""
    return x.double().square()
