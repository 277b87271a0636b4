"""The course's pictures, in one style that reads on light and dark pages. matplotlib is imported when one is drawn.

Each function takes runs, or anything with a `.frame()` (a pandas table of rank, step, name, value), or what its
docstring says, and returns a matplotlib Figure, which a notebook shows and `.savefig(path)` writes. What they have in
common is in style.py. Only `table` is about a table of texts.
"""

from ddp_lab.figures.backends import backends
from ddp_lab.figures.buckets import buckets
from ddp_lab.figures.collectives import exchanges, waits
from ddp_lab.figures.costs import cost_fit, times
from ddp_lab.figures.counts import counts
from ddp_lab.figures.dataparallel import carried, held, phases
from ddp_lab.figures.gains import gains
from ddp_lab.figures.lengths import lengths
from ddp_lab.figures.masks import devices
from ddp_lab.figures.reads import samples, weights
from ddp_lab.figures.rings import partial_sums, traffic
from ddp_lab.figures.runs import apart, bars, curves, twin
from ddp_lab.figures.scaling import efficiency
from ddp_lab.figures.shares import shares
from ddp_lab.figures.style import BROKEN, FINE, INK, style
from ddp_lab.figures.sweeps import sweep
from ddp_lab.figures.tables import table
from ddp_lab.figures.timelines import timeline
from ddp_lab.launch.output import RANK_COLORS, rank_color

__all__ = [
    "BROKEN",
    "FINE",
    "INK",
    "RANK_COLORS",
    "apart",
    "backends",
    "bars",
    "buckets",
    "carried",
    "cost_fit",
    "counts",
    "curves",
    "devices",
    "efficiency",
    "exchanges",
    "gains",
    "held",
    "lengths",
    "partial_sums",
    "phases",
    "rank_color",
    "samples",
    "shares",
    "style",
    "sweep",
    "table",
    "timeline",
    "times",
    "traffic",
    "twin",
    "waits",
    "weights",
]
