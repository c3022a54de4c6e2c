"""What a config may build, and how the rest is refused."""

import sys

import pytest

from stability.config import instantiate
from stability.config.knobs import ConfigError
from stability.parts.inits import Normal
from stability.parts.placements import DeepNorm


@pytest.fixture(autouse=True)
def no_trace(monkeypatch):
    """Whatever a test allows or puts on the path is forgotten after it."""
    monkeypatch.setattr(instantiate, "_allowed", {"stability"})
    monkeypatch.setattr(sys, "path", list(sys.path))


def refusal(node, *args):
    with pytest.raises(ConfigError) as refused:
        instantiate.build(node, "norm.build", *args)
    return str(refused.value)


def test_builds_the_class_with_what_the_program_adds_first():
    placement = instantiate.build(
        {"_target_": "stability.parts.placements.DeepNorm"}, "norm.build", 8, 1, "attn"
    )
    assert isinstance(placement, DeepNorm)
    assert (placement.depth, placement.layer, placement.sublayer) == (8, 1, "attn")


def test_builds_the_class_with_the_arguments_of_the_yaml():
    node = {"_target_": "stability.parts.inits.Normal", "std": 0.5}
    assert instantiate.build(node, "init.build").value == 0.5
    assert instantiate.resolve("stability.parts.inits.Normal", "init.build") is Normal


@pytest.mark.parametrize("target", ["os.system", "subprocess.Popen", "stability_evil.X", "Pre", ""])
def test_a_foreign_module_is_refused_and_the_way_to_allow_it_named(target):
    message = refusal({"_target_": target})
    assert "norm.build._target_" in message
    assert "allow=[MODULE]" in message


@pytest.mark.parametrize("target", [3, None, ["stability.parts.placements.Pre"]])
def test_a_target_that_is_no_text_is_refused(target):
    assert "norm.build._target_" in refusal({"_target_": target})


def test_a_foreign_module_is_not_even_imported():
    refusal({"_target_": "antigravity.Anything"})
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("stability.parts.placements.Nowhere", "cannot be imported"),
        ("stability.nowhere.Pre", "cannot be imported"),
        ("stability.config.rules.validate", "must name a class"),
        ("stability.config.names.SITES", "must name a class"),
    ],
)
def test_what_is_no_class_of_the_package_is_refused(target, why):
    assert why in refusal({"_target_": target})


def test_a_name_reached_through_a_module_is_not_a_way_out():
    # `stability.config.instantiate.sys` is the sys module: its attributes are not the package's.
    assert "cannot be imported" in refusal({"_target_": "stability.config.instantiate.sys.exit"})


def test_a_class_that_a_module_only_imported_is_refused():
    message = refusal({"_target_": "stability.config.instantiate.Path"})
    assert "is pathlib" in message
    assert "modules allowed: stability" in message


def test_an_unknown_argument_is_refused_and_the_known_ones_named():
    message = refusal({"_target_": "stability.parts.inits.Normal", "stdd": 0.1})
    assert "norm.build.stdd" in message
    assert "['std']" in message


def test_a_missing_argument_is_refused():
    assert "std" in refusal({"_target_": "stability.parts.inits.Normal"})


@pytest.mark.parametrize("value", ["a lot", None, [0.1], True])
def test_an_argument_of_the_wrong_type_is_refused(value):
    message = refusal({"_target_": "stability.parts.inits.Normal", "std": value})
    assert message == f"norm.build.std={value}: must be of type float"


def test_an_integer_will_do_for_a_float():
    node = {"_target_": "stability.parts.inits.Normal", "std": 1}
    assert instantiate.build(node, "init.build").value == 1


def test_a_value_that_the_class_refuses_is_refused_with_its_words():
    message = refusal({"_target_": "stability.parts.inits.Normal", "std": -1.0})
    assert "std must be >= 0" in message


def test_an_argument_that_the_program_gives_cannot_be_given_twice():
    node = {"_target_": "stability.parts.placements.Pre", "depth": 3}
    assert "depth" in refusal(node, 6, 0, "attn")


def test_a_trusted_folder_lends_its_modules_and_packages(tmp_path):
    (tmp_path / "mine_x1.py").write_text("class Norm:\n    pass\n")
    (tmp_path / "pack_x1").mkdir()
    (tmp_path / "pack_x1" / "__init__.py").write_text("class Norm:\n    pass\n")
    for target in ("mine_x1.Norm", "pack_x1.Norm"):
        assert not instantiate.is_allowed(target)
    instantiate.trust(tmp_path)
    for target in ("mine_x1.Norm", "pack_x1.Norm"):
        assert instantiate.build({"_target_": target}, "norm.build").__class__.__name__ == "Norm"
    assert not instantiate.is_allowed("os.system")


def test_a_folder_is_trusted_once_however_often_it_is_named(tmp_path):
    instantiate.trust(tmp_path)
    instantiate.trust(str(tmp_path))
    assert sys.path.count(str(tmp_path)) == 1


def test_allowing_a_package_allows_what_lies_below_it_and_nothing_beside_it():
    instantiate.allow("mine")
    assert instantiate.is_allowed("mine.deep.inside.Norm")
    assert not instantiate.is_allowed("mine2.Norm")
    assert not instantiate.is_allowed("mine")


