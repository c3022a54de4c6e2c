"""The mutation tester: the errors it makes, the tests that must notice them, and its report."""

import pytest

import mutants
from mutations import mutations


def changes(source):
    return [m.change for m in mutations(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["a < b -> a <= b"]),
        ("a == b != c", ["a == b != c -> a != b != c", "a == b != c -> a == b == c"]),
        ("a - b * c", ["a - b * c -> a + b * c", "b * c -> b / c"]),
        ("-a", ["-a -> a"]),
        ("a and b", ["a and b -> a or b"]),
        ("f(a, n=2)", ["f(a, n=2) -> pass", "n=2 -> n=3"]),
        ("x = True", ["x = True -> x = False"]),
        ("x['step']", ["x['step'] -> x['step_']"]),
        ("x.y = a", ["x.y = a -> pass"]),
        ("x += a", ["x += a -> pass", "x += a -> x -= a"]),
        ("x = a if b else c", ["a if b else c -> a if not b else c"]),
        ("x = [a for a in b if c]", [" for a in b if c ->  for a in b if not c"]),
        ("if a:\n    b", ["if a: -> if not a:"]),
        ("if not a:\n    b", ["not a -> a"]),
        (
            "def f(a: int = 1) -> int:\n    return a",
            ["a: int=1 -> a: int=2", "return a -> return None"],
        ),
        ("raise Wrong(2, 'words')", ["raise Wrong(2, 'words') -> pass"]),
    ],
)
def test_each_kind_of_error_is_made(source, expected):
    assert changes(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""Words."""',
        "from a import b",
        "x: Literal['a', 'b'][1]",
        "assert a < b",
        "x = f'{a + b}'",
        "x = 'a' + b",
        "log.info(a + b)",
        "if TYPE_CHECKING:\n    a = 1",
        "def __repr__(self):\n    return a + b",
        "@cached(1)\ndef f() -> None: ...",
    ],
)
def test_no_error_is_made_where_no_test_should_notice_it(source):
    assert not changes(source)


def test_a_mutation_changes_nothing_but_its_node():
    source = "a = 1\nb = a + 1"
    texts = [m.source for m in mutations(source)]
    assert texts == ["a = 2\nb = a + 1", "a = 1\nb = a - 1", "a = 1\nb = a + 2"]


SUMS = """
def total(a, b):
    return a + b


def spare(n):
    return n * 2
"""
COUNTDOWN = """
def countdown(n):
    while n:
        n -= 1
    return True
"""
FILES = {
    "src/stability/__init__.py": "",
    "src/stability/theory/__init__.py": "",
    "src/stability/theory/sums.py": SUMS,
    "src/stability/cli/__init__.py": "",
    "src/stability/cli/countdown.py": COUNTDOWN,
    "tests/conftest.py": "import sys\nsys.path.insert(0, __file__.removesuffix('/conftest.py'))\n",
    "tests/law.py": "from stability.theory.sums import total\n",
    "tests/theory/test_sums.py": "from law import total\ndef test(): assert total(2, 1) == 3\n",
    "tests/cli/test_countdown.py": (
        "from stability.cli.countdown import countdown\ndef test(): assert countdown(3) is True\n"
    ),
}
MORE = {
    "src/stability/theory/found.py": "",
    "src/stability/theory/on_sums.py": "from stability.theory.sums import total\n",
    "tests/a/test_direct.py": "from stability.theory import sums\n",
    "tests/a/test_far.py": "import stability.theory.on_sums\n",
    "tests/a/test_apart.py": "",
    "tests/a/test_found.py": "from stability import theory\n",
}


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def checkout(tmp_path):
    return write(tmp_path / "checkout", FILES)


def test_the_nearest_tests_carry_the_name_or_import_over_the_fewest_modules(checkout):
    nearest = mutants.Imports(write(checkout, MORE)).nearest("theory/sums.py")
    assert nearest == ["tests/theory/test_sums.py", "tests/a/test_direct.py", "tests/a/test_far.py"]


def test_a_module_that_its_package_finds_by_looking_has_the_tests_of_the_package(checkout):
    nearest = mutants.Imports(write(checkout, MORE)).nearest("theory/found.py")
    assert nearest[0] == "tests/a/test_found.py"
    assert "tests/a/test_direct.py" in nearest
    assert "tests/a/test_apart.py" not in nearest


def test_tested_errors_are_killed_and_the_others_reported(checkout, capsys):
    assert mutants.main(["--only", "theory/sums.py"], checkout) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        "1/5 theory/sums.py:3: return a + b -> return None: killed by tests/theory/test_sums.py"
        in lines
    )
    assert "2/5 theory/sums.py:3: a + b -> a - b: killed by tests/theory/test_sums.py" in lines
    assert "numbers, verdicts, identities, files      40% of    5 killed" in lines
    survivors = [line for line in lines if line.startswith("src/stability/")]
    assert survivors == [
        "src/stability/theory/sums.py:7: return n * 2 -> return None",
        "src/stability/theory/sums.py:7: n * 2 -> n / 2",
        "src/stability/theory/sums.py:7: n * 2 -> n * 3",
    ]


def test_an_endless_loop_is_killed_and_the_checkout_stays_as_it_is(checkout, capsys, monkeypatch):
    monkeypatch.setattr(mutants, "TIMES", 1)
    monkeypatch.setattr(mutants, "SECONDS", 1)
    endless = ["--only", "cli/countdown.py:4", "--count", "1", "--at-least", "100"]
    assert mutants.main(endless, checkout) == 0
    assert "1/1 cli/countdown.py:4: " in capsys.readouterr().out
    assert {name: (checkout / name).read_text() for name in FILES} == FILES


def test_fewer_than_wanted_end_with_1(checkout):
    assert mutants.main(["--only", "theory/sums.py:7", "--count", "1", "--at-least", "1"], checkout)


def test_a_test_that_fails_without_an_error_cannot_judge(checkout):
    (checkout / "tests/theory/test_sums.py").write_text("from law import total\n1 / 0\n")
    with pytest.raises(SystemExit, match=r"test_sums\.py fails without any error"):
        mutants.main(["--only", "theory/sums.py", "--count", "1"], checkout)


def test_a_sample_depends_on_its_seed_alone():
    sources = {"theory/sums.py": SUMS, "cli/countdown.py": COUNTDOWN}
    drawn = [[m.place for m in mutants.sample(sources, [""], 4, seed)] for seed in (0, 0, 1, 2)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2] or drawn[0] != drawn[3]
