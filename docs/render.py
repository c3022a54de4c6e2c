"""Rewrites the tables in docs/*.md that come from the code: `make docs`. A test runs it dry.

A table stands between `<!-- made from NAME -->` and `<!-- end -->`.
"""

import inspect
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from pathlib import Path

import yaml

from stability import record
from stability.catalogue import command
from stability.catalogue.cost import Cost
from stability.catalogue.entries import Entry
from stability.config import folders, instantiate
from stability.config.knobs import GROUPS, KNOBS, PROBES
from stability.config.names import KINDS, SITES
from stability.parts.placements import equation
from stability.parts.published import said
from stability.results.run_file import RunFile
from stability.results.schema import TABLES
from stability.training import probes

DOCS = Path(__file__).parent
CONF = DOCS.parent / "conf"
MARK = re.compile(r"(<!-- made from (?P<source>\S+) -->\n).*?(<!-- end -->)", re.S)


def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """A markdown table; ``head`` names the columns, separated by bars."""
    names = head.split("|")
    lines = [names, ["---"] * len(names), *rows]
    return "".join(
        "| " + " | ".join(str(c).replace("|", "\\|").replace("``", "`") for c in line) + " |\n"
        for line in lines
    )


def columns(name: str) -> str:
    rows = ((f"`{c.name}`", c.type, "" if c.required else "yes", c.doc) for c in TABLES[name])
    return table("column|type|may be null|meaning", rows)


def names(known: dict[str, str]) -> str:
    return table("name|meaning", ((f"`{name}`", doc) for name, doc in known.items()))


def shown(default: object) -> str:
    """A default as it would stand in a yaml."""
    return "unset" if default is None else f"`{json.dumps(default)}`".replace('"', "")


def knobs() -> str:
    rows = (
        (f"`{k.key}`", shown(k.default), k.unit, k.legal.text, k.doc)
        for k in KNOBS.values()
        if not k.key.endswith((".label", ".order", ".build"))
    )
    return table("key|default|unit|legal|meaning", rows)


def option_name(group: str, name: str) -> str:
    return f"`{name}`" + (" (default)" if folders.defaults()[group] == name else "")


def options(group: str) -> str:
    """The options of a group in the order of legends, with the first line of each class."""
    found = [(yaml.safe_load(p.read_text()), p.stem) for p in (CONF / group).glob("*.yaml")]
    rows = []
    for option, name in sorted(found, key=lambda f: f[0]["order"]):
        cls = instantiate.resolve(option["build"]["_target_"], f"{group}.build")
        doc = (cls.__doc__ or "").strip().splitlines()[0]
        own = {k: v for k, v in option.items() if k not in ("label", "order", "build")}
        if own:
            doc += f" With {', '.join(f'`{group}.{k}={shown(v)[1:]}' for k, v in own.items())}."
        cells = [option_name(group, name), option["label"], doc]
        if group == "norm":
            placement = cls(12, 0, "attn")
            cells[2:] = [f"`{equation(placement)}`", "yes" if placement.final_norm else "", doc]
        rows.append([*cells, said(cls, "source")])
    head = "at L = 12|final norm|" if group == "norm" else ""
    return table(f"option|in legends|{head}what it is|source", rows)


def models() -> str:
    """The options of `model`, the smallest first: the keys that each sets, and what it is for."""
    texts = {p.stem: p.read_text() for p in (CONF / "model").glob("*.yaml")}
    found = {name: yaml.safe_load(text) for name, text in texts.items()}
    for sets in found.values():  # options of other groups follow the model's own keys
        others = {k: v for chosen in sets.get("defaults", []) for k, v in chosen.items()}
        own = {f"model.{key}": value for key, value in sets["model"].items()}
        sets["all"] = own | {k.removeprefix("override /"): v for k, v in others.items()}
    keys = list(dict.fromkeys(key for sets in found.values() for key in sets["all"]))
    rows = []
    for name, sets in sorted(found.items(), key=lambda item: item[1]["model"]["width"]):
        own = (f"`{sets['all'][key]}`" if key in sets["all"] else "" for key in keys)
        what = texts[name].splitlines()[1].removeprefix("# ")
        rows.append([option_name("model", name), f"`{sets['depth']}`", *own, what])
    head = ["option", "`depth`", *(f"`{key}`" for key in keys), "what it is"]
    return table("|".join(head), rows)


def arguments(function: Callable[..., object]) -> str:
    """A function's arguments with their defaults and what its docstring says of them."""
    told = (inspect.getdoc(function) or "").partition("Args:\n")[2].partition("\n\n")[0]
    docs = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", told, re.M))
    rows = []
    for name, parameter in inspect.signature(function).parameters.items():
        given = parameter.default
        default = list(given) if isinstance(given, tuple) else given
        shows = "needed" if given is parameter.empty else shown(default)
        rows.append([f"`{name}`", shows, " ".join(docs[name].split())])
    return table("argument|default|meaning", rows)


def probe_items() -> str:
    """What each probe measures, from the ``ITEMS`` of its module."""
    rows = (
        (f"`{name}`", item.place, item.name, item.value)
        for name in PROBES
        for item in probes.load(name).ITEMS
    )
    return table("probe|layer, sublayer|item|value", rows)


@cache
def catalogued() -> list[tuple[Entry, Cost | None]]:
    """Every entry of the catalogue with what it costs."""
    with command.opened([]) as found:
        return [(entry, found.added(entry)) for entry in found.entries()]


def catalogue(kind: str) -> str:
    """The entries of a kind; a column that would be empty is left out."""
    columns: dict[str, list[str]] = defaultdict(list)
    for entry, cost in catalogued():
        if entry.kind != kind:
            continue
        columns["option"].append(option_name(kind, entry.name))
        columns["equation"].append(f"`{entry.equation}`")
        columns["source"].append(entry.source)
        columns["its authors report"].append(entry.reported)
        columns["combine"].append(entry.combine)
        sign = "" if kind == "model" else "+"
        columns["parameters"].append("" if cost is None else f"{cost.parameters:{sign},}")
        columns["operations a token"].append("" if cost is None else f"{cost.flops:{sign},.0f}")
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    return table("|".join(shown), zip(*shown.values(), strict=True))


SOURCES: dict[str, Callable[[], str]] = {
    **{f"schema.{t}": lambda t=t: columns(t) for t in TABLES},
    "run_file.RunFile": lambda: names({f.name: f.metadata["doc"] for f in fields(RunFile)}),
    "schema.SITES": lambda: names(SITES),
    "schema.KINDS": lambda: names(KINDS),
    "config.KNOBS": knobs,
    "conf/model": models,
    "training.probes": probe_items,
    "stability.record": lambda: arguments(record),
    **{f"catalogue/{g}": lambda g=g: catalogue(g) for g in GROUPS},
    **{f"conf/{g}": lambda g=g: options(g) for g in GROUPS if g != "model"},
}


def render(text: str) -> str:
    """The page with its tables made anew."""
    return MARK.sub(lambda m: m[1] + SOURCES[m["source"]]() + m[3], text)


if __name__ == "__main__":
    for page in sorted(DOCS.glob("*.md")):
        old = page.read_text()
        if (new := render(old)) != old:
            page.write_text(new)
            print(f"rewrote {page.relative_to(DOCS.parent)}")
