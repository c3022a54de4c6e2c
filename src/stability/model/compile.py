"""torch.compile: each block in one graph."""

import torch

from stability.model.gpt import GPT

COMPILED_VARIANTS = 256
"""Compiled forms of a block that one process may hold: a worker runs many placements in turn."""


def compile_blocks(model: GPT) -> None:
    """Compile each block in one graph: blocks of one placement share it, whatever the depth.

    There are two forms, recorded and not; validation runs eagerly, as a pass without gradients
    would be a third. A placement whose constants depend on the depth gets two more, for all
    further depths.
    """
    torch._dynamo.config.recompile_limit = COMPILED_VARIANTS
    torch._dynamo.config.accumulated_recompile_limit = 4 * COMPILED_VARIANTS
    for block in model.blocks:
        block.compile(fullgraph=True)
