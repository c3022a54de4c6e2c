"""Every knob is documented and bounded."""

from typing import Any

import pytest
import torch

from stability.config.knobs import AXES, DTYPES, GROUPS, KNOBS, Config, ConfigError
from stability.config.ranges import spelled
from stability.parts.precision import PRECISIONS
from tiny import CONF, composed

PAGE = (CONF.parent / "docs" / "knobs.md").read_text()


def documented(key: str) -> list[str]:
    """Default, unit, range and meaning of a knob, as its line of the page says."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{key}` |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.mark.parametrize("key", KNOBS)
def test_every_knob_says_what_it_means(key):
    knob = KNOBS[key]
    assert knob.doc
    assert not knob.doc.endswith(".")


def test_axes_and_groups_are_knobs():
    for axis in AXES:
        assert axis in KNOBS or f"{axis}.build" in KNOBS
    assert {p.name for p in CONF.iterdir() if p.is_dir()} == set(GROUPS)


def test_numbers_have_a_unit_or_are_ratios_and_counts():
    for key in ("depth", "model.context", "train.steps", "train.warmup_steps", "record.every"):
        assert KNOBS[key].unit


def test_no_whole_number_is_accepted_without_an_upper_bound():
    whole = [key for key, knob in KNOBS.items() if type(knob.default) is int]
    whole += ["model.vocab", "data.vocab", "n_jobs"]
    assert not any(KNOBS[key].legal.test(2**63 - 1) for key in whole)


@pytest.mark.parametrize("text", ["1/1", "1/3", "3/3", "10/12"])
def test_a_shard_is_a_part_of_parts(text):
    assert KNOBS["shard"].legal.test(text)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "1", "1/3/", "a/b", "01/3", "-1/3", "1 /3"])
def test_what_is_no_shard_is_refused(text):
    assert not KNOBS["shard"].legal.test(text)


@pytest.mark.parametrize(
    ("dtype", "bits"), [("fp64", 64), ("fp32", 32), ("bf16", 16), ("fp16", 16)]
)
def test_formats_have_as_many_bits_as_torch_gives_them(dtype, bits):
    assert DTYPES[dtype].bits == bits == torch.finfo(PRECISIONS[dtype].param).bits


SHOWN = [key for key in KNOBS if key.rpartition(".")[2] not in ("label", "order", "build")]


@pytest.mark.parametrize("key", SHOWN)
def test_a_knob_has_the_default_and_the_range_that_its_page_promises(key):
    knob = KNOBS[key]
    default, unit, legal, doc = documented(key)
    shown = "unset" if knob.default is None else f"`{spelled(knob.default).replace(',', ', ')}`"
    assert (default, unit, legal, doc) == (shown, knob.unit, knob.legal.text, knob.doc)


AMP = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}


@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast_computes_in_16_bits_and_keeps_parameters_in_fp32(dtype):
    found, cast = DTYPES[dtype], AMP.get(dtype)
    assert found.autocast == (str(cast).removeprefix("torch.") if cast else None)
    if cast:
        assert (found.param, found.bits) == ("float32", 32)


NOT_IDENTITY = {
    *("out", "name", "device", "n_jobs", "isolate", "fail_fast", "shard", "lock_minutes"),
    *("allow", "claim", "data.path", "data.val_path"),
    *("train.steps", "train.checkpoint_every", "train.keep_checkpoint"),
    *("record.ring", "record.flush_every"),
}
"""What names, places or shows a run, or says how long and how safely it goes on."""


def test_every_other_knob_makes_a_run_another_run():
    shown = {f"{group}.{name}" for group in GROUPS for name in ("label", "order")}
    excluded = {key for key, knob in KNOBS.items() if not knob.identity}
    assert excluded - shown == NOT_IDENTITY
    assert excluded & shown == KNOBS.keys() & shown


def test_a_shard_may_have_nine_digits_and_no_more():
    assert KNOBS["shard"].legal.test("999999999/999999999")
    assert not KNOBS["shard"].legal.test("1/1000000000")


def test_a_changed_config_is_a_copy():
    config = Config()
    changed = config.changed({"train.steps": 3, "depth": 2})
    assert (changed.train.steps, changed.depth) == (3, 2)
    assert (config.train.steps, config.depth) == (150, 6)
    assert changed.changed({"train.steps": 150, "depth": 6}) == config


@pytest.mark.parametrize("key", ["train.stepz", "deep"])
def test_a_key_that_does_not_exist_cannot_be_changed(key):
    with pytest.raises(ConfigError, match=f"^{key}=3: unknown key"):
        Config().changed({key: 3})


def test_defaults_that_are_lists_are_not_shared():
    one, other = Config(), Config()
    one.record.kinds.clear()
    one.norm.build["_target_"] = "x"
    assert other.record.kinds and other.norm.build == {}


WRONG: list[tuple[str, Any, str]] = [
    ("train.steps", "many", "a whole number, 0 to 1,000,000,000"),
    ("train.lr", "fast", "a number, >= 0"),
    ("compile", 1, "true or false"),
    ("out", ["a"], "a word"),
    ("claim", 3, "a group of keys, {key: value}"),
    (
        "record.kinds",
        "act",
        f"{KNOBS['record.kinds'].legal.text}; a list of one is written record.kinds=[act]",
    ),
    ("optimizer.betas", 0.9, KNOBS["optimizer.betas"].legal.text),
    ("allow", "module", "a list, [a,b,...]; a list of one is written allow=[module]"),
    ("allow", [["a"]], "a list, each value a word"),
]


@pytest.mark.parametrize(("key", "value", "wanted"), WRONG, ids=lambda v: str(v)[:30])
def test_a_value_of_another_type_is_refused_with_what_is_wanted_said_once(key, value, wanted):
    with pytest.raises(ConfigError) as refused:
        Config.from_plain(composed({key: value}))
    assert (refused.value.key, refused.value.reason) == (key, f"must be {wanted}")
    assert refused.value.value == spelled(value)


@pytest.mark.parametrize(("key", "value"), [("train", 3), ("train", None), ("norm", ["pre"])])
def test_a_group_that_holds_no_keys_is_refused(key, value):
    with pytest.raises(ConfigError, match="must be a group of keys") as refused:
        Config.from_plain(composed() | {key: value})
    assert (refused.value.key, refused.value.value) == (key, spelled(value))


def test_a_config_that_holds_no_keys_is_refused():
    with pytest.raises(ConfigError, match=r"^config=3: must be a group of keys"):
        Config.from_plain(3)  # type: ignore[arg-type]


def test_the_trace_of_a_worker_is_kept_with_the_refusal():
    assert ConfigError("depth", 0, "why", "trace").__notes__ == ["trace"]
    assert not hasattr(ConfigError("depth", 0, "why"), "__notes__")
