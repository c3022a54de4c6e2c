"""Records a step of any module: what its sites hear, its parameters, their gradients and updates.

The recorder is told where to stand by a map {(layer, sublayer, site): module}; it knows nothing of
the GPT or of the training loop. Statistics stay on the device until `Taken.rows` fetches them
all in one copy. Recording never changes the training: it only reads, draws no random number, and
its hooks leave values and gradients as they are.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from stability.config.names import KINDS, SITES, Key
from stability.recording import stats
from stability.recording.hooks import Listener, Stopwatch
from stability.recording.recorded_step import Slot, Taken


class Recorder:
    """Records the statistics of one pass at a time.

    Args:
        sites: where activations and their gradients are seen, in the order of execution. A module
            may stand under several keys; it is measured once.
        weights: parameters by key.
        kinds, names: which kinds, and which sites' names, to record.
        token_dim: which axis of an activation counts tokens.
        compiled_tokens: for sites inside compiled blocks, the tokens of one pass. Such sites must
            be `recording.sites.Site`; they are prepared here, before the first compiled call.
        guest: in somebody else's loop a tensor may carry no gradient; it then has no such row.

    Use: ``start()``; forward and backward passes, as many as make one step, ``pass_done()`` after
    each; ``gradients(scale)``; ``before = snapshot()``; the update; ``updates(before, asked)``;
    ``take()``.
    """

    def __init__(
        self,
        sites: Mapping[Key, nn.Module],
        weights: Mapping[Key, nn.Parameter],
        kinds: Sequence[str] = tuple(KINDS),
        names: Sequence[str] = tuple(SITES),
        token_dim: int = 1,
        compiled_tokens: int | None = None,
        guest: bool = False,
    ) -> None:
        self.weights = {k: p for k, p in weights.items() if p.requires_grad}
        self.kinds, self.clock = set(kinds), Stopwatch()
        self.guest = guest
        self._tensors: dict[str, tuple[list[Key], Tensor]] = {}
        self._lost: Tensor | None = None
        self._scales: dict[str, float] = {}
        compiled = None
        if compiled_tokens is not None:
            compiled = compiled_tokens, next(iter(self.weights.values())).device
        chosen = {k: m for k, m in sites.items() if k.name in names}
        self.listener = Listener(chosen, self.kinds, token_dim, compiled, self.clock, guest)
        self._place = {place: i for i, place in enumerate(dict.fromkeys(k[:2] for k in sites))}
        self._order = {slot: i for i, slot in enumerate(self.listener.expected)}

    @property
    def active(self) -> bool:
        """Whether a recorded step's passes are going on."""
        return self.listener.active

    @property
    def seconds(self) -> float:
        """What recording has cost the host since `start`."""
        return self.clock.seconds

    def detach(self) -> None:
        """Remove every hook."""
        self.listener.detach()

    def start(self) -> None:
        """Begin a recorded step: everything that runs until `take` belongs to it."""
        self._tensors, self._lost, self._scales = {}, None, {}
        self.clock.seconds = 0.0
        self.listener.start()
        if "weight" in self.kinds:
            with self.clock.running():
                self._measure("weight", self.weights)

    def _measure(self, kind: str, tensors: Mapping[Key, Tensor]) -> None:
        if tensors:
            self._tensors[kind] = [*tensors], stats.measure_many(list(tensors.values()))

    def pass_done(self) -> None:
        """A forward and backward pass of the step has been made."""
        self.listener.pass_done()

    def gradients(self, loss_scale: float = 1.0, weight_scale: float | None = None) -> None:
        """Measure the parameters' gradients, after the last backward pass and before clipping.

        Args:
            loss_scale: what the loss was multiplied by; divided out of every gradient.
            weight_scale: what the parameters' gradients still carry of it, where that differs.
        """
        self.abandon(loss_scale)
        self._scales["weight_grad"] = loss_scale if weight_scale is None else weight_scale
        if "weight_grad" not in self.kinds:
            return
        with self.clock.running():
            missing = [k for k, p in self.weights.items() if p.grad is None]
            if missing and not self.guest:
                raise RuntimeError(f"no gradient reached {missing[0].spelt()}")
            grads = {k: p.grad for k, p in self.weights.items() if p.grad is not None}
            self._measure("weight_grad", grads)

    def abandon(self, loss_scale: float = 1.0) -> None:
        """The passes are over and no gradient of a parameter is to be measured."""
        self.listener.stop()
        self._scales = {"grad": loss_scale}

    def snapshot(self) -> list[Tensor] | None:
        """The parameters before the update, if updates are recorded."""
        if "update" not in self.kinds:
            return None
        with self.clock.running():
            return [p.detach().clone() for p in self.weights.values()]

    def updates(
        self,
        before: Sequence[Tensor] | None,
        asked: Sequence[Tensor] | None,
        by: Collection[int] | None = None,
    ) -> None:
        """Measure what the step changed, and how many changes it asked for were rounded away.

        A change is lost where the rule asked for a non-zero one and the parameter stayed as it was.

        Args:
            before: `snapshot` of before the update.
            asked: the changes before rounding, where they are known.
            by: ids of the parameters that were updated; all by default.
        """
        if before is None:
            return
        with self.clock.running(), torch.no_grad():
            wide = [stats.widest(p) for p in self.weights.values()]
            moved = [p - stats.widest(old) for p, old in zip(wide, before, strict=True)]
            named = zip(self.weights.items(), moved, strict=True)
            self._measure("update", {k: m for (k, p), m in named if by is None or id(p) in by})
            if asked is not None:
                lost = [((a != 0) & (m == 0)).sum() for a, m in zip(asked, moved, strict=True)]
                self._lost = torch.stack(lost)

    def take(self) -> Taken:
        """The step's numbers, still on the device, in the order of execution.

        Order: weights as the pass found them; activations forward; then, from the head down,
        gradients of activations and of weights; updates.

        Raises:
            RuntimeError: a hook that should have fired did not.
        """
        with self.clock.running():
            merged = self._merged()
            vectors = torch.stack([vector for vector, _ in merged.values()])
            medians = torch.stack([median for _, median in merged.values()])
            lost = torch.full_like(medians, -1.0)
            if self._lost is not None:
                lost[-len(self._lost) :] = self._lost.to(lost.dtype)
            numbers = torch.cat((vectors, medians[:, None], lost[:, None]), dim=1)
        return Taken(numbers, list(merged), self._scales, self.seconds)

    def _merged(self) -> dict[Slot, tuple[Tensor, Tensor]]:
        """One vector, and the rms of the median token, per slot in the order of execution."""
        merged = self.listener.heard()
        for kind, (keys, matrix) in self._tensors.items():
            for key, vector in zip(keys, matrix, strict=True):
                merged[(kind, (key,))] = (vector, vector.new_tensor(torch.nan))
        return {slot: merged[slot] for slot in sorted(merged, key=self._moment)}

    def _moment(self, slot: Slot) -> tuple[int, ...]:
        """When a slot's tensor comes to be: its phase, then its place in the network."""
        kind, keys = slot
        phase = {"weight": 0, "act": 1, "grad": 2, "weight_grad": 2, "update": 3}[kind]
        if phase != 2:
            return (phase, self._order.get(slot, 0))
        # Backward: from the last sublayer to the first, activations before the weights they meet.
        return (
            phase,
            -self._place.get(keys[-1][:2], -1),
            kind == "weight_grad",
            -self._order.get(slot, 0),
        )
