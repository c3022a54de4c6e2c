"""The columns of every table, and the names of the files of a run.

The statistics of the layers table come from `results.statistics`. Readers name the columns that
they want (`results.parquet.scan`), so that a column is null in files written before it was added.

Types are written as pyarrow spells them (``int64``, ``float64``, ``string``, ``bool``); ``key`` is
a dictionary-encoded string. Every column may be null ("not measured") unless it is required.
"""

from typing import NamedTuple

from stability.results.statistics import FIELDS

FORMAT = 1
"""Version of the layout on disk, stored in every file's metadata."""


class Column(NamedTuple):
    name: str
    type: str
    doc: str
    required: bool = False


_RUN = Column("run", "string", "hash of the run's identity", True)
"""A plain string, as in ``runs.parquet``: tools that do not join two types can join the tables."""

_KEYS = (
    _RUN,
    Column("step", "int64", "number of updates made before this pass", True),
    Column("layer", "int32", "0-based block; embedding -1, head = depth", True),
    Column("sublayer", "key", "attn, mlp, linear, embed, head, or block: all of a block", True),
)

_MEASURED = tuple(Column(f.name, f.type, f.doc, f.required) for f in FIELDS)

LAYERS = (
    *_KEYS,
    Column(
        "site",
        "key",
        "which place, see Sites below; for parameters the parameter's short name",
        True,
    ),
    Column("kind", "key", "what was measured, see Kinds below", True),
    *_MEASURED,
)

STEPS = (
    _RUN,
    Column("step", "int64", "number of updates made before this pass", True),
    Column("tokens", "int64", "tokens of all earlier batches, padding included"),
    Column("loss", "float64", "training loss of this step's batch, nats per token"),
    Column("val_loss", "float64", "validation loss with these weights, nats per token"),
    Column("lr", "float64", "learning rate of this step's update"),
    Column("grad_norm", "float64", "L2 norm of all parameter gradients before clipping"),
    Column("clip_factor", "float64", "factor that clipping applied to the gradient"),
    Column("loss_scale", "float64", "loss scale of this step"),
    Column("skipped", "bool", "the update was left out (dynamic loss scale, non-finite gradient)"),
    Column("spike", "bool", "loss or gradient norm far above its recent median"),
    Column("step_s", "float64", "seconds this step took, recording included"),
    Column("record_s", "float64", "seconds of it spent on recording"),
)

PROBES = (
    *_KEYS,
    Column("probe", "key", "which probe", True),
    Column("item", "string", "which item of the probe's series"),
    Column("value", "float64", "the number measured"),
)

TABLES = {"layers": LAYERS, "steps": STEPS, "probes": PROBES}
LAYER_KEY = ("run", "step", "layer", "sublayer", "site", "kind")
"""Columns that identify one row of ``layers``."""

STATUSES = ("running", "completed", "diverged", "interrupted", "failed")
FINISHED = ("completed", "diverged")
"""Statuses with nothing left to do."""

CONFIG_FILE = "config.yaml"
RUN_FILE = "run.json"
RUNS_FILE = "runs.parquet"
BATCH_FILE = "batch0.npz"
THEORY_FILE = "theory.yaml"
"""Config of the built-in GPT that an external model equals at init, if there is one."""
LOG_FILE = "run.log"
CHECKPOINT_FILE = "checkpoint.pt"
FIGURES_FOLDER = "figures"
"""In a sweep: what was drawn of it."""
THEORY_FOLDER = "theory"
"""In the folder of figures: computed theory, to be used again."""
FAILURE_FILE = "failure.pt"
"""Weights and batch of the step at which a run diverged, for `stability.replay`."""
PARTS = ".parts"
"""Suffix of the folder that holds a table's part files while a run is going on."""

LEARNED_MARGIN = 0.3
"""A run has ``learned`` when its validation loss is this many nats below the unigram entropy."""
