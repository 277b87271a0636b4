"""What the launcher's tests share: folders as a run leaves them, and runs with all that was printed and raised."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import ddp_lab as lab
from ddp_lab.launch import rank as rank_module
from ddp_lab.launch.result import Run

ASLEEP = """
import time

def nap():
    time.sleep(600)  # until it is ended

nap()
"""


def leave(folder: Path, rank: int, code: int | None = 0, error=None, crash="", stopped=False, when=1, **streams):
    """Write what a rank leaves in a run's folder: how it ended, its error, its streams and other files by name."""
    place = folder / f"rank{rank}"
    place.mkdir(parents=True, exist_ok=True)
    if code is not None:
        (place / "exit.json").write_text(json.dumps({"code": code, "time_ns": when, "stopped": stopped}))
    if error:
        (place / "error.json").write_text(json.dumps({"time_ns": when, "code": code, "shown": [0, 0], **error}))
    if crash:
        (place / "crash.txt").write_text(crash)
    for name, text in streams.items():
        logs = folder / "logs" / "x_1" / "attempt_0" / str(rank)
        path = logs / f"{name}.log" if name in ("stdout", "stderr") else place / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def raised(kind: str, message: str, *frames: tuple[str, int, str]) -> dict:
    """An error as a rank reports it; frames (file, line, function), outermost first."""
    return {
        "type": kind,
        "message": message,
        "frames": [{"file": str(f), "line": n, "function": name, "code": ""} for f, n, name in frames],
    }


def run_in(folder: Path, ranks: int, seconds=1.0, name="train.py") -> Run:
    return Run(folder, name, f"torchrun {name}", ranks, seconds)


def as_rank(folder: Path, path: str, start: str = "cold", rank: int = 0) -> None:
    """Run a script as the only rank of a run: what it leaves is in `folder`. `start`: "warm"; or "cold", in which it
    is started as torchrun would start it, but without torchrun.
    """
    if start == "warm":
        run = see(lab.torchrun, path, nproc=1, show="none", check=False, warm=True).run
        shutil.copytree(run.dir, folder, ignore=shutil.ignore_patterns("ask"), dirs_exist_ok=True)
        return
    (folder / f"rank{rank}").mkdir(parents=True, exist_ok=True)
    leave(folder, rank, None, stdout="", stderr="")
    logs = folder / "logs" / "x_1" / "attempt_0" / str(rank)
    with open(logs / "stdout.log", "wb") as out, open(logs / "stderr.log", "wb") as err:
        env = os.environ | {"DDP_LAB_RUN_DIR": str(folder), "RANK": str(rank), "DDP_LAB_AGENT": str(os.getpid())}
        command = [sys.executable, "-u", rank_module.__file__, path]
        subprocess.run(command, env=env, stdout=out, stderr=err, timeout=60)


@dataclass
class Seen:
    """What a caller of lab.torchrun or lab.command has seen."""

    run: lab.Run | None
    error: BaseException | None
    text: str
    """All that was printed."""
    seconds: float

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def see(launch, *args, out: io.StringIO | None = None, **options) -> Seen:
    """Call `launch` and take what it printed, returned and raised."""
    out = out or io.StringIO()
    began, run, error = time.monotonic(), None, None
    with contextlib.redirect_stdout(out):
        try:
            run = launch(*args, **options)
        except Exception as problem:
            error = problem
            run = getattr(problem, "run", None)
    if isinstance(run, list):
        error = error or next((one.error for one in run if one.error), None)
    elif run is not None:
        error = error or run.error
    return Seen(run, error, out.getvalue(), time.monotonic() - began)


def script(folder: Path, source: str, name="train.py") -> str:
    """Write a script and return its path."""
    path = folder / name
    path.write_text(textwrap.dedent(source))
    return str(path)


def line_of(path: str, mark: str) -> int:
    """The number of the only line of a file that holds `mark`."""
    (number,) = [n for n, line in enumerate(Path(path).read_text().splitlines(), 1) if mark in line]
    return number


def plain(text: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def jsons(text):
    """The records in what plain torchrun printed, sorted. Each is written whole, but may stand behind the unfinished
    line of another rank: print() writes a text and its newline apart.
    """
    found, at = [], text.find("{")
    while at >= 0:
        try:
            end = json.JSONDecoder().raw_decode(text, at)[1]
            found.append(text[at:end])
        except ValueError:
            end = at + 1
        at = text.find("{", end)
    return sorted(found)


def dumped(run):
    return sorted(json.dumps(record, ensure_ascii=False) for rank in run.ranks for record in rank.records)


def as_typed(command, folder):
    """What a shell of the reader prints for a command, in the folder of the run."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DDP_LAB", "PYTEST"))}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    done = subprocess.run(command, shell=True, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
