"""Every figure is found, states what it needs and survives any numbers."""

import ast
import math
import re
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from figure_checks import legend_texts
from picture_text import SWEEPS, TEXTS, differences, drawn
from stability import figures
from stability.figures import gradient
from stability.figures.drawing.scales import log_limits
from stability.figures.drawing.select import CannotDraw
from stability.results.sweep_rows import SweepRows
from synthetic import numbers, recorded, write_run, write_sweep

ALL = figures.modules()


def test_figures_are_the_files_of_the_package_and_nothing_else() -> None:
    files = Path(figures.__path__[0]).glob("*.py")
    assert list(ALL) == sorted(file.stem for file in files if file.stem != "__init__")
    assert {"variance", "token_weights"} <= set(ALL) and "drawing" not in ALL


@pytest.mark.parametrize("name", ALL)
def test_every_figure_states_what_it_needs(name: str) -> None:
    module = ALL[name]
    assert module.__doc__ and module.data.__doc__ and module.draw.__doc__
    assert module.TABLE in ("layers", "steps", "runs", "probes") and module.STEPS in ("ends", "all")
    assert "run" in module.COLUMNS and "status" in module.COLUMNS


CASES = {
    "one layer, nothing finite from step 0": lambda d: write_run(
        d, {"norm": "none", "depth": 1}, bad_step=0
    ),
    "a run without rows, other data": lambda d: [
        write_run(d, {"norm": "pre", "depth": 1}, steps=1),
        write_run(d, {"norm": "post"}, rows=False, status="running", data_hash="b" * 64),
    ],
    "a half-full grid over another axis": lambda d: [
        write_run(d, {"train.lr": lr, "depth": depth, "dtype": t}, steps=3, every=1)
        for lr, depth, t in [(1e-3, 2, "fp16"), (0.01, 3, "fp32"), (0.01, 2, "amp_bf16")]
    ],
    "diverged at different steps": lambda d: [
        write_run(d, {"seed": s, "depth": 2}, bad_step=5 * s + 1) for s in range(3)
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_any_sweep_is_drawn_or_refused_with_a_reason(tmp_path: Path, case: str) -> None:
    CASES[case](tmp_path)
    drawn = 0
    for module in ALL.values():
        try:
            figure = module.draw(numbers(tmp_path, module), width=5.5)
        except CannotDraw as reason:
            assert str(reason) and "\n" not in str(reason)
            continue
        assert figure.get_size_inches()[0] == 5.5
        drawn += 1
    assert drawn >= 5


@pytest.mark.parametrize("name", SWEEPS)
def test_every_figure_shows_what_it_showed(tmp_path: Path, name: str) -> None:
    """Every scale, limit, colour, mark, point and word; `picture_text` accepts a change."""
    SWEEPS[name](tmp_path)
    kept = {file.stem: file.read_text("utf-8") for file in (TEXTS / name).glob("*.txt")}
    assert sorted(kept) == list(ALL)
    for figure, text in kept.items():
        assert not differences(text, drawn(tmp_path, figure)), figure


STRANGE = [0.0, math.nan, math.inf, -math.inf, 1e-320, 1e300, 1.0]


def poison(frame: pd.DataFrame, first: int) -> pd.DataFrame:
    """The frame with every statistic replaced by strange numbers in turn."""
    poisoned = frame.copy()
    strange = np.resize(np.roll(STRANGE, -first), len(frame))
    for column in poisoned.select_dtypes("float64"):
        if not column.startswith(("data.", "finfo.", "model.", "train.")):
            poisoned[column] = strange
    return poisoned


@pytest.mark.parametrize("name", ALL)
def test_no_number_breaks_a_figure(tmp_path: Path, name: str) -> None:
    module = ALL[name]
    more = {"train.lr": [1e-3, 1e-2]} if name == "learning_rate" else {}
    write_sweep(tmp_path, {"depth": [2, 3], **more}, steps=3, every=2)
    rows = recorded(tmp_path, module)
    found = module.data(rows.with_frame(poison(rows.frame, 0)))
    takes = "theory" in module.draw.__wrapped__.__code__.co_varnames
    module.draw(found, width=3.25, **({"theory": found} if takes else {}))
    for first, value in enumerate(STRANGE):
        with suppress(CannotDraw):  # it may say that nothing is left to draw
            module.data(rows.with_frame(poison(rows.frame, first)))
        assert log_limits([value])[0] < log_limits([value])[1]


def test_a_figure_can_be_drawn_from_its_csv(sweep: Path, tmp_path: Path) -> None:
    numbers(sweep, gradient).frame.to_csv(tmp_path / "gradient.csv", index=False)
    again = pd.read_csv(tmp_path / "gradient.csv")
    assert {"pre", "post"} <= set(legend_texts(gradient.draw(SweepRows.from_columns(again))))


def test_the_figure_that_contributing_shows_is_drawn(sweep: Path) -> None:
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    (source,) = re.findall(r"`figures/underflow\.py`:\n\n```python\n(.+?)```", page, re.DOTALL)
    module = ModuleType("underflow")
    exec(compile(source, "underflow.py", "exec"), module.__dict__)
    rows = recorded(sweep, module)
    half = rows.with_frame(rows.frame.assign(zeros=rows.frame["numel"] // 2))
    found = module.data(half)
    assert set(found.frame["value"]) == {0.5}
    assert set(found.frame["sublayer"]) == {"attn", "mlp"}
    assert "Pre-LN" in legend_texts(module.draw(found))


def test_only_style_states_colours() -> None:
    for path in Path(figures.__path__[0]).rglob("*.py"):
        if path.name != "style.py":
            words = [
                n.value
                for n in ast.walk(ast.parse(path.read_text()))
                if isinstance(n, ast.Constant)
            ]
            assert not [w for w in words if isinstance(w, str) and w.startswith("#")], path.name
