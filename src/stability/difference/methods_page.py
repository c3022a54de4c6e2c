"""The methods of a sweep as a table: in a terminal, in markdown, in html."""

import base64
import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

import pandas as pd

from stability.difference.methods import Method, Methods, rank
from stability.difference.run_measures import LEAST, RISE, WINDOW
from stability.results.fits import Interval


class Column(NamedTuple):
    """A column of the table."""

    head: str
    cell: Callable[[Method, Sequence[Method]], str]
    """Of a method among those of its setting."""
    doc: str


def number(value: float, digits: int = 3) -> str:
    """A number in few digits; empty where there is none."""
    if math.isnan(value):
        return ""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.{digits}g}"


def interval(found: Interval, digits: int = 3) -> str:
    """Mean and ends: ``2.31 (2.28 to 2.34)``."""
    if math.isnan(found.mean):
        return ""
    mean = f"{found.mean:.{digits}f}"
    if math.isnan(found.low):
        return mean
    return f"{mean} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def place(method: Method, rivals: Sequence[Method]) -> str:
    """The places that intervals allow: ``2 to 5``; empty without intervals or alone."""
    found = rank(method, rivals)
    if found is None or len(rivals) < 2:
        return ""
    best, worst = found
    return str(best) if best == worst else f"{best} to {worst}"


COLUMNS = (
    Column("method", lambda m, _: m.label, ""),
    Column(
        "final loss",
        lambda m, _: interval(m.best.loss),
        "validation loss of the final weights in nats per token, at the best learning rate: mean"
        " over seeds with its 95% interval. It is at most the loss at init, which is also that of a"
        " seed that diverged",
    ),
    Column(
        "place",
        place,
        "the places that the intervals of the final loss allow: of two methods whose intervals"
        " overlap, none is first",
    ),
    Column("best lr", lambda m, _: number(m.best.lr), "the learning rate of the lowest mean loss"),
    Column(
        "sensitivity",
        lambda m, _: interval(m.sensitivity),
        "mean final loss over all learning rates minus that at the best one (arXiv:2309.14322)",
    ),
    Column(
        "diverged",
        lambda m, _: f"{m.diverged} of {m.runs}",
        "runs that ended by a number that is not finite, over all learning rates and seeds",
    ),
    Column(
        "spikes",
        lambda m, _: number(m.spikes_per_10k),
        f"per 10,000 steps, at the best learning rate: losses more than {RISE} above the median of"
        f" the {WINDOW} before them (at least {LEAST}). Losses of small batches do so by chance",
    ),
    Column(
        "growth",
        lambda m, _: number(m.variance_growth),
        "Var(x_L) / Var(x_1) at the last recorded step, median over seeds, like all that follow",
    ),
    Column(
        "uneven",
        lambda m, _: number(m.evenness),
        "largest over smallest norm of the stream's gradient after the blocks 1 to L, all tokens:"
        " 1 where it is even",
    ),
    Column("uneven, median", lambda m, _: number(m.evenness_median), "the same, median token"),
    Column(
        "logit",
        lambda m, _: number(m.largest_logit),
        "largest magnitude of an attention logit at any recorded step and seed",
    ),
    Column(
        "ms a step",
        lambda m, _: number(m.step_ms),
        "what the fastest tenth of the steps stay below, without recording, of the fastest seed; on"
        " a busy machine it is too long, and not for all methods alike",
    ),
    Column("parameters", lambda m, _: number(m.parameters, 4), ""),
)
NOTE = (
    "The best learning rate is chosen on the seeds whose loss is shown. With many methods some"
    " intervals part by chance: an interval holds the mean 95 times in 100."
)


def table(methods: Sequence[Method]) -> pd.DataFrame:
    """The methods of one setting as text, without columns that would be empty."""
    cells = {c.head: [c.cell(m, methods) for m in methods] for c in COLUMNS}
    return pd.DataFrame({head: column for head, column in cells.items() if any(column)})


def _shown(methods: Methods) -> dict[str, pd.DataFrame]:
    return {setting: table(own) for setting, own in methods.settings.items()}


def legend(methods: Methods) -> list[tuple[str, str]]:
    """Head and meaning of each column that is shown."""
    heads = {head for frame in _shown(methods).values() for head in frame.columns}
    return [(c.head, c.doc) for c in COLUMNS if c.head in heads and c.doc]


def text(methods: Methods) -> str:
    """The page for a terminal."""
    runs = sum(method.runs for method in methods.methods)
    lines = [f"{methods.path}: {len(methods.methods)} methods, {runs} runs"]
    lines += [f"note: {remark}" for remark in methods.remarks]
    for setting, frame in _shown(methods).items():
        lines += ["", *([f"{setting}:"] if setting else [])]
        lines += frame.to_string(index=False, justify="left").splitlines()
    lines += ["", *(f"{head}: {doc}" for head, doc in legend(methods)), NOTE]
    return "\n".join(line.rstrip() for line in lines)


def markdown(methods: Methods, picture: str) -> str:
    """The page in markdown; ``picture`` is the figure's address."""
    lines = [f"# Methods of {methods.path.resolve().name}", ""]
    lines += [f"- {fact}" for fact in methods.facts]
    lines.append("")
    for setting, frame in _shown(methods).items():
        rows = [list(frame.columns), ["---"] * len(frame.columns), *frame.to_numpy().tolist()]
        lines += [*([f"## {setting}", ""] if setting else [])]
        lines += ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows]
        lines.append("")
    lines += ["## Final loss by learning rate", "", f"![Final loss]({picture})", ""]
    lines += ["## What the columns say", ""]
    lines += [f"- **{head}**: {doc}." for head, doc in legend(methods)]
    lines += ["", *(f"- {remark}." for remark in methods.remarks), NOTE, ""]
    return "\n".join(lines)


def html(methods: Methods, picture: bytes) -> str:
    """The page in html, with the figure inside."""
    parts = [f"<h1>{escape(methods.path.resolve().name)}</h1>"]
    parts.append(f"<p>{'<br>'.join(map(escape, methods.facts))}</p>")
    for setting, frame in _shown(methods).items():
        parts += [f"<h2>{escape(setting)}</h2>"] if setting else []
        parts.append(frame.to_html(index=False, border=0, escape=True))
    shown = base64.b64encode(picture).decode()
    parts.append(f'<img src="data:image/png;base64,{shown}" width="675">')
    known = [f"<dt>{escape(head)}</dt><dd>{escape(doc)}</dd>" for head, doc in legend(methods)]
    parts += [f"<dl>{''.join(known)}</dl>"]
    parts += [f"<p>{escape(line)}</p>" for line in (*methods.remarks, NOTE)]
    return '<!doctype html><meta charset="utf-8">\n' + "\n".join(parts) + "\n"
