"""Conv nets: channels are the features, positions the tokens."""

import pytest
import torch
from torch import nn

import stability
from external_loops import rows
from slow_statistics import token_rms_twin, twin
from stability.recording.external.presets import chosen_sites
from stability.recording.external.tensors import has_channels_first


class ResBlock(nn.Module):
    """A block of a residual net."""

    def __init__(self, dims=2):
        super().__init__()
        conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
        batch_norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims]
        self.conv1, self.bn1 = conv(6, 6, 3, padding=1), batch_norm(6)
        self.conv2, self.bn2 = conv(6, 6, 3, padding=1), batch_norm(6)

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu()
        return (x + self.bn2(self.conv2(y))).relu()


class ResNet(nn.Module):
    def __init__(self, dims=2):
        super().__init__()
        self.layer1 = nn.Sequential(ResBlock(dims), ResBlock(dims))
        self.layer2 = nn.Sequential(ResBlock(dims))

    def forward(self, x):
        return self.layer2(self.layer1(x))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_statistics_of_tokens_are_those_of_positions(tmp_path, dims):
    torch.manual_seed(0)
    model, seen = ResNet(dims), {}
    blocks = [*model.layer1, *model.layer2]
    for layer, block in enumerate(blocks):

        def keep(module, args, output, layer=layer):
            output.retain_grad()
            seen[layer] = output

        block.register_forward_hook(keep)
    with stability.record(model, tmp_path / "run", "auto"):
        model(torch.randn(4, 6, *(5, 4, 3)[:dims])).square().mean().backward()
    for layer, output in seen.items():
        for kind, image in (("act", output.detach()), ("grad", output.grad)):
            where = {"layer": layer, "site": "resid_post", "kind": kind}
            (row,) = rows(tmp_path / "run", **where).to_dict("records")
            tokens = torch.stack([image.flatten(2)[..., p] for p in range(image[0, 0].numel())], 1)
            assert tokens.shape[2] == 6
            wanted = twin(tokens, token_dim=1)
            for name in ("numel", "mean", "var", "rms", "absmax", "first_share"):
                assert row[name] == pytest.approx(wanted[name], rel=1e-5, abs=1e-9), (kind, name)
            median = sorted(token_rms_twin(tokens))
            middle = (median[(len(median) - 1) // 2] + median[len(median) // 2]) / 2
            assert row["token_rms_median"] == pytest.approx(middle, rel=1e-5)


def test_blocks_of_a_residual_net_are_counted_through_and_their_norms_are_sites():
    found = chosen_sites(ResNet(), "auto")
    assert found.places["layer1.1"] == (1, "block")
    assert found.places["layer2.0"] == (2, "block")
    assert found.places["layer2.0.bn1"] == (2, "norm.bn1")
    assert found.depth == 3
    assert found.left_out == ()


@pytest.mark.parametrize(
    ("module", "shape", "is_image"),
    [
        (nn.Conv2d(3, 6, 3), (2, 6, 4, 5), True),
        (nn.Conv2d(3, 6, 3), (2, 3, 4, 5), True),
        (nn.Conv2d(3, 6, 3), (2, 4, 5, 6), False),  # channels last
        (nn.Conv2d(6, 6, 3), (2, 6, 4, 6), False),  # nothing tells which
        (nn.Conv2d(3, 6, 3), (2, 6, 4), False),  # tokens of a model with a convolution inside
        (nn.Conv1d(3, 6, 3), (2, 6, 4), True),
        (nn.ConvTranspose2d(3, 6, 3), (2, 6, 4, 5), True),
        (nn.BatchNorm2d(6), (2, 6, 4, 5), True),
        (nn.BatchNorm1d(6), (2, 6), False),
        (nn.Sequential(nn.ReLU(), nn.Conv2d(3, 6, 3)), (2, 6, 4, 5), True),
        (nn.Linear(6, 6), (2, 6, 4, 5), False),
        (nn.Linear(6, 6), (2, 4, 6), False),
    ],
)
def test_what_is_an_image(module, shape, is_image):
    assert has_channels_first(module, torch.zeros(shape)) is is_image


def test_a_token_axis_that_is_given_is_kept(tmp_path):
    torch.manual_seed(0)
    model, x = ResNet(), torch.randn(2, 6, 4, 3)
    with stability.record(model, tmp_path / "run", r"layer2\.(\d+)", token_dim=2):
        model(x).sum().backward()
    (row,) = rows(tmp_path / "run", kind="act").to_dict("records")
    wanted = twin(model(x).detach(), token_dim=2)["first_share"]
    assert row["first_share"] == pytest.approx(wanted, rel=1e-5)
