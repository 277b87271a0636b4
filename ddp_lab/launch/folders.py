"""The folders of runs: `$DDP_LAB_HOME/NOTEBOOK/0001`, one per run, for this user only; the newest are kept."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

from ddp_lab.errors import InputError
from ddp_lab.launch import ledger, processes

KEPT = 50
"""So many finished runs of a notebook stay."""


def home() -> Path:
    """Where runs are kept: `$DDP_LAB_HOME`, by default `ddp-lab` in the user's cache folder."""
    if told := os.environ.get("DDP_LAB_HOME"):
        return Path(told).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ddp-lab"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddp-lab"


def create(ranks: int) -> Path:
    """A new folder for a run, with a folder for each rank. Raises InputError where nothing can be written."""
    try:
        shelf = home() / ledger.notebook()
    except RuntimeError as error:  # no home folder is known, or none of the user named after a tilde
        raise InputError(f"{error} Set DDP_LAB_HOME to the whole path of a folder for runs.") from None
    try:
        for folder in (home(), shelf):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = _claim(shelf)
        for rank in range(ranks):
            (folder / f"rank{rank}").mkdir(mode=0o700)
        (folder / "owner.json").write_text(json.dumps(processes.identity()))
    except OSError as error:
        raise InputError(
            f"runs cannot be kept in {shelf}: {error.strerror}. "
            "Set the variable DDP_LAB_HOME to a folder with room that you may write to."
        ) from None
    return folder


def stream(folder: Path, rank: int, name: str) -> Path | None:
    """The file that holds a rank's "stdout" or "stderr": where torchrun put it, or our own; None if none."""
    if (own := folder / f"rank{rank}" / f"{name}.log").exists():
        return own
    attempts = sorted(folder.glob(f"logs/*/attempt_*/{rank}/{name}.log"))
    return attempts[-1] if attempts else None


def finish(folder: Path, outcome: dict) -> None:
    """Note how the run ended, which is also the mark of a finished run, and remove the oldest finished ones."""
    try:
        (folder / "result.json").write_text(json.dumps(outcome))
        _prune(folder.parent)
    except OSError:
        pass  # a full disk or a removed folder: the owner's end marks it as finished too


def _claim(shelf: Path) -> Path:
    """Make the next numbered folder; another kernel may take the number first."""
    number = max((int(p.name) for p in shelf.iterdir() if p.name.isdigit()), default=0)
    while True:
        number += 1
        folder = shelf / f"{number:04d}"
        try:
            folder.mkdir(mode=0o700)
            return folder
        except FileExistsError:
            continue


def _prune(shelf: Path) -> None:
    runs = sorted((p for p in shelf.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    finished = [p for p in runs if _is_finished(p)]
    for folder in finished[:-KEPT]:
        shutil.rmtree(folder, ignore_errors=True)


def _is_finished(folder: Path) -> bool:
    if (folder / "result.json").exists():
        return True
    try:
        return not processes.alive(tuple(json.loads((folder / "owner.json").read_text())))
    except (OSError, ValueError):  # being made at this moment by another kernel, or never completed
        return folder.exists() and time.time() - folder.stat().st_mtime > 3600
