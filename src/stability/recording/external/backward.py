"""Questions to autograd about the backward pass that is running."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

NODES = 4096
"""Nodes of the graph that the search for a parameter visits at most."""


def is_running() -> bool:
    """Whether this code runs inside a backward pass."""
    return running() != -1


def running() -> int:
    """A number for the backward pass that this code runs in; -1 outside of one."""
    return torch._C._current_graph_task_id()


def is_in_python() -> bool:
    """Whether the node that runs is an ``autograd.Function``, such as a reentrant checkpoint."""
    return isinstance(torch._C._current_autograd_node(), torch.autograd.function.BackwardCFunction)


def keeps_graph() -> bool:
    """Whether another backward pass may follow through the same graph (``retain_graph=True``)."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def at_the_end(call: Callable[[], None]) -> None:
    """Call a function when the running backward pass has ended.

    It runs after what others queued, such as the reduction of gradients over processes: they queue
    theirs during the pass, and this one queues itself again when they have all been queued.
    """
    queue = torch.autograd.Variable._execution_engine.queue_callback
    queue(lambda: queue(call))


def nearest_leaf(x: Tensor) -> Any:
    """The accumulator of the nearest parameter that x depends on; else of any leaf; else None.

    Nodes of accumulators do not refer to the graph, so that holding one does not keep a graph.
    """
    other, seen = None, set[Any]()
    front = deque[Any]([x.grad_fn] if x.grad_fn is not None else [])
    while front and len(seen) < NODES:
        for node, _ in front.popleft().next_functions:
            if node is None or node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                if isinstance(node.variable, nn.Parameter):
                    return node
                other = other or node
            front.append(node)
    return other


def reaches(leaf: Any) -> bool:
    """Whether the running backward pass adds to the leaf's ``grad``.

    ``torch.autograd.grad`` does not: its gradients never meet an optimizer.
    """
    if leaf is None:
        return True
    try:
        return bool(torch._C._will_engine_execute_node(leaf))
    except RuntimeError:  # autograd.grad was asked for the gradient of this leaf
        return False


def reaches_any(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether the running backward pass adds to the ``grad`` of any of them."""
    return any(reaches(get_gradient_edge(p).node) for p in parameters if p.requires_grad)
