"""The parts of conf/, and of folders like it, as entries of the catalogue."""

import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import yaml

from stability.catalogue.cost import SHAPE, Cost, cost
from stability.cli import overrides
from stability.cli.compose import Composer
from stability.config import folders, instantiate, rules
from stability.config.knobs import GROUPS, Config
from stability.config.names import BLOCK_SUBLAYERS
from stability.model.build import init_of, parts_of
from stability.parts.inits import Weight
from stability.parts.placements import ending, equation
from stability.parts.published import said

MATRICES = ("q", "k", "v", "attn_out", "mlp_in", "mlp_out")
"""The roles whose stds are told."""

COMPARED_WITH = {
    "norm": ("norm=none",),
    "norm_type": ("norm=pre", "norm_type=layernorm"),
    "activation": ("norm=pre", "activation=gelu"),
}
"""Kind -> the choices whose model costs that much less."""


@dataclass(frozen=True)
class Entry:
    """One option of a group of conf/."""

    kind: str
    name: str
    label: str
    equation: str
    """Of a placement at 12 blocks; of an init the stds at width 768; of a model what it sets."""
    source: str
    reported: str
    combine: str

    def matches(self, words: Sequence[str]) -> bool:
        """Whether each word is the kind, or occurs in what the entry says; case does not count."""
        said = "\n".join(asdict(self).values()).lower()
        kinds = {word.lower() for word in words} & set(GROUPS)
        texts = {word.lower() for word in words} - set(GROUPS)
        return kinds <= {self.kind} and all(text in said for text in texts)


class Catalogue:
    """Reads entries, and counts what they cost.

    Args:
        composer: makes a config of chosen options.
        config_dirs: folders like conf/ with further options.
    """

    def __init__(self, composer: Composer, config_dirs: Sequence[Path]) -> None:
        self._composer, self._config_dirs = composer, config_dirs

    def entries(self, kinds: Sequence[str] = GROUPS) -> Iterator[Entry]:
        """Every option of some groups, in the order of groups and, within one, of legends.

        Raises:
            ConfigError: an option cannot be read or built.
        """
        for kind in kinds:
            names = folders.options(kind, self._config_dirs)
            configs = {name: self.config(kind, name) for name in names}
            if kind == "model":
                sizes = {name: (c.depth * c.model.width**2, name) for name, c in configs.items()}
                for name in sorted(names, key=sizes.__getitem__):
                    yield self._model(name)
                continue
            for name in sorted(names, key=lambda n: (getattr(configs[n], kind).order, n)):
                yield _part(kind, name, configs[name])

    def config(self, kind: str, name: str) -> Config:
        """The default config with this option, at the size of `SHAPE`; a model at its own."""
        base = COMPARED_WITH.get(kind, ())
        return self._composed((*(() if kind == "model" else SHAPE), *base, f"{kind}={name}"))

    def added(self, entry: Entry) -> Cost | None:
        """What a part adds to the model, see `COMPARED_WITH`; what a model itself costs.

        None for parts that change neither parameters nor operations.
        """
        if entry.kind == "model":
            return cost(self.config(entry.kind, entry.name))
        base = self._base_costs.get(entry.kind)
        return base and cost(self.config(entry.kind, entry.name)).minus(base)

    @cached_property
    def _base_costs(self) -> Mapping[str, Cost]:
        return {
            kind: cost(self._composed((*SHAPE, *words))) for kind, words in COMPARED_WITH.items()
        }

    def _composed(self, words: Sequence[str]) -> Config:
        settings = overrides.parse(words, self._config_dirs).values()
        chosen = [assignment for setting in settings for assignment in setting.values]
        return rules.validate(self._composer.compose(chosen))

    def _model(self, name: str) -> Entry:
        """A model: the keys that its yaml sets, and what its comments say."""
        (file,) = (
            path
            for folder in (*self._config_dirs[::-1], folders.conf_dir())
            if (path := folder / "model" / f"{name}.yaml").is_file()
        )
        text = file.read_text(encoding="utf-8")
        comments = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
        said = " ".join(line for line in comments if not line.startswith("@package"))
        return Entry("model", name, name, _words(yaml.safe_load(text)), said, "", "")


def _part(kind: str, name: str, config: Config) -> Entry:
    option = getattr(config, kind)
    cls = instantiate.resolve(option.build["_target_"], f"{kind}.build")
    if kind == "norm":
        text = _placement(config)
    else:
        text = (inspect.getdoc(cls) or "").partition("\n")[0].removesuffix(".").replace("``", "")
    if kind == "init":
        text = f"{text}: {_stds(config)}"
    facts = {fact: said(cls, fact) for fact in ("source", "reported", "combine")}
    return Entry(kind, name, option.label, text, **facts)


def _placement(config: Config) -> str:
    """The equation of each sublayer, the factors on the init, and whether the stack ends in N."""
    make = parts_of(config).placement
    names = BLOCK_SUBLAYERS[config.model.sublayers]
    placements = {name: make(0, name) for name in names}
    texts = {name: equation(placement) for name, placement in placements.items()}
    found = [texts[names[0]]]
    if len(set(texts.values())) > 1:
        found = [f"{name}: {text}" for name, text in texts.items()]
    gains = {role: f"{placements[names[-1]].init_gain(role):.3g}" for role in MATRICES}
    found += [f"std of {roles} times {gain}" for gain, roles in _grouped(gains) if gain != "1"]
    end, norms = ending(placements[names[-1]])
    if len(placements[names[-1]].streams) > 1:
        found.append(f"the head reads {end}")
    elif norms:
        found.append("a norm before the head")
    return "; ".join(found)


def _stds(config: Config) -> str:
    """The std of each role, of the first block and of the last where they differ."""
    init, depth, width = init_of(config), config.depth, config.model.width
    hidden = round(config.model.mlp_ratio * width)
    fans = {"mlp_in": (width, hidden), "mlp_out": (hidden, width)}

    def std(role: str, layer: int) -> float:
        return init.std(Weight.of(role, fans.get(role, (width, width)), layer, depth, 2))

    ends = {role: (std(role, 0), std(role, depth - 1)) for role in MATRICES}
    texts = {
        role: f"{first:.3g}" if first == last else f"{first:.3g} to {last:.3g}"
        for role, (first, last) in ends.items()
    }
    return "; ".join(f"{text} ({roles})" for text, roles in _grouped(texts))


def _grouped(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Each text once, with the names that have it."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, text in texts.items():
        found[text].append(name)
    return [(text, ", ".join(names)) for text, names in found.items()]


def _words(sets: Mapping[str, object], prefix: str = "") -> str:
    """What a yaml sets, as words of a command line."""
    found = []
    for key, value in sets.items():
        if key == "defaults" and isinstance(value, list):
            chosen = [pair for each in value for pair in each.items()]
            found += [f"{k.removeprefix('override /')}={v}" for k, v in chosen]
        elif isinstance(value, dict):
            found.append(_words(value, f"{prefix}{key}."))
        else:
            found.append(f"{prefix}{key}={value}")
    return " ".join(found)
