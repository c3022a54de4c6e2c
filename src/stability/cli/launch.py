"""From a command line to a running sweep, by way of Hydra."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import hydra

from stability.cli import arguments, compose, refusals
from stability.config import folders, instantiate

FULL_ERROR = "HYDRA_FULL_ERROR"


@contextlib.contextmanager
def _raising_hydra(words: Sequence[str]) -> Iterator[None]:
    """Let Hydra see these words, and let it raise instead of printing and exiting."""
    argv, full = sys.argv, os.environ.get(FULL_ERROR)
    sys.argv, os.environ[FULL_ERROR] = [argv[0], *words], "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full is None:
            del os.environ[FULL_ERROR]
        else:
            os.environ[FULL_ERROR] = full


def launch(words: Sequence[str]) -> None:
    """Compose, check and run what a command line asks for."""
    try:
        Path.cwd()
    except OSError as error:
        raise refusals.Refused("the current folder", f"is gone ({error.strerror})") from error
    read = arguments.read(words)
    for folder in read.extra:
        instantiate.trust(folder)
    compose.register(read.experiment, read.extra)
    conf = str(folders.conf_dir())
    command = hydra.main(version_base="1.3", config_path=conf, config_name="config")(compose.task)
    with _raising_hydra(read.words):
        command()
