"""index.html: what stands on it, and what a browser makes of it."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from stability.plot import main
from stability.web.sweep_page import PAGE_FILE
from synthetic import write_run, write_sweep

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture
def sweep(tmp_path):
    """Pre-LN and Post-LN at two depths; one run diverged, one failed."""
    folder = tmp_path / "s"
    write_sweep(folder, {"norm": ["pre", "post"], "depth": [2, 11]}, steps=21)
    write_run(folder, {"norm": "none", "depth": 2}, steps=21, bad_step=20)
    failed = write_run(folder, {"norm": "peri", "depth": 2}, steps=21, status="failed")
    change(failed, error="<b>disk</b> full", outcome="failed")
    (failed / "run.log").write_text("what happened")
    return folder


def change(run, **facts):
    state = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(state | facts))


def drawn(sweep, *words):
    assert main([str(sweep), "--no-theory", "--format", "png", *words]) == 0
    return (sweep / "figures" / PAGE_FILE).read_text()


def body(page):
    return unescape(re.sub(r"<[^>]+>", " ", page.partition("<script")[0]))


def data(page):
    return json.loads(re.search(r'id="figures">(.*?)</script>', page, re.S)[1])


def pictures(page):
    return re.findall(r'<h3 id="(\w+)">', page)


def test_the_page_has_runs_figures_and_what_broke(sweep, capsys):
    page = drawn(sweep, "--figures", "variance,loss")
    text = body(page)
    for run in sweep.glob("*_*"):
        assert run.name in text
    assert pictures(page) == ["loss", "variance"]
    assert "validation loss" in text and "variance growth" in text
    (broken,) = sweep.glob("norm-none*")
    assert f"python -m stability.replay {broken}" in text
    assert "index.html" in capsys.readouterr().out


def test_texts_from_runs_are_escaped(sweep):
    page = drawn(sweep, "--figures", "loss")
    assert "<b>disk</b>" not in page and "&lt;b&gt;disk&lt;/b&gt; full" in page


def test_the_log_of_a_failed_run_is_linked_from_the_page(sweep):
    page = drawn(sweep, "--figures", "loss")
    (link,) = re.findall(r'<a href="([^"]+)">log</a>', page)
    assert (sweep / "figures" / link).read_text() == "what happened"


def test_the_page_needs_no_network(sweep):
    page = drawn(sweep, "--figures", "variance")
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert links and not [link for link in links if re.match(r"(https?:)?//", link)]


def test_figures_that_are_not_drawn_again_stay_while_their_files_do(sweep):
    first = drawn(sweep, "--figures", "variance,loss,gradient")
    (sweep / "figures" / "gradient.png").unlink()
    second = drawn(sweep, "--figures", "loss")
    assert pictures(second) == ["loss", "variance"]
    of = [re.search(r'alt="Variance[^"]*" src="([^"]*)"', page)[1] for page in (first, second)]
    assert of[0] == of[1] and len(of[0]) > 1000
    before, after = data(first), data(second)
    assert [f for f in before if f["name"] == "variance"] == [after[1]]


def test_a_damaged_page_is_written_anew(sweep):
    drawn(sweep, "--figures", "loss")
    (sweep / "figures" / PAGE_FILE).write_bytes(b"\xff torn")
    assert pictures(drawn(sweep, "--figures", "variance")) == ["variance"]


def test_a_sweep_of_an_experiment_has_its_verdicts(tmp_path):
    folder = tmp_path / "unit_variance_init"
    write_run(folder, {"norm": "pre", "seed": 0}, steps=1)
    text = body(drawn(folder, "--figures", "variance"))
    assert "Verdicts" in text and "unit-variance-init" in text and "not measured" in text


def test_an_ordinary_sweep_has_no_verdicts(sweep):
    assert "Verdicts" not in body(drawn(sweep, "--figures", "loss"))


def dump(path, tmp_path, fragment=""):
    """What a browser makes of a page, and what it complains of."""
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
            "--virtual-time-budget=3000", "--window-size=1000,800", "--dump-dom",
            f"file://{path}{fragment}",
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


POINT = """<script>
const picture = document.querySelector(".picture"), box = picture.getBoundingClientRect();
const [x, y] = figures[0].panels[0].points[3];
picture.dispatchEvent(new MouseEvent("mousemove",
  {clientX: box.left + x * box.width + 2, clientY: box.top + y * box.height - 2}));
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_in_a_browser_rows_are_sorted_and_values_shown(sweep, tmp_path):
    page = drawn(sweep, "--figures", "variance")
    path = sweep / "figures" / PAGE_FILE
    dom, complaints = dump(path, tmp_path, "#sort=2,descending")
    assert not complaints
    table = re.search(r"<tbody>(.*?)</tbody>", dom, re.S)[1]
    rows = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in table.split("</tr>")[:-1]]
    assert [row[2] for row in rows] == ["11", "11", "2", "2", "2", "2"]  # numbers, not texts
    assert 'aria-sort="descending"' in dom
    probe = path.with_name("probe.html")
    probe.write_text(page.replace("</body>", f"{POINT}</body>"))
    dom, complaints = dump(probe, tmp_path)
    assert not complaints
    tip = re.search(r'<div id="tip"[^>]*>([^<]*)</div>', dom)[1]
    _, _, _, y, name, *_ = data(page)[0]["panels"][0]["points"][3]
    assert tip.splitlines()[0] == name != ""
    assert float(tip.splitlines()[2].split(": ")[1]) == pytest.approx(y, rel=1e-3)
