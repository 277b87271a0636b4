"""What a counted run leaves: the collectives of all ranks as one table, each with the step that it belongs to."""

from __future__ import annotations

import bisect
import contextlib
import json
from pathlib import Path

from ddp_lab.meters.collectives import FILE

COLUMNS = ["rank", "step", "group", "op", "numel", "dtype", "bytes", "peer"]


def rows(folder: Path, rank: int) -> list[tuple]:
    """The collectives of a rank, in the order of COLUMNS. FileNotFoundError if it was not counted, ValueError for a
    line that is no row: a table without it would tell lies.
    """
    place = folder / f"rank{rank}"
    # Behind the last newline is nothing, or what the rank had begun to write when it was killed.
    *lines, _ = (place / FILE).read_bytes().split(b"\n")
    steps = _steps(place / "records.jsonl")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            raise ValueError(f"{place / FILE}: line {number} is no row, but {line[:80]!r}") from None
        after = bisect.bisect_left(steps, row["at"], key=lambda step: step[0])
        row |= {"rank": rank, "step": steps[after][1] if after < len(steps) else None}
        found.append(tuple(row[name] for name in COLUMNS))
    return found


def _steps(path: Path) -> list[tuple[int, object]]:
    """Where in the file of records one begins that has a step, and the step."""
    found, at = [], 0
    with contextlib.suppress(FileNotFoundError):  # it has logged nothing
        for line in path.read_bytes().splitlines(keepends=True):
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if record.get("step") is not None:
                    found.append((at, record["step"]))
            at += len(line)
    return found
