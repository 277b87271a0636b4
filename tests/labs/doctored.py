"""A lab run with parts of it replaced, such as its clock, so that what it says can be known beforehand."""

import textwrap

import ddp_lab as lab

BEGIN = """
import gc
import os
from itertools import accumulate, count
from types import SimpleNamespace

from ddp_lab import worker
from ddp_lab.labs import {name} as own

rank = int(os.environ["RANK"])


def clock(times):
    own.time = SimpleNamespace(perf_counter=iter(times).__next__)


"""
SQUARES = "clock((1 + rank) * number**2 for number in count())\n"
"""A clock by which the intervals grow, twice as fast on rank 1: (1 + rank) * 1, 3, 5, ..."""


def doctored(folder, name, before, after="", nproc=2):
    """The run of a lab on ranks that run `before` first, in which `own` is the lab's module, and `after` at the end."""
    script = folder / f"{name}.py"
    parts = [BEGIN.format(name=name), before, "own.main()\n", after, "gc.collect()\n"]
    script.write_text("".join(map(textwrap.dedent, parts)))
    return lab.torchrun(str(script), nproc=nproc, show="none")
