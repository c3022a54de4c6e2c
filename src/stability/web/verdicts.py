"""The verdicts on the claims that a sweep alone can decide."""

from pathlib import Path
from typing import NamedTuple

from stability.claims import pages, syntax
from stability.claims.evaluate import evaluate
from stability.claims.sweep_data import SweepData
from stability.config import folders


class Judged(NamedTuple):
    """A claim and what the runs say of it."""

    claim: str
    statement: str
    verdict: str
    reason: str


def verdicts(sweep: Path) -> list[Judged]:
    """Every claim whose runs are those of an experiment of the sweep's name.

    Raises:
        Unreadable: no run can be read.
    """
    known = folders.experiments()
    if sweep.name not in known:
        return []
    data = {sweep.name: SweepData(sweep)}
    wanted = [c for c in syntax.read_claims(known) if set(c.sweeps) == {sweep.name}]
    results = [evaluate(claim, data, False) for claim in wanted]
    return [
        Judged(r.claim.id, pages.one_line(r.claim.statement), str(r.verdict), r.reason)
        for r in results
    ]
