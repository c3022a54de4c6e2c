"""Config -> data, model, optimizer: the one place that knows which key builds what."""

from typing import NamedTuple

import torch
from torch import nn

from stability.config import instantiate
from stability.config.knobs import Config, ConfigError
from stability.model.compile import compile_blocks
from stability.model.gpt import GPT, Parts, initialise
from stability.model.optim import Optimizer
from stability.parts.activations import Activation
from stability.parts.batches import Source
from stability.parts.data import source, vocabulary
from stability.parts.inits import Init
from stability.parts.optimizers import UpdateRule
from stability.parts.placements import Placement
from stability.parts.precision import PRECISIONS, LossScale, Precision
from stability.recording.recorder import Recorder


class Built(NamedTuple):
    """Everything a run works with."""

    config: Config
    source: Source
    device: torch.device
    precision: Precision
    model: GPT
    optimizer: Optimizer
    loss_scale: LossScale
    recorder: Recorder


def device_of(config: Config) -> torch.device:
    """The device that ``device`` names.

    Raises:
        ConfigError: there is no such device here.
    """
    name = config.device
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            last = f"this machine has {count} CUDA devices, cuda:0 to cuda:{count - 1}"
            legal = last if count else "this machine has 0 CUDA devices; use cpu"
            raise ConfigError("device", name, legal)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device", name, "this machine has no MPS device; use cpu")
    return device


def parts_of(config: Config) -> Parts:
    """The config's activation, and makers of its placements and norms.

    Raises:
        ConfigError: an option's class refuses its arguments or is none of the expected kind.
    """
    width, bias = config.model.width, config.model.bias

    def placement(layer: int, sublayer: str) -> Placement:
        place = config.depth, layer, sublayer
        return instantiate.build(config.norm.build, "norm.build", *place, kind=Placement)

    def norm() -> nn.Module:
        node = config.norm_type.build
        return instantiate.build(node, "norm_type.build", width, bias, kind=nn.Module)

    return Parts(placement, norm, activation_of(config), config.model.width)


def init_of(config: Config) -> Init:
    """The config's init."""
    return instantiate.build(config.init.build, "init.build", kind=Init)


def activation_of(config: Config) -> Activation:
    """The config's activation."""
    return instantiate.build(config.activation.build, "activation.build", kind=Activation)


def update_rule_of(config: Config) -> UpdateRule:
    """The config's update rule."""
    return instantiate.build(config.optimizer.build, "optimizer.build", kind=UpdateRule)


def model_of(config: Config, vocab: int) -> GPT:
    """The config's GPT, initialised in fp32 or wider on the CPU, cast to the parameters' dtype."""
    precision = PRECISIONS[config.dtype]
    with torch.device("cpu"):
        model = GPT(config.model, config.depth, vocab, parts_of(config), config.checkpointing)
    model = _cast(model, precision.param)
    initialise(model, init_of(config), config.seed, config.init.embed_std)
    return model


def _cast(model: GPT, dtype: torch.dtype) -> GPT:
    """Cast parameters only: buffers (BatchNorm's running statistics) stay in at least fp32."""
    for p in model.parameters():
        p.data = p.data.to(dtype)
    if dtype == torch.float64:
        for b in model.buffers():
            b.data = b.data.to(dtype)
    return model


def build(config: Config, data: Source | None = None) -> Built:
    """Build all of a run.

    Args:
        config: of the run.
        data: in the place of the source that the config names.

    Raises:
        ConfigError: something in the config cannot be built.
    """
    device, found = device_of(config), source(config) if data is None else data
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = config.tf32
        torch.backends.cudnn.allow_tf32 = config.tf32
    model = model_of(config, vocabulary(config, found)).to(device)
    if config.compile:
        compile_blocks(model)
    return Built(
        config=config,
        source=found,
        device=device,
        precision=PRECISIONS[config.dtype],
        model=model,
        optimizer=optimizer_of(config, model),
        loss_scale=LossScale(config.loss_scale, device),
        recorder=recorder_of(config, model),
    )


def optimizer_of(config: Config, model: GPT) -> Optimizer:
    """The config's optimizer of the model's weights."""
    return Optimizer(model.weights(), update_rule_of(config), config.train)


def recorder_of(config: Config, model: GPT, all_kinds: bool = False) -> Recorder:
    """A recorder at the model's sites: what the config records, or everything."""
    train, record = config.train, config.record
    tokens = train.batch_size // train.accumulate * config.model.context
    compiled = tokens if config.compile else None
    if all_kinds:
        return Recorder(model.sites(), model.weights(), compiled_tokens=compiled)
    chosen = record.kinds, record.sites
    return Recorder(model.sites(), model.weights(), *chosen, compiled_tokens=compiled)
