"""A stand-in for `training.job`: its runs end as their config says."""

import json
import os
import signal
import sys
import time


def execute(config, folder, report, stop):
    state = {
        "status": "running",
        "steps_done": 0,
        "error": None,
        "identity": {},
        "pid": os.getpid(),
    }
    state |= {"device": os.environ.get("CUDA_VISIBLE_DEVICES"), "final_loss": 1.0, "seconds": 0.1}
    put(folder, state)
    steps = config.train.steps
    for step in range(steps):
        row = {"loss": 1.0, "grad_norm": 1.0, "tokens_per_s": 1.0, "val_loss": None}
        report(row | {"step": step, "steps": steps})
        end(config.end)
        if stop():
            put(folder, state | {"status": "interrupted", "steps_done": step})
            return state | {"status": "interrupted", "steps_done": step}
        time.sleep(config.step_s)
    print("said by the job", flush=True)
    put(folder, state | {"status": "completed", "steps_done": steps})
    return state | {"status": "completed", "steps_done": steps}


def put(folder, state):
    hidden = folder / ".run.json"
    hidden.write_text(json.dumps(state))
    hidden.rename(folder / "run.json")


def end(how):
    if how == "raise":
        raise ValueError("the loss is a teapot\nand more")
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "memory":
        raise MemoryError
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
