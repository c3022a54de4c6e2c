"""What the notes below a figure say of the nets."""

from pathlib import Path

import pytest

from stability.figures.drawing.notes import caption
from stability.results.frames import sweep_rows
from synthetic import write_run, write_sweep


def test_the_caption_names_width_depths_init_steps_and_seeds(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"depth": [2, 4, 6], "seed": [0, 1]}, steps=5)
    said = caption(sweep_rows(tmp_path, "runs"))
    assert said.startswith("nets: d = 64, L = 2, 4 and 6, init Xavier, 5 steps, 2 seeds")


@pytest.mark.parametrize(
    ("learned", "said"),
    [
        ([True, True], "after 5 steps, learned"),
        ([False, False], "after 5 steps, not yet learned"),
        ([True, False], "after 5 steps, 1 of 2 runs not yet learned"),
        ([None, None], "1 seed"),
    ],
)
def test_the_caption_says_whether_the_nets_have_learned(
    tmp_path: Path, learned: list[bool | None], said: str
) -> None:
    write_sweep(tmp_path, {"norm": ["pre", "post"]}, steps=5)
    runs = sweep_rows(tmp_path, "runs")
    assert caption(runs.with_frame(runs.frame.assign(learned=learned))).endswith(said)


def test_a_net_at_init_has_no_steps(tmp_path: Path) -> None:
    write_run(tmp_path, {"depth": 2}, steps=1)
    runs = sweep_rows(tmp_path, "runs")
    said = caption(runs.with_frame(runs.frame.assign(steps_done=0)))
    assert said == "nets: d = 64, L = 2, init Xavier, at init, 1 seed"


def test_a_recorded_model_is_called_by_its_name(tmp_path: Path) -> None:
    write_run(tmp_path, {"depth": 2}, steps=3)
    runs = sweep_rows(tmp_path, "runs")
    frame = runs.frame.assign(label="GPT-2", init=None, **{"model.width": None, "depth": None})
    assert caption(runs.with_frame(frame)).startswith("nets: GPT-2, 3 steps, 1 seed")
