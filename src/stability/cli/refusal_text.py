"""Bad input in one or two lines: the key, the value, and what is legal. Needs no hydra."""

from stability.config.knobs import ConfigError
from stability.results.atomic import Unreadable

REFUSALS = (ConfigError, Unreadable, UnicodeError)
"""What bad input raises, on the command line or in files."""

MAX_LENGTH = 400
"""Characters of a refusal; a longer one is cut in the middle."""


class Refused(ConfigError):
    """A refusal of something that is not a key with a value."""

    def __init__(self, what: str, reason: str) -> None:
        Exception.__init__(self, f"{what}: {reason}")
        self.key, self.value, self.reason = what, "", reason


def explain(error: BaseException) -> str:
    """The refusal as it is printed: one line of printable characters, short whatever was typed."""
    text = " ".join(str(error).split())
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    half = MAX_LENGTH // 2
    return text if len(text) <= MAX_LENGTH else f"{text[:half]} ... {text[-half:]}"
