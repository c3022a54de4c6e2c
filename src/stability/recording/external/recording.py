"""A recording of an external training loop: tells its steps apart and has their rows written."""

import math
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stability.config.names import Key
from stability.recording.external.lifetime import AtExit, Terminated
from stability.recording.external.measured_step import Parts, parts_of, step_of
from stability.recording.external.optimizers import OptimizerHooks
from stability.recording.external.parameters import Parameters
from stability.recording.external.passes import Pass, PassHooks, Site
from stability.recording.external.processes import Batches, Processes
from stability.recording.external.run_writer import RunWriter
from stability.recording.recorded_step import RecordedStep
from stability.results import schema
from stability.results.run_file import one_line

StepMode = Literal["updates", "loop"]
"""What ends a step: the updates that the recording sees, or only ``recording.step()``."""

LAST_SECONDS = 10.0
"""How long the end of a recording waits for other processes."""


class Recording:
    """What `record` returns: a context manager, which also takes what only the loop knows.

    A step is the time between two updates. Its rows describe the passes whose gradients the update
    used. The recording ends a step when the next one begins, so that values logged at any time
    between the first forward pass of a step and that of the next reach the row of this step.

    Args:
        model, sites, key_of, kinds, token_dim, each_call, every, ring, steps: see `record`.
        loss_scale: gives the factor on the loss; None: gradient scalers are asked.
        writer: writes the run; None in a process that sends what it measures to rank 0.
        processes: those that record together; None if this is the only one.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Mapping[nn.Module, Sequence[Site]],
        key_of: Callable[[str], Key],
        *,
        kinds: Sequence[str],
        token_dim: int,
        each_call: bool,
        every: int,
        ring: int,
        steps: StepMode,
        loss_scale: Callable[[], float] | None,
        writer: RunWriter | None,
        processes: Processes | None,
    ) -> None:
        self._model, self._writer, self._processes = model, writer, processes
        self._every, self._ring = every, ring
        self._mode, self._loss_scale = steps, loss_scale
        self._step = 0
        """Index of the current step."""
        self._events = 0
        self._steps_empty = 0
        self._is_active, self._is_closed, self._nesting = True, False, 0
        self._error: BaseException | None = None
        self._warned: list[str] = []
        self._step_began = time.perf_counter()
        self._step_record_s = 0.0
        self._passes: list[Pass] = []
        self._left_out: deque[Pass] = deque(maxlen=4)
        self._logged: dict[str, Any] = {}
        self._has_begun = self._has_ended = self._saw_update = False
        self._skipped: bool | Tensor = False
        self._clipped_square: float | None = None
        self._scale: float | Tensor = 1.0
        self._parameters = Parameters(
            model, key_of, kinds, self._warn, counts_whole=writer is not None
        )
        self._hooks = PassHooks(
            model,
            sites,
            kinds,
            token_dim,
            each_call,
            self._begin_pass,
            self._reach,
            self._end_backward,
            self._guarded,
            self._warn,
        )
        self._optimizers = OptimizerHooks(self, self._guarded)
        self._at_exit = AtExit(self.close)

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
        known = {c.name for c in schema.STEPS} - {"run", "step"}
        for name, value in numbers.items():
            if name not in known:
                self._warn(f"steps has no column {name!r}; it has {', '.join(sorted(known))}")
            else:
                self._logged[name] = value.detach() if isinstance(value, Tensor) else value

    def step(self) -> None:
        """End the step: what comes next belongs to another one."""
        self._guarded(self._end_step)()

    def skip(self) -> None:
        """End the step, and say that its update was left out."""
        self._guarded(self.left_out)(by_loop=True)

    def flush(self) -> None:
        """Bring every row to disk now, but for those of the current step."""
        if self._writer:
            self._guarded(self._writer.flush)()

    def _end_step(self) -> None:
        if self._has_ended and self._mode == "loop":
            self._conclude()
        self._has_ended = True

    # Errors of the recorder.

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """The function, timed; an error in it ends the recording and never the training."""

        @wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> None:
            if not self._is_active:
                return
            self._nesting += 1
            began = time.perf_counter()
            try:
                function(*args, **kwargs)
            except Exception as error:
                self._give_up(error)
            finally:
                self._nesting -= 1
                if not self._nesting:
                    self._step_record_s += time.perf_counter() - began

        return guarded

    def _give_up(self, error: Exception) -> None:
        self._is_active, self._error = False, error
        if self._processes:
            self._processes.leave()
        _say(f"stopped at step {self._step}, the training goes on: {one_line(error)}")

    def _warn(self, what: str) -> None:
        if what not in self._warned:
            self._warned.append(what)
            if self._writer:
                self._writer.state.notes = self._warned
            _say(what)

    # Passes.

    def _begin_pass(self, training: bool) -> Pass:
        """A forward pass begins: end the step before it, if that has had its update."""
        if self._has_ended:
            if training:
                self._conclude()
        elif self._mode == "updates" and any(p.reached for p in self._passes):
            self._look_at_gradients()
        late = self._has_ended
        recorded = self._is_recorded(self._step + late)
        if not self._has_begun and not late:
            self._begin_step()
        if self._loss_scale is not None:
            self._scale = float(self._loss_scale())
        self._forget_unreached()
        begun = Pass(training, recorded, late)
        self._passes.append(begun)
        return begun

    def _forget_unreached(self) -> None:
        """Keep few passes that no backward pass has reached: of a validation there are many."""
        waiting = [p for p in self._passes if not p.reached]
        for forgotten in waiting[:-64]:
            self._passes.remove(forgotten)

    def _begin_step(self) -> None:
        self._has_begun = True
        if self._is_recorded(self._step):
            self._parameters.begin()

    def _look_at_gradients(self) -> None:
        """Without an optimizer's step: has the loop updated the weights, or thrown passes away?"""
        if not self._parameters.are_cleared():
            return  # it accumulates
        if not self._saw_update and self._parameters.have_changed():
            self._parameters.after_update()
            self._has_ended = True
            self._conclude()
        else:
            self._left_out.extend(p for p in self._passes if p.reached)
            self._passes = [p for p in self._passes if not p.reached]

    def _reach(self, of: Pass) -> None:
        """A backward pass comes through a pass that began after the update."""
        if of.late and self._has_ended:
            self._passes.remove(of)
            self._conclude()
            self._begin_step()
            of.late = False
            self._passes.append(of)

    def _end_backward(self) -> None:
        """A backward pass has ended; the gradients are those before any clipping."""
        self._parameters.note_gradients(with_weights=not self._saw_update)
        if self._is_recorded(self._step):
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
        if with_closure and self._has_ended and self._mode == "updates":
            self._conclude()
        if not self._has_begun:
            self._begin_step()
        if self._is_recorded(self._step):
            self._parameters.keep_weights(self._parameters.of(optimizer))

    def before_evaluation(self, again: bool) -> None:
        """A closure runs; of several evaluations in one step the last counts."""
        if again:
            self._passes = [p for p in self._passes if not p.reached]

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure the gradients that no backward pass of the step has shown, and their norm."""
        if self._is_recorded(self._step):
            self._parameters.before_update(optimizer)

    def after_update(self, optimizer: torch.optim.Optimizer, skipped: Tensor | None) -> None:
        """Measure the update. The step ends, unless the loop itself says when."""
        if self._is_recorded(self._step):
            self._parameters.after_update(self._parameters.of(optimizer))
        if skipped is not None:
            self._skipped = skipped.detach().clone()
        self._saw_update = True
        self._hooks.end_loose_pass()
        self._end_update()

    def left_out(self, by_loop: bool = False) -> None:
        """The update of the step is left out."""
        self._skipped = True
        if by_loop:
            self._has_ended = True
        else:
            self._end_update()

    def _end_update(self) -> None:
        if self._mode == "updates":
            self._has_ended = True

    def scaled(self, scale: Tensor) -> None:
        """A gradient scaler has multiplied the loss."""
        if self._loss_scale is None:
            self._scale = scale

    # Rows.

    def _is_recorded(self, step: int) -> bool:
        return step % self._every == 0 or self._ring > 0

    def _conclude(self) -> None:
        """Write the step, and begin the next."""
        self._hooks.finish(self._passes)
        used = [p for p in self._passes if p.reached and not p.late]
        used = [p for p in used if p.training] or used
        late = [p for p in self._passes if p.late]
        others = [p for p in self._passes if p not in used and p not in late and p.training]
        self._passes = late
        for of in late:
            of.late = False
        if not self._processes:  # else ranks might disagree on which step this is
            self._write_if_bad(parts_of([*self._left_out, *others], {}))
        self._left_out.clear()
        self._skipped = bool(self._skipped)
        self._parameters.drop_gradients_of_others()
        if self._skipped:
            self._parameters.drop_updates()
        self._write_step(parts_of(used, self._parameters.vectors))
        self._has_ended = self._has_begun = False
        self._skipped, self._scale = False, 1.0
        if late:
            self._begin_step()

    def _write_if_bad(self, parts: Parts, seconds: float = LAST_SECONDS) -> None:
        """Write what led to no update as a skipped step, if it is the first that is not finite."""
        everywhere = self._gathered(parts, seconds)
        if not self._writer or self._writer.first_bad is not None:
            return
        recorded = self._joined(everywhere)
        if recorded is not None and recorded.is_bad():
            skipped, self._skipped = self._skipped, True
            self._write(recorded)
            self._skipped = skipped

    def _write_step(self, parts: Parts) -> None:
        """Write a step, of which this process measured these parts."""
        recorded = None
        if self._is_recorded(self._step):
            recorded = self._joined(self._gathered(parts))
            self._steps_empty += recorded is None
        self._write(recorded)
        self._parameters.vectors = {}

    def _gathered(self, parts: Parts, seconds: float | None = None) -> list[tuple[Hashable, Parts]]:
        """What all processes measured, in the one that writes; each with the name of its batch."""
        square = self._parameters.clipped_square
        self._clipped_square = None if square is None else float(square)
        if self._processes is None:
            return [(0, parts)]
        self._events += 1
        on_cpu = {slot: part.on_cpu() for slot, part in parts.items()}
        mine = Batches.of(self._model).mine, on_cpu, self._clipped_square
        if not self._writer:
            self._processes.send(self._events, mine)
            return []
        others = self._processes.received(self._events, *([] if seconds is None else [seconds]))
        if self._processes.gone:
            self._warn(f"{self._processes.gone} of {self._processes.size} processes stopped")
        squares = [its for *_, its in (mine, *others) if its is not None]
        self._clipped_square = sum(squares) if squares else None
        return [(batch, its) for batch, its, _ in (mine, *others)]

    def _joined(self, everywhere: list[tuple[Hashable, Parts]]) -> RecordedStep | None:
        scale = float(self._scale)
        batches = Batches.of(self._model).number if self._processes else 1
        return step_of(everywhere, {"grad": scale * batches, "weight_grad": scale})

    def _write(self, recorded: RecordedStep | None) -> None:
        """Write the rows of a step, and count it."""
        instant, record_s = time.perf_counter(), self._step_record_s
        row: dict[str, Any] = {"step": self._step, "skipped": bool(self._skipped)}
        row |= {"step_s": instant - self._step_began, "record_s": record_s}
        self._step_began, self._step_record_s = instant, 0.0
        if self._writer:
            try:
                row |= self._numbers(recorded)
                self._writer.describe(self._hooks.autocast)
                if recorded is not None:
                    self._writer.add_layers(self._step, recorded)
            except Exception as error:  # what cannot be written costs no other step
                self._warn(f"the layers of a step could not be written: {one_line(error)}")
            row |= {name: _number(value) for name, value in self._logged.items()}
            self._writer.end_step(row)
        self._logged = {}
        self._step += 1

    def _numbers(self, recorded: RecordedStep | None) -> dict[str, float]:
        """Loss scale, norm of the gradients before clipping, and the factor of clipping."""
        scale = float(self._scale)
        found = {} if scale == 1.0 else {"loss_scale": scale}
        norm = recorded.norm("weight_grad") if recorded else None
        if norm is not None:
            found["grad_norm"] = norm
            if self._clipped_square is not None and norm > 0:
                found["clip_factor"] = math.sqrt(self._clipped_square) / norm
        return found

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
        try:
            self._guarded(self._end_last_step)()
        finally:
            self._is_active = False
            self._hooks.remove()
            self._optimizers.remove()
            self._at_exit.remove()
        try:
            self._say_how_it_ended(error)
        except Exception as problem:
            _say(f"the end could not be written: {one_line(problem)}")

    def _end_last_step(self) -> None:
        """Write what is open: a step with its update, the only passes, or those not finite."""
        if self._has_ended:
            self._conclude()
        self._hooks.finish(self._passes)
        reached = [p for p in self._passes if p.reached]
        if not self._saw_update and reached and self._parameters.have_changed():
            self._parameters.after_update()  # a loop without an optimizer ends with an update
            self._conclude()
        elif not self._step and self._passes:  # passes at init, without an update
            self._write_step(parts_of(reached or self._passes, self._parameters.vectors))
        else:
            self._write_if_bad(parts_of([*self._left_out, *self._passes], {}))
        if self._processes:
            self._processes.leave()

    def _say_how_it_ended(self, error: BaseException | None) -> None:
        if not self._writer:
            return
        if self._error is None:
            self._say_what_is_missing()
        if self._error is None and error is None and not self._writer.recorded:
            self._warn(f"nothing was recorded in {self._step} steps")
            self._error = RuntimeError(f"nothing was recorded in {self._step} steps")
        is_interrupt = isinstance(error, KeyboardInterrupt | Terminated)
        failure = error or self._error
        status = "interrupted" if is_interrupt else "failed" if failure else "completed"
        self._writer.close(status, failure)

    def _say_what_is_missing(self) -> None:
        if silent := self._hooks.silent:
            names = "; ".join(str(key) for key in silent[:6])
            more = f" and {len(silent) - 6} more" if len(silent) > 6 else ""
            self._warn(f"these sites never ran where the recorder could see them: {names}{more}")
        if self._steps_empty and self._step > self._steps_empty:
            self._warn(f"{self._steps_empty} recorded steps held no pass of the model")


def _say(what: str) -> None:
    """Warn. Where warnings are errors, write to stderr: no warning may end a training."""
    try:
        warnings.warn(f"stability.record: {what}", RuntimeWarning, stacklevel=3)
    except RuntimeWarning as warning:
        print(warning, file=sys.stderr)


def _number(value: Any) -> float | bool | None:
    """A logged value as a number; anything with one entry will do."""
    try:
        value = value.item() if hasattr(value, "item") else value
        return value if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
