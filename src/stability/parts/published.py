"""What each part says of its origin: the base of every class that a yaml of conf/ builds."""

from typing import ClassVar


class Published:
    """Three facts beside the equation, in plain words; the catalogue prints them.

    Each class states them itself: those of its parent are not its own, see `said`.
    """

    source: ClassVar[str] = ""
    """Where it was published: ``arXiv:2002.04745``, or author and year."""
    reported: ClassVar[str] = ""
    """What its authors report, with the setting; empty where nothing is known."""
    combine: ClassVar[str] = ""
    """What it must or must not be combined with; empty where it goes with anything."""


def said(part: type, fact: str) -> str:
    """One of the three facts as a class itself states it; empty where it states none."""
    return str(vars(part).get(fact, ""))
