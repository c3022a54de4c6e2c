"""Bad input in one or two lines: the key, the value, and what is legal.

Hydra and OmegaConf say it in their own words, over many lines; this says it in ours.
"""

import yaml
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from stability.config import ConfigError

REFUSALS = (ConfigError, HydraException, OmegaConfBaseException, yaml.YAMLError)
"""What a bad input may raise before anything is written."""


def explain(error: BaseException) -> str:
    """The refusal for the user."""
    return str(error)
