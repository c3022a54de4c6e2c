"""What cannot be built is refused before anything is."""

import pytest

from stability import build
from stability.config import ConfigError
from tiny import make_config


def sized(**sizes):
    """A config of these sizes, which `config.validate` has not seen."""
    config = make_config()
    for key, value in sizes.items():
        (config if key == "depth" else config["model"])[key] = value
    return config


@pytest.mark.parametrize(
    ("sizes", "key"),
    [
        ({"width": 100_000_000}, "model.width"),
        ({"width": 2**16, "mlp_ratio": 1000.0, "depth": 10**6}, "model.width"),
        ({"width": 64, "depth": 10**9}, "depth"),
        ({"width": 64, "vocab": 10**12}, "model.vocab"),
    ],
)
def test_weights_beyond_the_memory_are_refused_by_the_key_that_makes_them_large(
    sizes, key, monkeypatch
):
    monkeypatch.setattr(build, "parts_of", lambda config: pytest.fail("something was built"))
    with pytest.raises(ConfigError, match=r"GB; this machine has") as refused:
        build.check(sized(**sizes))
    assert (refused.value.key, refused.value.value) == (key, sizes[key.rpartition(".")[2]])


@pytest.mark.parametrize("sizes", [{"depth": 1000}, {"width": 4096, "vocab": 50_304}])
def test_a_large_model_is_not_refused(sizes):
    build.check(sized(**sizes))
