"""Grids of small panels: the figures of the probe ``token_grad``."""

import pytest

from figure_checks import at_init
from stability.figures import token_gradient, token_weights
from stability.figures.drawing.select import CannotDraw
from synthetic import numbers, recorded, write_run

BOTH = [token_gradient, token_weights]


@pytest.mark.parametrize("module", BOTH)
def test_without_the_probe_the_reason_names_the_knob(token_sweep, module):
    rows = recorded(token_sweep, module)
    without = rows.with_frame(rows.frame[rows.frame["probe"] == "jacobian"])
    with pytest.raises(CannotDraw, match=r"record\.probes=\[token_grad\]"):
        module.data(without)


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize("width", [3.25, 5.5, 6.75])
def test_every_variant_has_its_panels(token_sweep, module, width):
    rows = numbers(token_sweep, module)
    figure = module.draw(rows, width=width, theory=at_init(rows))
    panels = [ax for ax in figure.axes if ax.has_data() and ax.get_xlabel() + ax.get_title() != ""]
    assert figure.get_size_inches()[0] == width
    each = 3 if module is token_gradient else 2
    maps = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
    assert len(maps) == 4 * each and panels


def test_one_run_without_a_varying_axis_is_drawn(tmp_path):
    write_run(tmp_path, {"depth": 2}, steps=1)
    for module in BOTH:
        assert module.draw(numbers(tmp_path, module)).axes