def test_a_trusted_folder_comes_first_on_the_import_path(tmp_path):
    instantiate.trust(tmp_path)
    assert sys.path[0] == str(tmp_path.resolve())


def test_a_module_that_is_allowed_must_exist(tmp_path, monkeypatch):
    instantiate.refuse_missing(["json", "stability"])
    with pytest.raises(ConfigError, match="allow=nowhere_x9: there is no such module"):
        instantiate.refuse_missing(["json", "nowhere_x9"])
    (tmp_path / "broken_x9").mkdir()
    (tmp_path / "broken_x9" / "__init__.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="cannot be found: ZeroDivisionError"):
        instantiate.refuse_missing(["broken_x9.inner"])


@pytest.mark.parametrize(
    ("error", "legal"),
    [
        (ValueError("its words"), "fails: its words"),
        (KeyError("its words"), "fails: KeyError: 'its words'"),
        (SystemExit(3), "fails: SystemExit: 3"),
    ],
)
def test_what_external_code_raises_is_a_refusal_of_the_key_that_brought_it_in(error, legal):
    running = instantiate.refusing_errors_of("norm.build", "mine.Norm", "fails", 7)
    with pytest.raises(ConfigError) as refused, running:
        raise error
    assert (refused.value.key, refused.value.value, refused.value.reason) == (
        "norm.build",
        7,
        legal,
    )
    assert refused.value.__cause__ is error


def test_a_built_in_class_refuses_by_refused_argument_and_its_other_errors_are_bugs():
    running = ("norm.build._target_", "stability.parts.norms.RMSNorm", "fails")
    with pytest.raises(ConfigError) as refused, instantiate.refusing_errors_of(*running):
        raise instantiate.RefusedArgument("its words")
    assert refused.value.value == running[1] and refused.value.reason == "fails: its words"
    for error in (ValueError("bug"), KeyError("bug"), TypeError("bug"), SystemExit(3)):
        with pytest.raises(type(error)) as raised, instantiate.refusing_errors_of(*running):
            raise error
        assert raised.value is error


def test_a_class_of_another_kind_is_refused():
    node = {"_target_": "stability.parts.inits.LeCun"}
    with pytest.raises(ConfigError, match=r"norm\.build\._target_=.*LeCun: must build a DeepNorm"):
        instantiate.build(node, "norm.build", kind=DeepNorm)


def test_a_refusal_says_how_this_command_allows_a_module(monkeypatch):
    monkeypatch.setattr(instantiate, "_option", instantiate._option)
    instantiate.allow(option="--allow MODULE")
    instantiate.allow("mine_x2")
    message = refusal({"_target_": "os.system"})
    assert message.endswith("modules allowed: mine_x2, stability; add one with --allow MODULE")


def test_a_refusal_passes_as_it_is_and_an_interruption_too():
    for error in (ConfigError("depth", 0, "must be more"), KeyboardInterrupt()):
        running = instantiate.refusing_errors_of("norm.build", "mine.Norm", "fails")
        with pytest.raises(type(error)) as raised, running:
            raise error
        assert raised.value is error


def test_a_base_is_no_class_to_be_built():
    message = refusal({"_target_": "stability.parts.placements.Placement"}, 6, 0, "attn")
    assert "is an abstract class" in message


@pytest.mark.parametrize(
    ("signature", "given", "refused"),
    [
        ("self", {"a": 1}, "takes nothing"),
        ("self, width", {"a": 1}, "takes nothing"),
        ("self, width, b, *args, c=1, **kwargs", {"a": 1}, r"takes \['b', 'c'\]"),
        ("self, width, a: int", {"a": 1.5}, "must be of type int"),
        ("self, width, a: int", {"a": True}, "must be of type int"),
        ("self, width, a: bool", {"a": 1}, "must be of type bool"),
        ("self, width, a: str", {"a": 1}, "must be of type str"),
        ("self, width, a: int", {"a": 1}, None),
        ("self, width, a: bool", {"a": True}, None),
        ("self, width, a: str", {"a": "text"}, None),
        ("self, width, a: list", {"a": 1}, None),
    ],
)
def test_arguments_are_checked_against_the_signature(tmp_path, signature, given, refused):
    module = f"signed_{tmp_path.name}"  # of its own: modules stay imported
    (tmp_path / f"{module}.py").write_text(f"class Norm:\n    def __init__({signature}): pass\n")
    instantiate.trust(tmp_path)
    node = {"_target_": f"{module}.Norm", **given}
    args = [8] if "width" in signature else []
    if refused is None:
        assert type(instantiate.build(node, "norm.build", *args)).__name__ == "Norm"
    else:
        with pytest.raises(ConfigError, match=refused):
            instantiate.build(node, "norm.build", *args)


@pytest.mark.parametrize("error", [AttributeError, ModuleNotFoundError])
def test_a_bug_inside_a_module_of_the_package_is_not_taken_for_a_bad_target(monkeypatch, error):
    def fail(module):
        raise error("a bug")

    monkeypatch.setattr(instantiate.importlib, "import_module", fail)
    with pytest.raises(error, match="a bug"):
        instantiate.resolve("stability.parts.inits.Normal", "init.build")
