"""1/sigma of each norm against the variance of what it reads."""

import pytest

from probed import FP64, Probed


@pytest.mark.parametrize("norm", ["pre", "peri", "post"])
def test_norms_are_measured_at_what_they_read(norm):
    probed = Probed(["norm_jacobian", "norm_sigma"], FP64, norm=norm)
    streams = [x.detach() for x in probed.streams().values()]
    block = probed.model.blocks[0].attn
    reads = {"pre": streams[0], "peri": streams[0], "post": streams[0] + block.f(streams[0])}

    def inverse_sigma(x):
        return float((x.detach().var(-1, correction=0) + 1e-5).rsqrt().mean())

    wanted = inverse_sigma(reads[norm])
    assert probed.values[0, "attn", "norm"] == pytest.approx(wanted)
    assert probed.values[0, "attn", "inverse_sigma"] == pytest.approx(wanted)
    assert probed.values[0, "attn", "spectral"] == pytest.approx(wanted, rel=1e-6)
    assert probed.values[0, "attn", "error"] < 1e-10
    if norm == "peri":
        out = block.f(block.norm(streams[0]))
        assert probed.values[0, "attn", "norm.out"] == pytest.approx(inverse_sigma(out))
        assert probed.values[0, "attn", "out.error"] < 1e-10
    if norm != "post":
        assert probed.values[2, "head", "norm"] == pytest.approx(inverse_sigma(streams[-1]))
