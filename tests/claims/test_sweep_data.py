"""What is read from a sweep and predicted for it."""

import pandas as pd

from stability.claims import sweep_data
from stability.claims.sweep_data import SweepData


def test_behind_a_saturated_softmax_there_is_no_theory_and_no_overflow(tmp_path, monkeypatch):
    rows = pd.DataFrame(
        [(0, "mlp", "resid_post", "grad", 8, 1.0, 1.0, 1.0, 0.1, True)],
        columns=[
            *("layer", "sublayer", "site", "kind", "numel"),
            *("var", "rms", "token_rms_median", "first_share", "saturated"),
        ],
    )  # fmt: skip
    monkeypatch.setattr(sweep_data, "overlay", lambda folder, cache: rows)
    runs = pd.DataFrame({"run": ["a"], "folder": ["a"]})
    predicted = SweepData(tmp_path)._predicted(runs)
    assert predicted[sweep_data.SIZES].isna().all(axis=None)
    assert predicted["nonfinite"].tolist() == [0]
