"""Several processes that train one model: rank 0 writes, the others send it what they measured.

They talk through the key-value store of `torch.distributed`. Only rank 0 ever waits, and never for
a process that has left, so that recording cannot block a training.
"""

import pickle
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

JOIN_SECONDS = 60.0
"""How long `Processes.joined` waits for other ranks to record as well."""
LATE_SECONDS = 1800.0
"""How long rank 0 waits for what a rank measured in a step: it may be saving a checkpoint."""
POLL_SECONDS = 0.0005

_numbers = count()


@dataclass
class Processes:
    """The processes of one recording."""

    rank: int
    size: int
    name: str
    """Prefix of the keys in the store."""
    store: Any
    _gone: set[int] = field(default_factory=set)

    @classmethod
    def joined(cls, folder: str) -> "Processes | None":
        """All ranks of this training, if each of them records into this folder; else None.

        Waits until the others have called it, at most `JOIN_SECONDS`.
        """
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            return None
        rank, size = dist.get_rank(), dist.get_world_size()
        store = dist.distributed_c10d._get_default_store()
        name = f"stability.record/{next(_numbers)}"
        store.set(f"{name}/{rank}", folder)
        keys = [f"{name}/{other}" for other in range(size)]
        try:
            store.wait(keys, timedelta(seconds=JOIN_SECONDS))
        except dist.DistStoreError:
            return None
        if any(store.get(key).decode() != folder for key in keys):
            return None
        return cls(rank, size, name, store)

    @property
    def writes(self) -> bool:
        """Whether this process writes the run."""
        return self.rank == 0

    def send(self, event: int, content: Any) -> None:
        """Send rank 0 what was measured at an event; returns at once."""
        self.store.set(f"{self.name}/{event}/{self.rank}", pickle.dumps(content))

    def leave(self) -> None:
        """This process takes no further part."""
        self.store.set(f"{self.name}/gone/{self.rank}", "")

    def received(self, event: int, seconds: float | None = None) -> list[Any]:
        """What the other ranks sent at an event; without those that have left or are too late."""
        found, until = [], time.monotonic() + (LATE_SECONDS if seconds is None else seconds)
        for rank in range(1, self.size):
            key = f"{self.name}/{event}/{rank}"
            while rank not in self._gone and not self.store.check([key]):
                has_left = self.store.check([f"{self.name}/gone/{rank}"])
                if (has_left and not self.store.check([key])) or time.monotonic() > until:
                    self._gone.add(rank)
                time.sleep(POLL_SECONDS)
            if rank not in self._gone:
                found.append(pickle.loads(self.store.get(key)))
                self.store.delete_key(key)
        return found

    @property
    def gone(self) -> int:
        """How many ranks have stopped sending."""
        return len(self._gone)


@dataclass(frozen=True)
class Batches:
    """How the processes share the batch of a step."""

    mine: Hashable
    """Name of this process's part of the batch; processes with one name have the same part."""
    number: int
    """Number of parts: the loss of each is divided by it before gradients add up."""

    @classmethod
    def of(cls, model: nn.Module) -> "Batches":
        """As the model's parallelism has it.

        Under FSDP the ranks of its mesh have batches of their own; ranks of one tensor-parallel
        mesh share theirs; else each rank has its own (DDP).
        """
        rank, world = dist.get_rank(), dist.get_world_size()
        mesh = _mesh_of_fsdp(model)
        if mesh is not None:
            ranks = mesh.mesh.flatten().tolist()
            return cls(ranks.index(rank), len(ranks))
        for p in model.parameters():
            if isinstance(p, DTensor):
                peers = tuple(p.device_mesh.mesh.flatten().tolist())
                return cls(peers, world // len(peers))
        return cls(rank, world)


def _mesh_of_fsdp(model: nn.Module) -> Any:
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)  # torch < 2.12 has one group
            for group in groups if groups is not None else [state._fsdp_param_group]:
                if group is not None:
                    return group.mesh_info.mesh
    return None
