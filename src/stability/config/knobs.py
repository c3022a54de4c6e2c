"""Every knob: its type, unit, default and legal range.

The yaml files of `conf/` choose values; the defaults are here and nowhere else.
`stability.config.rules` checks one composed config, `stability.config.identity` says what a run is.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args, get_origin

from stability.config.names import BLOCK_SUBLAYERS, KINDS, SITES
from stability.config.ranges import (
    ANY,
    FLAG,
    Legal,
    above,
    at_least,
    either,
    fraction,
    matches,
    one_of,
    optional,
    spelled,
    subset,
    typed,
    whole,
)
from stability.config.suggestions import near

GROUPS = ("norm", "norm_type", "init", "activation", "optimizer", "model", "data")
"""Config groups: each option is one yaml in a folder of `conf/`."""

AXES = ("norm", "norm_type", "init", "depth", "dtype", "seed")
"""The short names that people sweep."""


class NumberFormat(NamedTuple):
    """What a ``dtype`` stands for; formats carry torch's names."""

    param: str
    """The format of parameters, activations and gradients."""
    bits: int
    """Size of a parameter."""
    autocast: str | None = None
    """The format of matrix products, where it is another."""


DTYPES = {
    "fp64": NumberFormat("float64", 64),
    "fp32": NumberFormat("float32", 32),
    "bf16": NumberFormat("bfloat16", 16),
    "fp16": NumberFormat("float16", 16),
    "amp_bf16": NumberFormat("float32", 32, "bfloat16"),
    "amp_fp16": NumberFormat("float32", 32, "float16"),
}
RENAMED = {
    "model.activation": "activation",
    "train.optimizer": "optimizer",
    "train.betas": "optimizer.betas",
    "train.eps": "optimizer.eps",
    "train.independent_weight_decay": "optimizer.independent_weight_decay",
}
"""Keys of version 0.1 -> what they are called now."""

_PROBES = Path(__file__).parents[1] / "training" / "probes"
PROBES = tuple(sorted(p.stem for p in _PROBES.glob("[!_]*.py")))
"""Every probe: a file in training/probes/."""

MAX_STEPS = 10**9
"""Upper limit of train.steps and of every interval counted in steps."""
SCALES = at_least(1e-30, 1e30)
"""Factors on the loss that, like their inverses, are normal numbers in fp32."""


class ConfigError(Exception):
    """A config that is refused: names the key, the value and the reason. Exit code 2."""

    def __init__(self, key: str, value: object, reason: str, trace: str = "") -> None:
        super().__init__(f"{key}={value}: {reason}")
        self.key, self.value, self.reason = key, value, reason
        if trace:  # of the worker process that raised the error; shown with HYDRA_FULL_ERROR=1
            self.add_note(trace)


def knob(default: Any, doc: str, legal: Legal = ANY, unit: str = "", identity: bool = True) -> Any:
    """A config field: default, meaning, legal range, unit, whether it makes a run another run."""
    meta = {"doc": doc, "legal": legal, "unit": unit, "identity": identity}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=meta)
    return field(default=default, metadata=meta)


@dataclass
class OptionConfig:
    """What an option of every group has."""

    label: str = knob("", "name in legends", identity=False)
    order: int = knob(
        0, "place in legends and in the colour order", at_least(0, 9999), identity=False
    )
    build: dict[str, Any] = knob({}, "the class to build (_target_) and its arguments")


@dataclass
class Norm(OptionConfig):
    pass


@dataclass
class NormType(OptionConfig):
    eps: float = knob(1e-5, "added to the variance or mean square", at_least(0))


@dataclass
class Init(OptionConfig):
    std: float = knob(0.02, "std of every weight matrix, for init=normal", at_least(0))
    embed_std: float = knob(0.02, "std of token and position embeddings", at_least(0))


@dataclass
class ActivationOption(OptionConfig):
    pass


@dataclass
class OptimizerOption(OptionConfig):
    betas: list[float] | None = knob(
        None,
        "decay rates of Adam's moments",
        optional(
            Legal(
                "two numbers, each 0 <= value < 1",
                lambda v: len(v) == 2 and all(map(fraction().test, v)),
            )
        ),
    )
    eps: float | None = knob(
        None, "added to the root of Adam's second moment", optional(at_least(0))
    )
    independent_weight_decay: bool = knob(
        False,
        "decay by weight_decay * lr(t)/lr instead of weight_decay * lr(t), for optimizer=adamw",
        FLAG,
    )


