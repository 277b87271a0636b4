"""What the checks' tests share: answers made up, and answers run from a notebook's own cells with mistakes in them."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import nbformat

import ddp_lab as lab
from ddp_lab.launch.failures import HangError
from ddp_lab.launch.torchrun import launch

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def made_up_run(records, folder="nowhere", script="cell.py", error=None):
    """A run with these records, a list for each rank, that ended after the script in its folder was written."""
    if Path(folder).is_dir():
        Path(folder, "result.json").write_text("{}")
    ranks = [SimpleNamespace(rank=rank, records=own) for rank, own in enumerate(records)]
    ended = {"ok": error is None, "error": error, "frame": None}
    place = {"dir": Path(folder), "name": script, "command": shlex.join(["torchrun", str(Path(folder, script))])}
    return SimpleNamespace(ranks=ranks, **ended, **place)


def squares(mine=(1, 4, 9), total=(14, 14, 14), **more):
    return made_up_run([[{"mine": m, "total": t}] for m, t in zip(mine, total, strict=True)], **more)


def hint(name, answer):
    verdict = lab.check(name, answer)
    assert not verdict.done and verdict.hint and "\n" not in verdict.hint
    return verdict.hint


def early_exit(left=0, where_line=38, steps=(15, 16)):
    spots = [
        {"rank": rank, "file": "x.py", "line": where_line if rank == left else 31, "function": "main"}
        | {"collective": "barrier" if rank == left else "backward (bucket all_reduce)"}
        for rank in (0, 1)
    ]
    records = [[{"step": step} for step in range(last + 1)] for last in steps]
    return made_up_run(records, error=HangError("no sign of life", where=spots))


class Cells:
    """The scripts in a notebook's %%torchrun cells, by their --name."""

    def __init__(self, notebook):
        self.cells = nbformat.read(NOTEBOOKS / notebook, as_version=4).cells

    def script(self, name):
        """(the script of the cell of this name, its number of ranks)."""
        words, script = self._cell(name)
        return script, int(words[words.index("--nproc") + 1])

    def run(self, name, *edits, nproc=None):
        """The run of a cell in which texts were replaced: pairs (old, new). It is counted if the cell's is."""
        script, ranks = self.script(name)
        for old, new in edits:
            assert old in script, old
            script = script.replace(old, new)
        how = {"check": False, "count": "--count" in self._cell(name)[0], "cell": script}
        return launch([], name, (), nproc or ranks, 120, 60, "none", None, None, None, **how)

    def _cell(self, name):
        """(the words of its first line, the lines below)."""
        (source,) = [cell.source for cell in self.cells if f" --name {name} " in cell.source]
        options, script = source.split("\n", 1)
        return shlex.split(options), script
