"""The command: its files, its pages, and what it refuses."""

import json
import re

import pytest
import yaml

from law_sweeps import EXPONENT, LINEAR, node_of, write_sweep
from stability.claims import command, pages
from stability.claims.verdict import BY_CONSTRUCTION, HOLDS


def test_the_command_writes_every_form_of_the_table(tmp_path, capsys):
    mine = tmp_path / "mine"
    (mine / "experiments").mkdir(parents=True)
    node = node_of({**EXPONENT, "name": "GPT"}, statement="it | grows", figure="variance")
    (mine / "experiments" / "my_claim.yaml").write_text(yaml.safe_dump({"claim": node}))
    page = mine / "experiments" / "my_claim.md"
    page.write_text(f"# Mine\n\n{pages.START}\nbefore\n{pages.END}\n\nafter\n")
    write_sweep(tmp_path / "out", "my_claim", LINEAR)
    asked = ["--config-dir", str(mine), "--claims", "my-claim", "--no-theory", "--pages"]
    there = str(tmp_path / "out")
    assert command.main([there, *asked, "--out", there]) == 0
    assert "holds" in capsys.readouterr().out
    (fact,) = json.loads((tmp_path / "out" / "claims.json").read_text())
    assert (fact["claim"], fact["verdict"]) == ("my-claim", HOLDS)
    assert fact["findings"][0]["value"] == pytest.approx(1, abs=0.01)
    assert "my-claim,GPT" in (tmp_path / "out" / "claims.csv").read_text()
    assert "| [my-claim](#my-claim) | holds |" in (tmp_path / "out" / "claims.md").read_text()
    filled = page.read_text()
    assert "**holds**" in filled
    assert "before" not in filled
    assert filled.endswith("\n\nafter\n")


def test_a_choice_of_claims_leaves_the_files_of_all_of_them_alone(tmp_path, capsys):
    write_sweep(tmp_path / "out", "pre_forward_linear", LINEAR)
    there, names = str(tmp_path / "out"), [f"claims.{form}" for form in ("csv", "json", "md")]
    for choice in (["--claims", "pre-forward-linear"], ["--stage", "init"]):
        assert command.main([there, "--no-theory", *choice]) == 0
        assert "pre-forward-linear" in capsys.readouterr().out
        assert not (tmp_path / "out" / names[0]).exists()
        assert command.main([there, "--no-theory", *choice, "--out", str(tmp_path / "own")]) == 0
        assert sorted(p.name for p in (tmp_path / "own").iterdir()) == names
    assert command.main([there, "--no-theory"]) == 0
    assert all((tmp_path / "out" / name).exists() for name in names)


