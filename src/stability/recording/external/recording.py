"""A recording of an external training loop: tells its steps apart and writes their rows."""

import atexit
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
import yaml
from torch import Tensor, nn

from stability.config.names import Key
from stability.recording import stats
from stability.recording.external.optimizers import OptimizerHooks
from stability.recording.external.parameters import Parameters
from stability.recording.external.passes import Measured, Pass, PassHooks, Site
from stability.recording.layer_log import LayerLog
from stability.recording.machine import finfo
from stability.recording.recorded_step import RecordedStep, Rows, Slot, first_bad
from stability.results import schema
from stability.results.atomic import write_text
from stability.results.parquet import Writer, run_metadata
from stability.results.run_file import RunFile, now, one_line

FLUSH_STEPS, FLUSH_SECONDS = 20, 30.0
"""Rows reach the disk after so many recorded steps, or after so many seconds."""

StepMode = Literal["updates", "loop"]


class Recording:
    """What `record` returns: a context manager, which also takes what only the loop knows.

    A step is the time between two updates. Its rows describe the passes whose gradients the update
    used. The recording ends a step when the next one begins, so that values logged at any time
    between the first forward pass of a step and that of the next reach the row of this step.

    Args:
        model, sites, key_of, kinds, token_dim, each_call, every, ring, steps: see `record`.
        loss_scale: gives the factor on the loss; None: gradient scalers are asked.
        folder: of the run.
        state: what run.json says.
        config: of the run.
        format_of: names the number format of activations, given that of autocast.
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
        folder: Path,
        state: RunFile,
        config: dict[str, Any],
        format_of: Callable[[torch.dtype | None], tuple[str, torch.dtype]],
    ) -> None:
        self.folder, self.state = folder, state
        self._step = 0
        """Index of the current step."""
        self.first_bad: dict[str, Any] | None = None
        """The first non-finite tensor, in the order of execution."""
        self.record_seconds = 0.0
        """Host seconds spent on recording."""
        self._mode, self._loss_scale, self._gradients = steps, loss_scale, "grad" in kinds
        self._config, self._format_of = config, format_of
        self._autocast: torch.dtype | None = None
        self._tables = {name: Writer(folder, name, {}) for name in ("layers", "steps")}
        self._layers = LayerLog(self._tables["layers"], state.run, every, ring)
        self._is_active, self._is_closed, self._nesting = True, False, 0
        self._warned: set[str] = set()
        self._steps_recorded = self._steps_empty = self._unflushed = 0
        self._flush_by = time.monotonic() + FLUSH_SECONDS
        self._began = self._step_began = time.perf_counter()
        self._step_record_s = 0.0
        self._passes: list[Pass] = []
        self._left_out: deque[Pass] = deque(maxlen=4)
        self._logged: dict[str, Any] = {}
        self._has_begun = self._has_ended = self._saw_update = False
        self._skipped: bool | Tensor = False
        self._scale: float | Tensor = 1.0
        self._parameters = Parameters(model, key_of, kinds, self._warn)
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
        self._at_exit = _AtExit(self)
        self._write_config()
        self._write_state()

    @property
    def run(self) -> str:
        """Hash of the run, as in the tables."""
        return self.state.run

    @property
    def steps_done(self) -> int:
        """Number of steps that have ended."""
        return self._step + self._has_ended

    def __repr__(self) -> str:
        does = "closed" if self._is_closed else "recording"
        bad = f", not finite since step {self.first_bad['step']}" if self.first_bad else ""
        return f"<Recording {self.folder}: {does}, {self.steps_done} steps{bad}>"

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
        self._is_active = False
        self.state.fail(error)
        _say(f"stopped at step {self._step}, the training goes on: {one_line(error)}")

    def _warn(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            self.state.notes = [*(self.state.notes or ()), what]
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
        recorded = self._layers.is_recorded(self._step + late)
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
        if self._layers.is_recorded(self._step):
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
        if self._layers.is_recorded(self._step):
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
        if self._layers.is_recorded(self._step):
            self._parameters.keep_weights(self._parameters.of(optimizer))

    def before_evaluation(self, again: bool) -> None:
        """A closure runs; of several evaluations in one step the last counts."""
        if again:
            self._passes = [p for p in self._passes if not p.reached]

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure the gradients that no backward pass of the step has shown, and their norm."""
        if self._layers.is_recorded(self._step):
            self._parameters.before_update(optimizer)

    def after_update(self, optimizer: torch.optim.Optimizer, skipped: Tensor | None) -> None:
        """Measure the update. The step ends, unless the loop itself says when."""
        if self._layers.is_recorded(self._step):
            self._parameters.after_update(self._parameters.of(optimizer))
        if skipped is not None:
            self._skipped = skipped.detach().clone()
        self._saw_update = True
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
        self._write_if_bad([*self._left_out, *others])
        self._left_out.clear()
        self._write_step(used, self._parameters_vectors())
        self._has_ended = self._has_begun = False
        self._skipped, self._scale = False, 1.0
        if late:
            self._begin_step()

    def _parameters_vectors(self) -> dict[tuple[str, Key], Tensor]:
        skipped = self._skipped = bool(self._skipped)
        self._parameters.drop_gradients_of_others()
        if skipped:
            self._parameters.drop_updates()
        return self._parameters.vectors

    def _write_if_bad(self, passes: Sequence[Pass]) -> bool:
        """Write passes that led to no update as a skipped step, if they are the first bad ones."""
        if self.first_bad is not None or not any(p.calls for p in passes):
            return False
        recorded = self._recorded(passes, {})
        if recorded is None or not recorded.is_bad():
            return False
        skipped, self._skipped = self._skipped, True
        self._write_step(passes, {})
        self._skipped = skipped
        return True

    def _write_step(
        self, passes: Sequence[Pass], vectors: Mapping[tuple[str, Key], Tensor]
    ) -> None:
        if self._hooks.autocast not in (None, self._autocast):
            self._autocast = self._hooks.autocast
            self._write_config()
        step, scale = self._step, float(self._scale)
        row: dict[str, Any] = {"step": step, "skipped": bool(self._skipped)}
        if scale != 1.0:
            row["loss_scale"] = scale
        is_recorded = False
        if self._layers.is_recorded(step):
            row |= self._norms(scale)
            try:
                is_recorded = self._write_layers(passes, vectors)
            except Exception as error:  # what cannot be written costs no other step
                self._warn(f"the layers of a step could not be written: {one_line(error)}")
        instant = time.perf_counter()
        row |= {"step_s": instant - self._step_began, "record_s": self._step_record_s}
        self._step_began, self.record_seconds = instant, self.record_seconds + self._step_record_s
        self._step_record_s = 0.0
        row |= {name: _number(value) for name, value in self._logged.items()}
        self._logged = {}
        row["run"] = self.run
        self._tables["steps"].append({name: [value] for name, value in row.items()})
        self._step += 1
        self._parameters.vectors = {}
        self._flush_if_due(is_recorded)

    def _write_layers(
        self, passes: Sequence[Pass], vectors: Mapping[tuple[str, Key], Tensor]
    ) -> bool:
        """Write the rows of a step's layers; whether there were any."""
        recorded = self._recorded(passes, vectors)
        if recorded is None:
            self._steps_empty += 1
            return False
        self._keep(self._step, recorded)
        self._steps_recorded += 1
        return True

    def _norms(self, scale: float) -> dict[str, float]:
        """Norm of the gradients before clipping, and what clipping multiplied it by."""
        before, after = self._parameters.gradient_norm(), self._parameters.clipped_norm
        if before is None:
            return {}
        found = {"grad_norm": float(before) / scale}
        if after is not None and found["grad_norm"] > 0:
            found["clip_factor"] = float(after) / found["grad_norm"]
        return found

    def _recorded(
        self, passes: Sequence[Pass], vectors: Mapping[tuple[str, Key], Tensor]
    ) -> RecordedStep | None:
        """The statistics of a step in the order of execution."""
        calls = [call for p in passes for call in p.calls]
        acts: dict[Key, list[Measured]] = {}
        grads: dict[Key, list[Measured]] = {}
        order: dict[Slot, tuple[int, ...]] = {}
        backward_of: dict[tuple[int, str], int] = {}
        for call in sorted(calls, key=lambda call: call.order):
            if call.act is not None:
                acts.setdefault(call.key, []).append(call.act)
                order.setdefault(("act", (call.key,)), (1, call.order))
            if call.grad is not None:
                grads.setdefault(call.key, []).append(call.grad)
                order.setdefault(("grad", (call.key,)), (2, call.grad_order, 0))
                backward_of.setdefault(call.key[:2], call.grad_order)
        found: dict[Slot, Tensor] = {
            (kind, (key,)): stats.merge_passes(parts)
            for kind, several in (("act", acts), ("grad", grads))
            for key, parts in several.items()
        }
        last = 1 + max(backward_of.values(), default=0)
        for number, ((kind, key), vector) in enumerate(vectors.items()):
            slot = (kind, (key,))
            found[slot] = vector
            at = backward_of.get(key[:2], last)
            place = {"weight": (0, number), "weight_grad": (2, at, 1, number)}
            order[slot] = place.get(kind, (3, number))
        if not found:
            return None
        slots = sorted(found, key=order.__getitem__)
        scale = float(self._scale)
        scales = {"grad": scale, "weight_grad": scale}
        return RecordedStep(torch.stack([found[s] for s in slots]), slots, scales, 0.0)

    def _keep(self, step: int, recorded: RecordedStep) -> None:
        """Write the step if ``every`` says so or if it is not finite; else keep it in the ring."""
        if self.first_bad is not None or not recorded.is_bad():
            self._layers.add(step, recorded)
            return
        rows: Rows = self._layers.rows(step, recorded)
        self.first_bad = first_bad(rows)
        self._layers.write_ring(before=step)
        self._layers.write(rows)
        self.flush()

    def _flush_if_due(self, recorded: bool) -> None:
        self._unflushed += recorded
        if self._unflushed >= FLUSH_STEPS or time.monotonic() > self._flush_by:
            self.flush()

    def flush(self) -> None:
        """Bring every row, and what run.json says, to disk."""
        self._unflushed, self._flush_by = 0, time.monotonic() + FLUSH_SECONDS
        for table in self._tables.values():
            table.flush()
        self._write_state()

    def _write_config(self) -> None:
        name, format_ = self._format_of(self._autocast)
        self._config["dtype"], self.state.finfo = name, finfo(name, format_)
        for table in self._tables.values():
            table.describe(run_metadata(self._config, self.run))
        write_text(self.folder / schema.CONFIG_FILE, yaml.safe_dump(self._config, sort_keys=False))

    def _write_state(self) -> None:
        self.state.steps_done, self.state.first_bad = self.steps_done, self.first_bad
        self.state.seconds = time.perf_counter() - self._began
        self.state.record_seconds = self.record_seconds
        self.state.write(self.folder)

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
            for table in self._tables.values():
                table.close()
            self._write_state()
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
            self._write_step(reached or self._passes, self._parameters.vectors)
        else:
            self._write_if_bad([*self._left_out, *self._passes])

    def _say_how_it_ended(self, error: BaseException | None) -> None:
        silent = self._hooks.silent
        if silent and self.state.error is None:
            names = "; ".join(str(key) for key in silent[:6])
            more = f" and {len(silent) - 6} more" if len(silent) > 6 else ""
            self._warn(f"these sites never ran where the recorder could see them: {names}{more}")
        if self._steps_empty and self._steps_recorded:
            self._warn(f"{self._steps_empty} recorded steps held no pass of the model")
        if isinstance(error, KeyboardInterrupt | Terminated):
            self.state.fail(error, "interrupted")
        elif error is not None:
            self.state.fail(error)
        elif self.state.error is None and not self._has_rows():
            self.state.fail(RuntimeError(f"nothing was recorded in {self._step} steps"))
            self._warn(f"nothing was recorded in {self._step} steps")
        elif self.state.error is None:
            self.state.status = self.state.outcome = "completed"
            self.state.finished = now()

    def _has_rows(self) -> bool:
        return self._steps_recorded > 0


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


class Terminated(Exception):
    """The program was told to end."""


class _AtExit:
    """Closes a recording when the program ends, and brings its rows to disk at SIGTERM.

    A program's own handler of SIGTERM is left alone.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording, self._pid = recording, os.getpid()
        self._is_handling = False
        atexit.register(self._exit)
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        ):
            signal.signal(signal.SIGTERM, self._terminate)
            self._is_handling = True

    def _exit(self) -> None:
        if os.getpid() == self._pid:  # not in a forked data loader
            self._recording.close()

    def _terminate(self, number: int, _: Any) -> None:
        self.remove()
        if os.getpid() == self._pid:
            self._recording.close(Terminated("SIGTERM"))
        os.kill(os.getpid(), number)

    def remove(self) -> None:
        """Leave the program as it was."""
        atexit.unregister(self._exit)
        if self._is_handling and signal.getsignal(signal.SIGTERM) == self._terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._is_handling = False
