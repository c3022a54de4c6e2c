"""The failing step of a run that diverged, read back from its folder and repeated in any format."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import yaml
from torch import Size, Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from stability.config.knobs import Config, ConfigError
from stability.config.names import SUBLAYER_KINDS
from stability.model.build import build
from stability.model.gpt import GPT
from stability.parts import batches
from stability.parts.batches import Source
from stability.recording.operations import OperationTrace
from stability.recording.recorded_step import Rows
from stability.results.schema import CONFIG_FILE, FAILURE_FILE
from stability.training import checkpoint
from stability.training.passes import Batch, train_batch
from stability.training.replayer import Replayer


class NotReplayable(Exception):
    """A run that cannot be replayed; one line."""


class KeptBatch(Source):
    """The batch that a failing step saw, in the place of the run's data.

    Args:
        x_BT, y_BT: tokens and targets.
        vocab: rows of the embedding.
    """

    def __init__(self, x_BT: Tensor, y_BT: Tensor, vocab: int) -> None:
        self.x_BT, self.y_BT, self.vocab = x_BT, y_BT, vocab

    def batch(
        self, step: int, size: int, context: int, seed: int, pad_share: float = 0.0
    ) -> batches.Batch:
        return self.x_BT.numpy(), self.y_BT.numpy()


class FailedStep:
    """What a diverged run kept of its failing step.

    Args:
        folder: of the run.

    Raises:
        NotReplayable: no run, none that kept a failing step, or its files are damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            plain = yaml.safe_load((folder / CONFIG_FILE).read_text())
            self.saved = checkpoint.read(folder / FAILURE_FILE)
        except FileNotFoundError as error:
            what = "is not a run" if not (folder / CONFIG_FILE).exists() else "has not diverged"
            reason = f"{what} (no {Path(error.filename).name})"
            raise NotReplayable(f"{folder}: {reason}") from error
        except OSError as error:
            raise NotReplayable(f"{folder}: cannot be read ({error.strerror})") from error
        except (yaml.YAMLError, UnicodeDecodeError, checkpoint.DamagedError) as error:
            reason = str(error).partition("\n")[0]
            raise NotReplayable(f"{folder}: damaged ({reason})") from error
        if not isinstance(plain, dict):
            raise NotReplayable(f"{folder}: {CONFIG_FILE} holds something else")
        try:
            self.config = Config.from_plain(plain)
        except ConfigError as error:
            raise NotReplayable(f"{folder}: {CONFIG_FILE}: {error}") from error
        if missing := {"step", "model", "loss_scale", "x", "y"} - set(self.saved):
            raise NotReplayable(f"{folder}: {FAILURE_FILE} lacks {', '.join(sorted(missing))}")

    def replayer(self, dtype: str) -> tuple[Replayer, Batch]:
        """A model of its own as the failing step found it, its weights cast to a dtype.

        Returns:
            The replayer, and the step's batch.

        Raises:
            NotReplayable: config and weights are not of one run.
        """
        saved, config = self.saved, self.config.changed({"dtype": dtype, "compile": False})
        vocab = len(saved["model"].get("embed.wte", ()))
        replayer = Replayer(build(config, KeptBatch(saved["x"], saved["y"], vocab)))
        if _shapes(saved["model"]) != _shapes(replayer.built.model.state_dict()):
            files = f"{CONFIG_FILE} and {FAILURE_FILE}"
            raise NotReplayable(f"{self.folder}: {files} are not of one run")
        replayer.load(saved)
        return replayer, train_batch(replayer.built, saved["step"])

    def operations(self, dtype: str, open_attention: bool) -> OperationTrace:
        """Every operation of the step, in a dtype."""
        replayer, batch = self.replayer(dtype)
        kernel = sdpa_kernel(SDPBackend.MATH) if open_attention else nullcontext()
        model = replayer.built.model
        trace = OperationTrace(model.sites(), _projections(model))
        with kernel, trace:
            replayer.repeat(batch)
        return trace

    def rows(self, dtype: str) -> Rows:
        """The step's rows at every site and parameter, in a dtype."""
        replayer, batch = self.replayer(dtype)
        return replayer.record(batch).rows(step=batch.step)


def _projections(model: GPT) -> dict[str, nn.Module]:
    """The modules of a model's matrices: ``query projection of layer 3`` -> module."""
    owners = {p: module for module in model.modules() for p in module.parameters(recurse=False)}
    found = {}
    for (layer, sublayer, name), weight in model.weights().items():
        kind = SUBLAYER_KINDS.get(sublayer)
        if kind is not None and name in kind.roles:
            words = kind.roles[name].partition(",")[0]
            found[f"{words} of layer {layer}"] = owners[weight]
    return found


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, Size]:
    return {name: tensor.shape for name, tensor in weights.items()}