def test_a_report_keeps_the_prose_and_shows_each_claim_with_its_figure(tmp_path, capsys):
    write_sweep(tmp_path / "out", "pre_forward_linear", LINEAR)
    page = tmp_path / "page.md"
    page.write_text(f"# Mine\n\n{pages.START}\nbefore\n{pages.END}\n\nafter\n")
    asked = ["--claims", "pre-forward-linear,two-residual-adds", "--no-theory"]
    assert command.main([str(tmp_path / "out"), *asked, "--report", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("# Mine\n") and text.endswith("\n\nafter\n") and "before" not in text
    assert "### two-residual-adds" in text and f"**{BY_CONSTRUCTION}**" in text
    shown = re.findall(r"!\[.*\]\((.*)\)", text)
    assert shown == ["page/pre_forward_linear.png"] and (tmp_path / shown[0]).stat().st_size > 1000
    for words in (
        "no place",
        f"{pages.START}\nmy prose\n",
        f"{pages.END}\n{pages.START}\nprose",
    ):
        page.write_text(words)
        assert pages.fill(words, "new\n") == words
        assert command.main([str(tmp_path / "out"), *asked, "--report", str(page)]) == 2
        assert page.read_text() == words and "--report" in capsys.readouterr().err
    page.write_text(f"### Mine\n\n**Bold** words.\n\n{pages.START}\n{pages.END}\n")
    assert command.main([str(tmp_path / "out"), *asked, "--report", str(page)]) == 0
    assert page.read_text().startswith("### Mine\n\n**Bold** words.")


def test_a_report_is_not_replaced_by_one_with_fewer_verdicts(tmp_path, capsys):
    write_sweep(tmp_path / "out", "pre_forward_linear", LINEAR)
    page, out = tmp_path / "page.md", str(tmp_path / "out")
    page.write_text(f"{pages.START}\n{pages.END}\n")
    asked = ["--no-theory", "--report", str(page)]
    assert command.main([out, "--claims", "pre-forward-linear,two-residual-adds", *asked]) == 0
    before = page.read_text().replace("**not measured**", "**holds**")
    page.write_text(before)
    write_sweep(tmp_path / "empty", "another", LINEAR)
    for words in ([out, "--claims", "two-residual-adds"], [str(tmp_path / "empty")]):
        assert command.main([*words, *asked]) == 2
        assert "would be lost: pre-forward-linear" in capsys.readouterr().err
        assert page.read_text() == before
    page.write_text(before.replace("**holds**", "**not measured**"))
    assert command.main([out, *asked]) == 0
    assert page.read_text().count("### ") > before.count("### ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "does not exist"),
        ([".", "--claims", "nope"], "--claims nope"),
        ([".", "--claims", "ln-jacobian", "--stage", "training"], "is a claim about init"),
        ([".", "--config-dir", "/nowhere"], "--config-dir /nowhere: is not a folder"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, words, message):
    path = str(tmp_path) if words[0] == "." else str(tmp_path / words[0])
    assert command.main([path, *words[1:]]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("key", ["nowhere", "init.build.nowhere"])
def test_a_claim_that_cannot_be_evaluated_as_written_is_one_line(tmp_path, capsys, key):
    mine = tmp_path / "mine" / "experiments"
    mine.mkdir(parents=True)
    node = node_of({**EXPONENT, "over": [key]})
    (mine / "my_claim.yaml").write_text(yaml.safe_dump({"claim": node}))
    write_sweep(tmp_path / "out", "my_claim", LINEAR)
    asked = ["--config-dir", str(mine.parent), "--claims", "my-claim"]
    assert command.main([str(tmp_path / "out"), *asked]) == 2
    error = capsys.readouterr().err
    assert "my_claim" in error and key in error and error.count("\n") == 1


def test_pages_keep_their_results_where_nothing_has_been_run(tmp_path):
    mine = tmp_path / "mine" / "experiments"
    mine.mkdir(parents=True)
    node = node_of(EXPONENT)
    (mine / "my_claim.yaml").write_text(yaml.safe_dump({"claim": node}))
    page = mine / "my_claim.md"
    page.write_text(f"{pages.START}\nmeasured\n{pages.END}\n")
    write_sweep(tmp_path / "out", "another", LINEAR)
    asked = ["--config-dir", str(mine.parent), "--claims", "my-claim", "--pages"]
    assert command.main([str(tmp_path / "out"), *asked]) == 0
    assert "measured\n" in page.read_text()


@pytest.fixture
def own(tmp_path):
    """A folder with three experiments: at init, in training, and at another size."""
    nodes = {
        "a_claim": node_of(EXPONENT, {**EXPONENT, "name": "b", "runs": "shared"}, figure="heat"),
        "b_claim": node_of({**EXPONENT, "runs": "shared"}, stage="training", figure="growth"),
        "a_claim_gpu": {"like": "a_claim"},
    }
    folder = tmp_path / "own" / "experiments"
    folder.mkdir(parents=True)
    for name, node in nodes.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"claim": node}))
    return folder


def lines_of(capsys, folder, *words):
    assert command.main(["--config-dir", str(folder.parent), *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_sweeps_that_claims_need_are_listed_with_their_figures(own, capsys):
    found = lines_of(capsys, own, "--sweeps")
    assert {"a_claim heat", "shared growth,heat"} <= set(found)
    assert not [line for line in found if line.startswith("a_claim_gpu")]
    assert lines_of(capsys, own, "--sweeps", "--claims", "b-claim,a_claim") == [
        "shared growth,heat", "a_claim heat",
    ]  # fmt: skip
    found = lines_of(capsys, own, "--sweeps", "--stage", "training")
    assert "shared growth" in found
    assert not [line for line in found if line.startswith("a_claim")]


def test_a_claim_at_another_size_is_shown_where_it_was_run_or_asked_for(own, capsys, tmp_path):
    write_sweep(tmp_path / "out", "a_claim", LINEAR)
    words = [str(tmp_path / "out"), "--no-theory"]
    assert "a-claim-gpu" not in "\n".join(lines_of(capsys, own, *words))
    asked = lines_of(capsys, own, *words, "--claims", "a-claim-gpu")
    assert "experiments=a_claim_gpu" in "\n".join(asked)
    write_sweep(tmp_path / "out", "a_claim_gpu", LINEAR)
    assert "a-claim-gpu" in "\n".join(lines_of(capsys, own, *words))


def test_two_sweeps_of_one_name_are_refused(tmp_path, capsys):
    for folder in ("one", "two"):
        write_sweep(tmp_path / folder, "q", LINEAR, seeds=[0])
    assert command.main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "two sweeps of one name" in error and error.count("\n") == 1


def test_a_damaged_run_is_left_out_and_named(own, tmp_path, capsys):
    sweep = write_sweep(tmp_path / "out", "a_claim", LINEAR)
    damaged = sorted(sweep.glob("run_*"))[0]
    (damaged / "run.json").write_text("{")
    found = lines_of(capsys, own, str(tmp_path / "out"), "--claims", "a-claim", "--no-theory")
    assert [line for line in found if f"warning: a_claim: left out {damaged.name}" in line]


def test_a_page_that_cannot_be_written_is_one_line(own, tmp_path, capsys):
    write_sweep(tmp_path / "out", "a_claim", LINEAR)
    (tmp_path / "file").write_text("")
    words = [str(tmp_path / "out"), "--claims", "a-claim", "--no-theory"]
    asked = ["--config-dir", str(own.parent), "--out", str(tmp_path / "file" / "below")]
    assert command.main([*words, *asked]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error and error.count("\n") == 1


def test_a_bug_in_a_measure_is_no_bad_claim(own, tmp_path, monkeypatch):
    write_sweep(tmp_path / "out", "a_claim", LINEAR)
    monkeypatch.setattr("stability.claims.measures.growth.slope", lambda x, y: {}["bug"])
    with pytest.raises(KeyError, match="bug"):
        command.main(
            [str(tmp_path / "out"), "--config-dir", str(own.parent), "--claims", "a-claim"]
        )


def test_a_report_that_is_not_utf_8_is_refused(tmp_path, capsys):
    write_sweep(tmp_path / "out", "pre_forward_linear", LINEAR)
    page = tmp_path / "page.md"
    page.write_bytes(b"\xff" + pages.START.encode())
    assert command.main([str(tmp_path / "out"), "--report", str(page)]) == 2
    assert capsys.readouterr().err == f"stability.claims: --report {page}: is not UTF-8 text\n"