@dataclass
class Data(OptionConfig):
    path: str | None = knob(None, "training data, for data=text and data=tokens", identity=False)
    val_path: str | None = knob(
        None, "validation data; without it the last tenth of the training data", identity=False
    )
    vocab: int | None = knob(
        None, "number of symbols, for data=markov and data=tokens", optional(at_least(2, 2**16))
    )
    pad_share: float = knob(0.0, "mean share of padding tokens in a sequence", fraction())


@dataclass
class Model:
    width: int = knob(64, "width d of the residual stream", at_least(1, 2**16), "features")
    heads: int = knob(4, "attention heads", at_least(1, 2**16))
    context: int = knob(64, "tokens per sequence T", at_least(2, 2**31), "tokens")
    mlp_ratio: float = knob(4.0, "width of the MLP over the width of the model", above(0, 1024))
    position: str = knob("learned", "how positions enter", one_of("learned", "rope", "none"))
    causal: bool = knob(True, "whether attention is causal", FLAG)
    attention: str = knob(
        "fused",
        "attention's kernel: PyTorch's choice, or one that forms scores and softmax, in >= fp32",
        one_of("fused", "math"),
    )
    bias: bool = knob(True, "biases in linear layers and norms", FLAG)
    tie_embeddings: bool = knob(True, "unembedding = embedding", FLAG)
    dropout: float = knob(0.0, "dropout of embedding, attention and branches", fraction())
    sublayers: str = knob(
        "attn_mlp",
        "sublayers of a block; linear and mlp have one",
        one_of(*BLOCK_SUBLAYERS),
    )
    vocab: Any = knob("auto", "rows of the embedding", either("auto", whole(2, 2**20)), "tokens")


@dataclass
class Train:
    steps: int = knob(
        150,
        "updates; 0 = one recorded pass at init",
        at_least(0, MAX_STEPS),
        "steps",
        identity=False,
    )
    batch_size: int = knob(8, "sequences per step", at_least(1, 2**20), "sequences")
    accumulate: int = knob(1, "parts a batch is split into", at_least(1, 2**20))
    lr: float = knob(1e-3, "peak learning rate", at_least(0))
    schedule: str = knob(
        "constant", "learning rate after warm-up", one_of("constant", "linear", "cosine")
    )
    warmup_steps: int = knob(0, "linear warm-up from 0", at_least(0, MAX_STEPS), "steps")
    weight_decay: float = knob(0.0, "weight decay of matrices and embeddings", at_least(0))
    clip: float = knob(0.0, "largest gradient norm; 0 = no clipping", at_least(0))
    state_dtype: str = knob(
        "fp32",
        "dtype of the optimizer's moments and arithmetic: at least fp32, or that of the parameter",
        one_of("fp32", "param"),
    )
    eval_every: int = knob(
        50, "steps between validations, 0 = at the end only", at_least(0, MAX_STEPS), "steps"
    )
    eval_batches: int = knob(4, "batches per validation", at_least(1, 2**20), "batches")
    checkpoint_every: int = knob(
        500,
        "steps between checkpoints, 0 = only when interrupted",
        at_least(0, MAX_STEPS),
        "steps",
        identity=False,
    )
    keep_checkpoint: bool = knob(
        False, "keep checkpoint.pt when the run ends", FLAG, identity=False
    )


@dataclass
class Record:
    every: int = knob(
        10,
        "steps between recordings; the last step is always recorded",
        at_least(1, MAX_STEPS),
        "steps",
    )
    kinds: list[str] = knob(list(KINDS), "what to record", subset(tuple(KINDS)))
    sites: list[str] = knob(
        list(SITES), "where to record activations and gradients", subset(tuple(SITES))
    )
    probes: list[str] = knob(
        [],
        "extra measurements on recorded steps, each with passes of its own; slow",
        subset(PROBES, empty=True),
    )
    ring: int = knob(
        0,
        "last steps kept at full detail on the device, written when the run diverges; costs a"
        " recording at every step",
        at_least(0, 2**20),
        "steps",
        identity=False,
    )
    flush_every: int = knob(
        50, "steps between writes to disk", at_least(1, MAX_STEPS), "steps", identity=False
    )


