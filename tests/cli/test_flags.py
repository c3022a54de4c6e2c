"""A command line is split into flags and words; an unknown flag is refused."""

from pathlib import Path

import pytest

from stability.cli import flags
from stability.config.knobs import ConfigError


def test_without_flags_every_word_sets_a_key():
    found = flags.parse(["norm=pre", "depth=2,3"])
    assert found.words == ["norm=pre", "depth=2,3"]
    assert not (found.help or found.version or found.hydra_help or found.multirun or found.plan)
    assert found.cfg is None and found.config_dirs == []


SPELLED = {
    "help": ["-h", "--help"],
    "version": ["--version"],
    "hydra_help": ["--hydra-help"],
    "multirun": ["-m", "--multirun"],
    "plan": ["--plan"],
    "experiments": ["--experiments"],
}


@pytest.mark.parametrize(
    ("name", "flag"), [(name, flag) for name, given in SPELLED.items() for flag in given]
)
def test_a_flag_is_set_alone_wherever_it_is_given(name, flag):
    for words in ([flag, "seed=1"], ["seed=1", flag]):
        found = flags.parse(words)
        assert {other for other in SPELLED if getattr(found, other)} == {name}
        assert found.words == ["seed=1"]


def test_the_config_of_a_run_is_asked_for_by_its_only_kind():
    assert flags.parse(["--cfg", "job"]).cfg == "job"
    with pytest.raises(ConfigError, match="invalid choice"):
        flags.parse(["--cfg", "hydra"])


@pytest.mark.parametrize("flag", ["-cd", "--config-dir"])
def test_several_folders_may_be_given_in_an_order(tmp_path, flag):
    found = flags.parse([flag, str(tmp_path), "seed=1", flag, "."])
    assert found.config_dirs == [tmp_path, Path()]
    assert found.words == ["seed=1"]


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--config-dir=.*absent: is not a folder"):
        flags.parse(["-cd", str(tmp_path), "-cd", str(tmp_path / "absent")])


@pytest.mark.parametrize("word", ["--hel", "--jobs", "-x", "--multi"])
def test_an_unknown_or_shortened_flag_is_refused_with_its_name(word):
    with pytest.raises(ConfigError, match=f"unrecognized arguments: {word}"):
        flags.parse(["seed=1", word])
