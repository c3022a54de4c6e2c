"""Lines: marks, crosses, legends, notes, theory."""

from pathlib import Path

from figure_checks import legend_texts
from stability.figures import gradient, variance
from stability.figures.drawing import lines, style
from synthetic import numbers, recorded, write_run


def test_the_cross_marks_the_block_that_was_first_not_finite_in_the_order_of_execution(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, {"depth": 6}, bad_step=20, bad_layer=2)
    for module, first in ((variance, 3), (gradient, 6)):
        panel = module.draw(numbers(tmp_path, module)).axes[-1]
        (cross,) = [line for line in panel.lines if line.get_gid() == "x"]
        assert cross.get_xdata() == [first]


def test_legends_name_what_varies_and_nothing_else(sweep: Path, tmp_path: Path) -> None:
    assert set(legend_texts(variance.draw(numbers(sweep, variance)))) >= {
        "Pre-LN",
        "Post-LN",
        "L = 2",
    }
    write_run(tmp_path, {"norm": "pre"})
    assert legend_texts(variance.draw(numbers(tmp_path, variance))) == ["embedding (hollow)"]


def test_a_figure_of_one_step_says_which(tmp_path: Path) -> None:
    write_run(tmp_path, {"norm": "pre"}, steps=1)
    assert "At init." in variance.draw(numbers(tmp_path, variance)).texts[-1].get_text()


def test_zeros_are_shown_at_the_edge_of_a_log_axis(tmp_path: Path) -> None:
    write_run(tmp_path, {"depth": 3}, steps=1)
    rows = recorded(tmp_path, gradient)
    frame = rows.frame
    vanished = frame.assign(rms=frame["rms"].where(frame["layer"] != 0, 0.0))
    found = gradient.data(rows.with_frame(vanished))
    point = found.frame[(found.frame["x"] == 1) & (found.frame["quantity"] == "all tokens")]
    assert point["value"].item() == 0
    assert "exactly 0" in legend_texts(gradient.draw(found))


def test_a_theory_is_drawn_dashed_through_the_points(sweep: Path) -> None:
    rows = numbers(sweep, variance)
    value = rows.frame["value"]
    exact = rows.with_frame(rows.frame.assign(low=value, high=value))
    bare, with_theory = variance.draw(rows), variance.draw(rows, theory=exact)
    assert len(with_theory.axes[0].lines) == len(bare.axes[0].lines) + 4
    assert lines.FINITE not in legend_texts(with_theory)
    wide = rows.with_frame(rows.frame.assign(low=value / 2, high=2 * value))
    bounded = variance.draw(rows, theory=wide)
    assert len(bounded.axes[0].lines) == len(bare.axes[0].lines) + 3 * 4
    assert lines.FINITE in legend_texts(bounded)


def test_a_theory_has_the_colour_of_its_variant_and_is_alone_with_its_dashes(sweep: Path) -> None:
    rows = numbers(sweep, variance)
    panel = variance.draw(rows, theory=rows).axes[0]
    dashed = [line for line in panel.lines if line.get_gid() == lines.THEORY]
    colours = style.colours(rows, "norm")
    assert {line.get_color() for line in dashed} == {style.darker(c) for c in colours.values()}
    measured = [line for line in panel.lines if line.get_gid() is None]
    assert {line.get_linestyle() for line in measured} == {"-"}
    assert len({line.get_marker() for line in measured}) == 2  # depths


def test_one_seed_beside_a_theory_without_a_range_says_that_there_is_none(tmp_path: Path) -> None:
    write_run(tmp_path, {"norm": "pre"}, steps=1)
    rows = numbers(tmp_path, variance)
    said = "how far a net of this width may lie from the theory is not derived"
    assert said in variance.draw(rows, theory=rows).texts[-1].get_text()
    value = rows.frame["value"]
    wide = rows.with_frame(rows.frame.assign(low=value / 2, high=2 * value))
    assert said not in variance.draw(rows, theory=wide).texts[-1].get_text()
    assert said not in variance.draw(rows).texts[-1].get_text()