@dataclass
class Config:
    norm: Norm = field(default_factory=Norm, metadata={"doc": "where the norm sits"})
    norm_type: NormType = field(default_factory=NormType, metadata={"doc": "which norm it is"})
    init: Init = field(default_factory=Init, metadata={"doc": "how weights are initialised"})
    activation: ActivationOption = field(
        default_factory=ActivationOption, metadata={"doc": "the MLP's nonlinearity"}
    )
    optimizer: OptimizerOption = field(
        default_factory=OptimizerOption, metadata={"doc": "how an update is made of gradients"}
    )
    depth: int = knob(6, "blocks L", at_least(1, 10_000), "blocks")
    dtype: str = knob(
        "fp32", "parameters, activations and gradients; amp_*: autocast", one_of(*DTYPES)
    )
    seed: int = knob(0, "seed of weights, batches and dropout", at_least(0, 2**32 - 1))
    model: Model = field(default_factory=Model, metadata={"doc": "shape of the GPT"})
    data: Data = field(default_factory=Data, metadata={"doc": "what it is trained on"})
    train: Train = field(default_factory=Train, metadata={"doc": "how it is trained"})
    record: Record = field(default_factory=Record, metadata={"doc": "what is recorded, and when"})
    loss_scale: Any = knob(
        "none",
        "factor on the loss",
        Legal(
            f"none, dynamic, or a number from {SCALES.text}",
            lambda v: v in ("none", "dynamic") or SCALES.test(v),
        ),
    )
    on_nonfinite: str = knob(
        "stop",
        "after a non-finite loss or gradient: stop the run, skip the update, or apply it anyway",
        one_of("stop", "skip", "continue"),
    )
    device: str = knob(
        "auto",
        "auto = CUDA where there is one, else the CPU",
        matches(r"auto|cpu|mps|cuda(:\d+)?", "auto, cpu, mps, cuda or cuda:N"),
        identity=False,
    )
    threads: int = knob(1, "CPU threads of one run", at_least(1, 1024), "threads")
    flush_subnormal: bool = knob(
        False,
        "compute with 0 in place of subnormal numbers; faster on a CPU where gradients underflow",
        FLAG,
    )
    compile: bool = knob(False, "torch.compile each block", FLAG)
    checkpointing: bool = knob(False, "recompute activations in the backward pass", FLAG)
    tf32: bool = knob(False, "TF32 matrix products for fp32 on CUDA", FLAG)
    out: str = knob("outputs", "folder of all sweeps", identity=False)
    name: str | None = knob(
        None,
        "the sweep's folder below out; unset = a time stamp",
        optional(
            matches(
                r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}",
                "letters, digits, '.', '_', '-', at most 100, not starting with '.' or '-'",
            )
        ),
        identity=False,
    )
    n_jobs: Any = knob(
        "auto",
        "runs at a time: one per GPU, or one per core / threads",
        either("auto", whole(1, 1024)),
        "runs",
        identity=False,
    )
    isolate: bool = knob(False, "a process of its own for each run", FLAG, identity=False)
    fail_fast: bool = knob(False, "stop the sweep at the first failed run", FLAG, identity=False)
    shard: str | None = knob(
        None,
        "do the i-th of n parts of the grid, which cost about the same: i/n",
        optional(
            Legal(
                "i/n with 1 <= i <= n",
                lambda v: (
                    (m := re.fullmatch(r"([1-9]\d{0,8})/([1-9]\d{0,8})", v)) is not None
                    and int(m[1]) <= int(m[2])
                ),
            )
        ),
        identity=False,
    )
    lock_minutes: float = knob(
        10.0,
        "silence after which another command may take over a run",
        at_least(0.1, 10_000),
        "minutes",
        identity=False,
    )
    allow: list[str] = knob(
        [], "modules outside this package whose classes a yaml may build", identity=False
    )
    claim: dict[str, Any] = knob({}, "an experiment's claim and criterion", identity=False)
    choices: dict[str, str] = field(default_factory=dict, metadata={"doc": "option of each group"})

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The config that plain containers hold, e.g. those of a run's ``config.yaml``.

        Raises:
            ConfigError: a key is unknown or a value has another type than its knob.
        """
        made = _from_plain(cls, plain, "")
        assert isinstance(made, cls)
        return made

    def plain(self) -> dict[str, Any]:
        """The config as plain containers, for yaml and json."""
        return asdict(self)

    def changed(self, values: Mapping[str, Any]) -> Self:
        """A copy with other values under dotted keys: ``{"train.steps": 3}``."""
        made = copy.deepcopy(self)
        for key, value in values.items():
            *parents, name = key.split(".")
            node: Any = made
            for parent in parents:
                node = getattr(node, parent)
            if name not in {f.name for f in fields(node)}:
                raise unknown(key, value)
            setattr(node, name, value)
        return made


def _from_plain(cls: type, plain: object, prefix: str) -> Any:
    if not isinstance(plain, Mapping):
        key = prefix.rstrip(".") or "config"
        raise ConfigError(key, spelled(plain), "must be a group of keys, {key: value}")
    known = {f.name: f for f in fields(cls)}
    given: dict[str, Any] = {}
    for name, value in plain.items():
        key = f"{prefix}{name}"
        if name not in known:
            raise unknown(key, value)
        inner = known[name].type
        if isinstance(inner, type) and is_dataclass(inner):
            given[name] = _from_plain(inner, value, f"{key}.")
        else:
            given[name] = _typed(key, value, known[name])
    return cls(**given)


def _typed(key: str, value: Any, spec: Field[Any]) -> Any:
    try:
        return typed(value, spec.type)
    except TypeError as error:
        legal = spec.metadata["legal"].text if "legal" in spec.metadata else ""
        is_list = any(get_origin(kind) is list for kind in (spec.type, *get_args(spec.type)))
        words = [legal] if legal and is_list else [str(error), legal]
        wanted = ", ".join(dict.fromkeys(filter(None, words)))
        if is_list and isinstance(value, str):
            wanted += f"; a list of one is written {key}=[{value}]"
        elif isinstance(value, str) and re.fullmatch(r"\d+(\.\.|-|:)\d+", value):
            first, last = re.findall(r"\d+", value)
            wanted += f"; a range is written {key}=range({first},{int(last) + 1})"
        elif isinstance(value, list) and not is_list and spec.metadata["identity"]:
            wanted += f"; a grid is written without brackets: {key}={spelled(value)[1:-1]}"
        raise ConfigError(key, spelled(value), f"must be {wanted}") from error


class Knob(NamedTuple):
    """One row of the help text."""

    key: str
    default: Any
    doc: str
    legal: Legal
    unit: str
    identity: bool


def knobs(schema: type = Config, prefix: str = "") -> Iterator[Knob]:
    """Every knob of the config, depth first, under its dotted name."""
    for f in fields(schema):
        key = prefix + f.name
        if is_dataclass(f.type) and isinstance(f.type, type):
            yield from knobs(f.type, key + ".")
        elif "legal" in f.metadata:
            default = f.default_factory() if callable(f.default_factory) else f.default
            m = f.metadata
            yield Knob(key, default, m["doc"], m["legal"], m["unit"], m["identity"])


KNOBS = {k.key: k for k in knobs()}


def unknown(key: str, value: object) -> ConfigError:
    """The refusal of a key that does not exist: names those that look like it."""
    if key in RENAMED:
        return ConfigError(key, value, f"is now called {RENAMED[key]}")
    keys = (*GROUPS, *KNOBS, "experiments")
    last = key.rpartition(".")[2]
    same = [k for k in keys if k.rpartition(".")[2] == last]
    found = list(dict.fromkeys([*same, *near(key, keys, count=3)]))[:3]
    meant = f"did you mean {', '.join(found)}?" if found else "--help lists every key"
    return ConfigError(key, value, f"unknown key; {meant}")


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """The value under a dotted key of nested plain containers."""
    value: Any = config
    for part in key.split("."):
        value = value[part]
    return value
