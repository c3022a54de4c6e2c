"""The sweep that tests of run_theory and check read."""

import pytest

import tiny


@pytest.fixture(scope="session")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    for seed in range(3):
        tiny.run(tiny.make_config({"train.steps": 0}, seed=seed), folder / f"run-{seed}")
    return folder
