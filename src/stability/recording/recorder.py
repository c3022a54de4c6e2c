"""Records a step of any module: what passes its sites, its parameters, their gradients and updates.

The recorder is told where to record by a map {(layer, sublayer, site): module}; it knows nothing of
the GPT or of the training loop. Statistics stay on the device until `RecordedStep.rows` fetches
them all in one copy. Recording never changes the training: it only reads, draws no random number,
and its hooks leave values and gradients as they are.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from stability.config.names import KINDS, SITES, Key, execution_key
from stability.recording import stats
from stability.recording.hooks import SiteHooks, Stopwatch
from stability.recording.recorded_step import RecordedStep, Slot
from stability.results.statistics import INDEX


class Recorder:
    """Records the statistics of one step at a time.

    Args:
        sites: where activations and their gradients are measured, in the order of execution. A
            module under several keys is measured once.
        weights: parameters by key.
        kinds, names: which kinds, and which sites' names, to record.
        token_dim: which axis of an activation counts tokens.
        compiled_tokens: for sites inside compiled blocks, the tokens of one pass. Such sites must
            be `recording.sites.Site`; they are prepared here, before the first compiled call.

    Use: ``start()``; forward and backward passes, as many as make one step, ``pass_done()`` after
    each and, where a batch has padding, ``pass_has_padding(...)`` before; ``gradients(scale)``;
    ``before = snapshot()``; the update; ``updates(before, requested)``; ``take()``.
    """

    def __init__(
        self,
        sites: Mapping[Key, nn.Module],
        weights: Mapping[Key, nn.Parameter],
        kinds: Sequence[str] = tuple(KINDS),
        names: Sequence[str] = tuple(SITES),
        token_dim: int = 1,
        compiled_tokens: int | None = None,
    ) -> None:
        self.weights = {k: p for k, p in weights.items() if p.requires_grad}
        self.kinds = set(kinds)
        self._clock = Stopwatch()
        self._of_parameters: dict[str, Tensor] = {}
        self._orders: dict[tuple[str, ...], tuple[list[Slot], Tensor]] = {}
        self._scales: dict[str, float] = {}
        compiled = None
        if compiled_tokens is not None:
            compiled = compiled_tokens, next(iter(self.weights.values())).device
        chosen = {k: m for k, m in sites.items() if k.name.partition(".")[0] in names}
        self._hooks = SiteHooks(chosen, self.kinds, token_dim, compiled, self._clock)
        self._sublayer_order = {
            place: i for i, place in enumerate(dict.fromkeys(k[:2] for k in sites))
        }
        self._site_order = {slot: i for i, slot in enumerate(self._hooks.expected)}

    def detach(self) -> None:
        """Remove every hook."""
        self._hooks.detach()

    def start(self) -> None:
        """Begin a recorded step: everything that runs until `take` belongs to it."""
        self._of_parameters, self._scales = {}, {}
        self._clock.seconds = 0.0
        self._hooks.start()
        if "weight" in self.kinds:
            with self._clock:
                self._of_parameters["weight"] = stats.measure_many([*self.weights.values()])

    def pass_has_padding(self, padding_BT: Tensor) -> None:
        """Say which tokens of the coming pass are padding; medians over tokens leave them out."""
        self._hooks.pass_has_padding(padding_BT)

    def pass_done(self) -> None:
        """A forward and backward pass of the step has been made."""
        self._hooks.pass_done()

    def gradients(self, loss_scale: float = 1.0, weight_scale: float | None = None) -> None:
        """Measure the parameters' gradients, after the last backward pass and before clipping.

        Args:
            loss_scale: what the loss was multiplied by; divided out of every gradient.
            weight_scale: what the parameters' gradients still carry of it, where that differs.
        """
        self.end_passes(loss_scale)
        self._scales["weight_grad"] = loss_scale if weight_scale is None else weight_scale
        if "weight_grad" not in self.kinds:
            return
        with self._clock:
            missing = [k for k, p in self.weights.items() if p.grad is None]
            if missing:
                raise RuntimeError(f"no gradient reached {missing[0]}")
            grads = [p.grad for p in self.weights.values() if p.grad is not None]
            self._of_parameters["weight_grad"] = stats.measure_many(grads)

    def end_passes(self, loss_scale: float = 1.0) -> None:
        """End the step's passes: no later pass belongs to it.

        Args:
            loss_scale: what the loss was multiplied by; divided out of every activation gradient.
        """
        self._hooks.stop()
        self._scales = {"grad": loss_scale}

    def snapshot(self) -> list[Tensor] | None:
        """The parameters before the update, if updates are recorded."""
        if "update" not in self.kinds:
            return None
        with self._clock:
            return [p.detach().clone() for p in self.weights.values()]

    def updates(
        self,
        before: Sequence[Tensor] | None,
        requested: Callable[[list[int]], list[Tensor]] | None,
    ) -> None:
        """Measure what the step changed, and how many changes were rounded away.

        A change is lost where the rule requested a non-zero one and the parameter stayed as it was.

        Args:
            before: `snapshot` of before the update.
            requested: gives the changes before rounding of the parameters at these places of
                ``before``; None if they are not known, as for a skipped update.
        """
        if before is None:
            return
        with self._clock, torch.no_grad():
            vectors_NF = stats.measure_many([*self.weights.values()], before)
            self._of_parameters["update"] = vectors_NF
            if requested is not None:
                vectors_NF[:, INDEX["lost"]] = self._lost(vectors_NF, before, requested)

    def _lost(
        self,
        vectors_NF: Tensor,
        before: Sequence[Tensor],
        requested: Callable[[list[int]], list[Tensor]],
    ) -> Tensor:
        """How many entries of each update were requested and did not happen, (N,)."""
        places = list(range(len(before)))
        if vectors_NF.device.type == "cpu":  # only zeros can be lost; a GPU is not waited for
            places = vectors_NF[:, INDEX["zeros"]].nonzero()[:, 0].tolist()
        lost_N = vectors_NF.new_zeros(len(before))
        weights = list(self.weights.values())
        for place, asked in zip(places, requested(places), strict=True):
            stayed = weights[place] == before[place]
            lost_N[place] = ((asked != 0) & stayed).sum()
        return lost_N

    def take(self) -> RecordedStep:
        """The step's statistics, still on the device, in the order of execution.

        Raises:
            RuntimeError: a hook that should have fired did not.
        """
        with self._clock:
            parts = [self._hooks.statistics(), *self._of_parameters.values()]
            slots, order = self._in_order_of_execution(tuple(self._of_parameters))
            vectors_NF = torch.cat([part for part in parts if len(part)])
            vectors_NF = vectors_NF[order.to(vectors_NF.device, non_blocking=True)]
        return RecordedStep(vectors_NF, slots, self._scales, self._clock.seconds)

    def _in_order_of_execution(self, kinds: tuple[str, ...]) -> tuple[list[Slot], Tensor]:
        """The slots of sites, and of parameters of these kinds; and where each was measured."""
        if kinds not in self._orders:
            slots = [*self._hooks.expected, *((kind, (k,)) for kind in kinds for k in self.weights)]
            order = sorted(range(len(slots)), key=lambda i: self._execution_key(slots[i]))
            self._orders[kinds] = [slots[i] for i in order], torch.tensor(order, dtype=torch.int64)
        return self._orders[kinds]

    def _execution_key(self, slot: Slot) -> tuple[int, ...]:
        """Sort key of a slot in the order of execution; parameters of a sublayer keep their own."""
        kind, keys = slot
        backward = kind in ("grad", "weight_grad")
        # Both maps are in the order of the forward pass.
        place = self._sublayer_order.get(keys[-1][:2], -1) if backward else 0
        return execution_key(kind, (place,), self._site_order.get(slot, 0))
