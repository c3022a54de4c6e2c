"""A recording of an external training loop: tells its steps apart and has their rows written."""

import time
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from stability.recording.external.at_init import AtInit
from stability.recording.external.gathering import Gathered, Gathering
from stability.recording.external.guard import Guard, say
from stability.recording.external.lifetime import AtExit, Terminated
from stability.recording.external.live import Live
from stability.recording.external.measured_step import Parts, parts_of
from stability.recording.external.optimizers import OptimizerHooks
from stability.recording.external.options import Options
from stability.recording.external.parameters import Parameters
from stability.recording.external.passes import Pass, PassHooks
from stability.recording.external.processes import Processes
from stability.recording.external.run_writer import RunWriter
from stability.recording.external.sites import Sites
from stability.results import schema
from stability.results.run_file import one_line
from stability.results.sinks import Sink

LAST_SECONDS = 10.0
"""How long the end of a recording waits for other processes."""

LOGGED: dict[str, Callable[[Any], float]] = {
    column.name: {"int64": int, "bool": bool}.get(column.type, float)
    for column in schema.STEPS
    if column.name not in ("run", "step", "skipped", "step_s", "record_s")
}
"""Columns of the steps table that the loop may log -> the type of their numbers."""

UNREACHED = 64
"""Passes without a backward pass that are kept, such as those of a validation."""


