"""One training in several processes against one process on the joined batch."""

import json
import os
import socket
import time

import pandas as pd
import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import stability

STEPS, TOKENS, WIDTH = 3, 6, 7  # a width that no number of ranks divides


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self, width=WIDTH, hidden=12):
        super().__init__()
        self.layers = nn.ModuleList(Block(width, hidden) for _ in range(3))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def net(**sizes):
    torch.manual_seed(0)
    return Net(**sizes)


def batch(step, width=WIDTH):
    return torch.randn(
        12, TOKENS, width, generator=torch.Generator().manual_seed(step), dtype=torch.float32
    )


SITES = r"layers\.(\d+)(?:\.(up|down))?"


def train(model, inner, folder, part=slice(None), width=WIDTH, clip=None, call=None, **options):
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    with stability.record(inner, folder, SITES, **options) as recording:
        for step in range(STEPS):
            optimizer.zero_grad()
            for x in batch(step, width).chunk(2):
                (model(x[part]).square().mean() / 2).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(inner.parameters(), clip)
            optimizer.step()
            recording.log(loss=float(step))


def share(rank, size):
    return slice(rank * (6 // size), (rank + 1) * (6 // size))


def ddp(rank, size, folder):
    model = net()
    train(DistributedDataParallel(model), model, folder, share(rank, size), clip=0.01)


def ddp_of_folders(rank, size, folder):
    model = net()
    train(DistributedDataParallel(model), model, f"{folder}{rank}", share(rank, size))


def ddp_of_rank_0(rank, size, folder):
    from stability.recording.external import processes

    processes.JOIN_SECONDS = 1.0
    model = net()
    if rank == 0:
        train(DistributedDataParallel(model), model, folder, share(rank, size))
        return
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        for x in batch(step).chunk(2):
            (wrapped(x[share(rank, size)]).square().mean() / 2).backward()
        optimizer.step()


def fsdp(rank, size, folder):
    model = net()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    train(model, model, folder, share(rank, size), clip=0.01)


def hsdp(rank, size, folder):
    model = net()
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, model, folder, share(rank, size), clip=0.01)


def fsdp_inside(rank, size, folder):
    """The model is sharded after the recording has begun."""
    model = net()
    with stability.record(model, folder, SITES) as recording:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            for x in batch(step).chunk(2):
                (model(x[share(rank, size)]).square().mean() / 2).backward()
            optimizer.step()
            recording.log(loss=float(step))


def tensor_parallel(rank, size, folder):
    model, mesh = net(width=8), init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    for layer in model.layers:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    train(model, model, folder, width=8)


def tensor_parallel_with_distributed_outputs(rank, size, folder):
    model, mesh = net(width=8), init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    for layer in model.layers:
        plan = {
            "up": ColwiseParallel(use_local_output=False),
            "down": RowwiseParallel(),
        }
        parallelize_module(layer, mesh, plan)
    train(model, model, folder, width=8)


def one_rank_stops_recording(rank, size, folder):
    model = net()
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording = stability.record(model, folder, SITES)
    for step in range(STEPS):
        optimizer.zero_grad()
        wrapped(batch(step)[share(rank, size)]).square().mean().backward()
        optimizer.step()
        if rank == 1 and step == 1:
            recording.close()
    recording.close()


def pipeline(rank, size, folder):
    """Each rank has two of the blocks, and writes its own part."""
    torch.manual_seed(0)
    blocks = [Block(WIDTH, 12) for _ in range(2 * size)]
    module = nn.Sequential(*blocks[2 * rank : 2 * rank + 2])
    # Without examples the stage tries its shapes in a pass over random memory.
    examples = [torch.zeros(4, TOKENS, WIDTH, requires_grad=r) for r in (rank > 0, True)]
    stage = PipelineStage(module, rank, size, torch.device("cpu"), *examples)
    schedule = ScheduleGPipe(stage, n_microbatches=3, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    # The schedule divides gradients by the number of micro-batches when they are complete.
    out = f"{folder}/stage{rank}"
    with stability.record(module, out, r"(\d+)", loss_scale=lambda: 3.0):
        for step in range(STEPS):
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(batch(step))
            else:
                schedule.step(target=torch.zeros(12, TOKENS, WIDTH))
            optimizer.step()


def rank_0_fails(rank, size, folder):
    """In the middle of a step, while rank 1 waits for its gradients."""
    model = net()
    wrapped = DistributedDataParallel(model)
    with stability.record(model, folder, SITES):
        loss = wrapped(batch(0)[share(rank, size)]).square().mean()
        if rank == 0:
            raise RuntimeError("an error of the loop")
        loss.backward()


def start(rank, size, work, folder, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    try:
        work(rank, size, folder)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def processes(work, size, folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(start, (size, work, str(folder), port), nprocs=size)


def rows(folder):
    frame = pd.read_parquet(folder / "layers.parquet").astype(
        {"kind": str, "site": str, "sublayer": str}
    )
    keys = ["step", "kind", "layer", "sublayer", "site"]
    return frame.drop(columns="run").sort_values(keys).reset_index(drop=True)


def steps(folder):
    return pd.read_parquet(folder / "steps.parquet")


def assert_same(found, right, leave_out=()):
    assert len(found) == len(right) > 0
    drop = [*leave_out]
    pd.testing.assert_frame_equal(
        found.drop(columns=drop), right.drop(columns=drop), rtol=2e-4, atol=1e-9
    )


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("work", [ddp, fsdp], ids=lambda work: work.__name__)
def test_processes_with_their_own_batches_equal_one_process(tmp_path, work, size):
    processes(work, size, tmp_path / "run")
    model = net()
    train(model, model, tmp_path / "one", clip=0.01)
    assert_same(rows(tmp_path / "run"), rows(tmp_path / "one"))
    found, right = steps(tmp_path / "run"), steps(tmp_path / "one")
    assert found.loss.tolist() == [0.0, 1.0, 2.0]
    for name in ("grad_norm", "clip_factor"):
        assert found[name].tolist() == pytest.approx(right[name].tolist(), rel=1e-4)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["notes"] is None


def test_shards_that_are_replicated_count_once(tmp_path):
    processes(hsdp, 6, tmp_path / "run")
    model = net()
    train(model, model, tmp_path / "one", clip=0.01)
    assert_same(rows(tmp_path / "run"), rows(tmp_path / "one"))


def test_a_model_that_is_sharded_inside_the_block_is_followed(tmp_path):
    processes(fsdp_inside, 2, tmp_path / "run")
    model = net()
    train(model, model, tmp_path / "one")
    assert_same(rows(tmp_path / "run"), rows(tmp_path / "one"))


@pytest.mark.parametrize(
    "work", [tensor_parallel, tensor_parallel_with_distributed_outputs], ids=lambda w: w.__name__
)
def test_tensor_parallel_equals_one_process(tmp_path, work):
    processes(work, 2, tmp_path / "run")
    model = net(width=8)
    train(model, model, tmp_path / "one", width=8)
    found, right = rows(tmp_path / "run"), rows(tmp_path / "one")
    columns = ["first_share", "token_rms_median"]  # a process holds parts of each token inside
    assert_same(found, right, columns)
    whole = found.sublayer == "block"
    assert_same(found[whole], right[whole])


def test_a_folder_for_each_rank_is_a_run_for_each_rank(tmp_path):
    processes(ddp_of_folders, 2, tmp_path / "run")
    for rank in range(2):
        acts = rows(tmp_path / f"run{rank}")
        acts = acts[(acts["kind"] == "act") & (acts.sublayer == "block")]
        assert set(acts.numel) == {6 * TOKENS * WIDTH}


def test_a_recording_on_rank_0_alone_waits_for_nobody(tmp_path):
    processes(ddp_of_rank_0, 2, tmp_path / "run")
    assert set(rows(tmp_path / "run").step) == {0, 1, 2}


def test_a_rank_that_stops_recording_does_not_stop_the_others(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONWARNINGS", "ignore")
        processes(one_rank_stops_recording, 2, tmp_path / "run")
    acts = rows(tmp_path / "run")
    acts = acts[(acts["kind"] == "act") & (acts.sublayer == "block") & (acts.layer == 0)]
    assert acts.numel.tolist() == [6 * TOKENS * WIDTH] * 2 + [3 * TOKENS * WIDTH]
    assert (
        "1 of 2 processes stopped"
        in json.loads((tmp_path / "run" / "run.json").read_text())["notes"]
    )


def test_an_error_of_the_loop_is_not_held_back(tmp_path):
    began = time.monotonic()
    with pytest.raises(mp.ProcessRaisedException):
        processes(rank_0_fails, 2, tmp_path / "run")
    assert time.monotonic() - began < 60  # not the half hour that rank 0 waits for a late rank
    state = json.loads((tmp_path / "run" / "run.json").read_text())
    assert state["status"] == "failed" and "an error of the loop" in state["error"]


def test_a_pipeline_stage_writes_its_own_part(tmp_path):
    processes(pipeline, 2, tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(WIDTH, 12) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stability.record(model, tmp_path / "one", r"(\d+)"):
        for step in range(STEPS):
            optimizer.zero_grad()
            for x in batch(step).chunk(3):
                (model(x).square().mean() / 3).backward()
            optimizer.step()
    found = []
    for stage in range(2):
        part = rows(tmp_path / f"stage{stage}")
        found.append(part.assign(layer=part.layer + 2 * stage))
    keys = ["step", "kind", "layer", "sublayer", "site"]
    joined = pd.concat(found).sort_values(keys).reset_index(drop=True)
    assert_same(joined, rows(tmp_path / "one"))