class Recording:
    """What `record` returns: a context manager, which also takes what only the loop knows.

    A step is the time between two updates. Its rows describe the passes whose gradients the update
    used. The recording ends a step when the next one begins, so that values logged at any time
    between the first forward pass of a step and that of the next reach the row of this step.

    Args:
        model: the user's.
        sites: of the model.
        options: see `record`.
        writer: writes the run; None in a process that sends what it measures to rank 0.
        processes: those that record together; None if this is the only one.
        sink: is sent the curated numbers of each step.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Sites,
        options: Options,
        writer: RunWriter | None,
        processes: Processes | None,
        sink: Sink | None = None,
    ) -> None:
        self._options, self._writer = options, writer
        self._gathering = Gathering(model, processes)
        self._step = options.first_step
        """Index of the current step."""
        self._steps_empty = self._backward_passes = 0
        self._is_closed = False
        self._patience: float | None = None
        """Seconds to wait for what another process measured in a step."""
        self._step_began = time.perf_counter()
        self._passes: list[Pass] = []
        self._left_out: deque[Pass] = deque(maxlen=4)
        self._logged: dict[str, Any] = {}
        self._has_begun = self._has_ended = self._saw_update = False
        self._has_cleared = False
        """Whether the loop has cleared the gradients of a pass of the current step."""
        self._updated_by: WeakSet[torch.optim.Optimizer] = WeakSet()
        """Optimizers that have stepped in the current step."""
        self._skipped = False
        self._found_inf: list[tuple[torch.optim.Optimizer, Tensor]] = []
        """Of each optimizer whose kernel looks itself: > 0 if it has left the update out."""
        self._scale: float | Tensor = 1.0
        self._guard = Guard(processes.leave if processes else lambda: None)
        self._live = Live(sink, self._guard.note) if sink else None
        self._parameters = Parameters(
            model, sites.key_of, options.kinds, self._guard.note, counts_whole=writer is not None
        )
        self._hooks = PassHooks(model, sites.of, sites.attention, options, self, self._guard)
        self._optimizers = OptimizerHooks(self, self._guard)
        self._at_init = AtInit(model, sites, writer.folder, self._guard) if writer else None
        self._at_exit = AtExit(self.close)
        for what in sites.left_out:
            self._guard.note(what)

    @property
    def run(self) -> str | None:
        """Hash of the run, as in the tables; None in a process that does not write it."""
        return self._writer.state.run if self._writer else None

    @property
    def folder(self) -> Path | None:
        """Folder of the run; None in a process that does not write it."""
        return self._writer.folder if self._writer else None

    @property
    def first_bad(self) -> dict[str, Any] | None:
        """The first non-finite tensor, in the order of execution."""
        return self._writer.first_bad if self._writer else None

    @property
    def steps_done(self) -> int:
        """Number of steps that have ended."""
        return self._step + self._has_ended

    def __repr__(self) -> str:
        where = self.folder or "sent to rank 0"
        does = "closed" if self._is_closed else "recording"
        bad = f", not finite since step {self.first_bad['step']}" if self.first_bad else ""
        return f"<Recording {where}: {does}, {self.steps_done} steps{bad}>"

    def __enter__(self) -> "Recording":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)

    # What the loop may say.

    def log(self, **numbers: Any) -> None:
        """Add columns of the steps table (``loss``, ``val_loss``, ``lr``, ...) to the current step.

        A value may be a number, a tensor or an array with one entry. An unknown column is warned
        of and left out.
        """
        known = LOGGED.keys()
        for name, value in numbers.items():
            if name not in known:
                self._guard.note(f"steps has no column {name!r}; it has {', '.join(sorted(known))}")
            elif isinstance(value, Tensor | np.ndarray):  # the loop may change it in place
                self._logged[name] = deepcopy(
                    value.detach() if isinstance(value, Tensor) else value
                )
            else:
                self._logged[name] = value

    def step(self) -> None:
        """End the step: what comes next belongs to another one."""
        self._guard(self._end_step)()

    def skip(self) -> None:
        """End the step, and say that its update was left out."""
        self._guard(self.left_out)(by_loop=True)

    def flush(self) -> None:
        """Bring every row to disk now, but for those of the current step."""
        if self._writer:
            self._guard(self._writer.flush)()

    def _end_step(self) -> None:
        if self._has_ended and self._options.steps == "loop":
            self._conclude()
        self._has_ended = True

    # Passes, as `passes.PassHooks` tells of them.

    def begin_pass(self, training: bool) -> Pass:
        """A forward pass begins: end the step before it, if that has had its update."""
        if self._has_ended:
            if training:
                self._conclude()
        elif self._options.steps == "updates" and any(p.reached for p in self._passes):
            self._look_at_gradients()
        late = self._has_ended
        recorded = self._options.records(self._step + late)
        if not self._has_begun and not late:
            self._begin_step()
        if self._options.loss_scale is not None:
            self._scale = float(self._options.loss_scale())
        self._forget_unreached()
        begun = Pass(training, recorded, late)
        self._passes.append(begun)
        return begun

    def _forget_unreached(self) -> None:
        """Keep few passes without a backward pass. One that comes later brings its pass back."""
        waiting = [p for p in self._passes if not p.reached]
        for forgotten in waiting[:-UNREACHED]:
            self._passes.remove(forgotten)

    def _begin_step(self) -> None:
        self._has_begun = True
        if self._options.records(self._step):
            self._parameters.begin()

    def _look_at_gradients(self) -> None:
        """Without an optimizer's step: has the loop updated the weights, or thrown passes away?"""
        if not self._saw_update and self._parameters.are_updated_by_loop():
            self._parameters.after_update()
            self._has_ended = True
            self._conclude()
        else:
            self._leave_out_cleared()

    def _leave_out_cleared(self) -> None:
        """Forget the passes of which the loop has thrown the gradients away."""
        if not self._parameters.are_cleared():
            return  # it accumulates
        thrown = [p for p in self._passes if p.reached]
        self._passes = [p for p in self._passes if not p.reached]
        for of in thrown:
            of.reached = False  # another backward pass may come through it
        self._left_out.extend(thrown)
        self._has_cleared = True
        self._parameters.drop_gradients()

    def begin_backward(self) -> None:
        """A backward pass begins: has the loop cleared the gradients since the last one?"""
        is_open = self._options.steps == "updates" and not self._has_ended
        if is_open and any(p.reached for p in self._passes):
            self._leave_out_cleared()

    def reach(self, of: Pass) -> None:
        """A backward pass comes through a forward pass: it belongs to the current step.

        The forward pass may have been made before the update of the last step, or long before.
        """
        for several in (self._passes, self._left_out):
            if of in several:
                several.remove(of)
        if self._has_ended:
            self._conclude()
            self._begin_step()
        of.late = False
        self._passes.append(of)

    def end_backward(self) -> None:
        """A backward pass has ended; the gradients are those before any clipping."""
        self._backward_passes += 1
        self._parameters.note_gradients(with_weights=not self._saw_update)
        if self._options.records(self._step):
            self._parameters.look_up()
            self._parameters.measure_gradients()
            if not self._saw_update:
                self._parameters.keep_weights()

    # Updates, as `optimizers.OptimizerHooks` tells of them.

    def is_concerned(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer updates parameters of the model."""
        return self._parameters.are_of(optimizer)

    def begin_update(self, optimizer: torch.optim.Optimizer, with_closure: bool) -> None:
        """Keep the weights that the optimizer will change."""
        is_next = with_closure or optimizer in self._updated_by
        if is_next and self._has_ended and self._options.steps == "updates":
            self._conclude()
        if not self._has_begun:
            self._begin_step()
        if self._options.records(self._step):
            self._parameters.keep_weights(self._parameters.of(optimizer))

    def before_evaluation(self, again: bool) -> None:
        """A closure runs; of several evaluations in one step the last counts."""
        if again:
            self._passes = [p for p in self._passes if not p.reached]

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure the gradients that no backward pass of the step has shown, and their norm."""
        is_by_hand = self._has_cleared and self._parameters.are_replaced()
        if is_by_hand and self._left_out:
            self._guard.note(
                "the loop cleared gradients and set others before an update: "
                "the passes before the last one are in no row"
            )
        if self._options.records(self._step):
            self._parameters.before_update(optimizer, anew=is_by_hand)

    def after_update(self, optimizer: torch.optim.Optimizer, skipped: Tensor | None) -> None:
        """Measure the update. The step ends, unless the loop itself says when."""
        if self._options.records(self._step):
            self._parameters.after_update(self._parameters.of(optimizer))
        if skipped is not None:
            self._found_inf.append((optimizer, skipped.detach().clone()))
        self._saw_update = True
        self._updated_by.add(optimizer)
        self._hooks.end_loose_pass()
        self._end_update()

    def left_out(self, by_loop: bool = False) -> None:
        """The update of the step is left out."""
        self._skipped = True
        if by_loop:
            self._has_ended = True
            self._parameters.drop_updates()
        else:
            self._end_update()

    def _end_update(self) -> None:
        if self._options.steps == "updates":
            self._has_ended = True

    def scaled(self, scale: Tensor) -> None:
        """A gradient scaler has multiplied the loss."""
        if self._options.loss_scale is None:
            self._scale = scale

    # Rows.

    def _conclude(self) -> None:
        """Write the step, and begin the next."""
        self._hooks.finish(self._passes)
        used = [p for p in self._passes if p.reached and not p.late]
        used = [p for p in used if p.training] or used
        used = used or [p for p in self._passes if p.asked and not p.late]
        late = [p for p in self._passes if p.late]
        others = [p for p in self._passes if p not in used and p not in late and p.training]
        self._passes = late
        for of in late:
            of.late = False
        if not self._gathering.processes:  # else ranks might disagree on which step this is
            logged, self._logged = self._logged, {}  # it is of the update
            self._write_if_bad(parts_of([*self._left_out, *others], {}))
            self._logged = logged
        self._left_out.clear()
        self._has_cleared = False
        self._parameters.drop_gradients_of_others()
        for optimizer in [its for its, found in self._found_inf if found]:
            self._skipped = True
            self._parameters.drop_updates(self._parameters.of(optimizer))
        self._found_inf.clear()
        self._write_step(parts_of(used, self._parameters.vectors))
        self._has_ended = self._has_begun = False
        self._updated_by.clear()
        self._skipped, self._scale = False, 1.0
        if late:
            self._begin_step()

    def _write_if_bad(self, parts: Parts) -> None:
        """Write what led to no update as a skipped step, if it is the first that is not finite."""
        found = self._gathered(parts, LAST_SECONDS)
        if found is None or self.first_bad is not None:
            return
        recorded = found.step(float(self._scale))
        if recorded is not None and recorded.is_bad():
            self._write(found, skipped=True)

    def _write_step(self, parts: Parts) -> None:
        """Write a step, of which this process measured these parts."""
        recorded = self._options.records(self._step)
        found = self._gathered(parts, self._patience) if recorded else None
        self._write(found, skipped=self._skipped)
        self._parameters.vectors = {}

    def _gathered(self, parts: Parts, seconds: float | None) -> Gathered | None:
        found = self._gathering.gather(parts, self._parameters.clipping, seconds)
        processes = self._gathering.processes
        if processes and processes.gone:
            self._guard.note(f"{processes.gone} of {processes.size} processes stopped")
        return found

    def _write(self, found: Gathered | None, skipped: bool) -> None:
        """Write the rows of a step, and count it."""
        instant = time.perf_counter()
        row: dict[str, Any] = {
            "step": self._step,
            "skipped": skipped,
            "step_s": instant - self._step_began,
            "record_s": self._guard.take_seconds(),
        }
        self._step_began = instant
        if self._writer:
            try:
                row |= self._write_layers(self._writer, found)
            except Exception as error:  # what cannot be written costs no other step
                self._guard.note(f"the layers of a step could not be written: {one_line(error)}")
            row |= {name: self._number(name, value) for name, value in self._logged.items()}
            if self._live:
                self._live.send(self._writer.written, row)
            self._writer.state.notes = self._guard.notes or None
            self._writer.end_step(row)
        self._logged = {}
        self._step += 1

    def _number(self, name: str, value: Any) -> float | None:
        """A logged value as a number; anything with one entry will do."""
        try:
            return LOGGED[name](value.item() if hasattr(value, "item") else value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            if value is not None:
                self._guard.note(
                    f"log({name}=...): {type(value).__name__} is not read as one number"
                )
            return None

    def _write_layers(self, writer: RunWriter, found: Gathered | None) -> dict[str, float]:
        """Write the layers of a step; returns its loss scale, gradient norm, factor of clipping."""
        scale = float(self._scale)
        numbers: dict[str, float | None] = {"loss_scale": None if scale == 1.0 else scale}
        writer.describe(self._hooks.autocast)
        if found is not None:
            recorded = found.step(scale)
            if recorded is None:
                self._steps_empty += 1
            else:
                writer.add_layers(self._step, recorded)
                numbers["grad_norm"] = recorded.norm("weight_grad")
                numbers["clip_factor"] = found.clipping.factor(scale)
        return {name: value for name, value in numbers.items() if value is not None}

    # The end.

    def close(self, error: BaseException | None = None) -> None:
        """Remove the hooks, write what is left, and say in run.json how the loop ended.

        May be repeated. Raises nothing: an error of the recorder is warned of.

        Args:
            error: what ended the loop, if anything did.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if not self._guard.is_own_process:
            return  # the process that made the recording writes it
        if error is not None:  # the others may wait for this process instead of sending
            self._patience = LAST_SECONDS
        try:
            self._guard(self._end_last_step)()
        finally:
            self._guard.end()
            self._hooks.remove()
            if self._at_init:
                self._at_init.remove()
            self._optimizers.remove()
            self._at_exit.remove()
        try:
            self._say_how_it_ended(error)
        except Exception as problem:
            say(f"the end could not be written: {one_line(problem)}")

    def _end_last_step(self) -> None:
        """Write what is open: a step with its update, the only passes, or those not finite."""
        if self._has_ended:
            self._conclude()
        self._hooks.finish(self._passes)
        reached = [p for p in self._passes if p.reached]
        if not self._saw_update and reached and self._parameters.are_updated_by_loop():
            self._parameters.after_update()  # a loop without an optimizer ends with an update
            self._conclude()
        elif self._step == self._options.first_step and self._passes:
            # Passes at init, without an update.
            if self._backward_passes > 1:
                many = f"{self._backward_passes} backward passes and no update of a parameter"
                self._guard.note(f"{many} were seen: what is recorded of them is one step")
            self._write_step(parts_of(reached or self._passes, self._parameters.vectors))
        else:
            self._write_if_bad(parts_of([*self._left_out, *self._passes], {}))
        if self._gathering.processes:
            self._gathering.processes.leave()

    def _say_how_it_ended(self, error: BaseException | None) -> None:
        if not self._writer:
            return
        failure = None if _is_regular(error) else error
        failure = failure or self._guard.error
        is_empty = not (self._writer.recorded or self._options.first_step)
        if self._guard.error is None and (self._step or not is_empty):
            self._say_what_is_missing()
        if failure is None and is_empty:
            nothing = f"nothing was recorded: {self._why_empty()}"
            self._guard.note(nothing)
            failure = RuntimeError(nothing)
        is_interrupt = isinstance(error, KeyboardInterrupt | Terminated)
        status = "interrupted" if is_interrupt else "failed" if failure else "completed"
        self._writer.state.notes = self._guard.notes or None
        self._writer.close(status, failure)

    def _why_empty(self) -> str:
        if self._step:
            return f"no pass of the model belongs to its {self._step} steps"
        if self._hooks.without_gradient:
            return f"the model ran {self._hooks.without_gradient} times, all without gradients"
        return "the model did not run"

    def _say_what_is_missing(self) -> None:
        if silent := self._hooks.silent:
            names = "; ".join(str(key) for key in silent[:6])
            more = f" and {len(silent) - 6} more" if len(silent) > 6 else ""
            where = "where the recorder could see them"
            self._guard.note(f"these sites never ran {where}: {names}{more}")
        if self._steps_empty and self._step - self._options.first_step > self._steps_empty:
            self._guard.note(f"{self._steps_empty} recorded steps held no pass of the model")


def _is_regular(error: BaseException | None) -> bool:
    """Whether a loop ends so without having failed: ``sys.exit()``, a generator that is closed."""
    is_exit = isinstance(error, SystemExit) and error.code in (None, 0)
    return is_exit or isinstance(error, GeneratorExit)
