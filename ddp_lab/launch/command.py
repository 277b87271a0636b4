"""lab.command and lab.commands: any other command under the care that a run of torchrun gets."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence

from ddp_lab.errors import InputError
from ddp_lab.launch import environment, failures, folders, outcome
from ddp_lab.launch.job import Interrupted, Job, follow
from ddp_lab.launch.output import Progress, Screen, colored, rank_color, say
from ddp_lab.launch.result import Run, plural, remember
from ddp_lab.launch.torchrun import (
    check_arguments,
    check_clocks,
    check_env,
    check_expect,
    require_system,
    shown_ranks,
)

_QUIET = "#6E7781"


def command(
    *argv: str,
    timeout: float | None = 120,
    stall: float | None = 60,
    show: str | int | Iterable[int] = "all",
    expect: str | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
) -> Run:
    """Run a command, such as command("python", "train.py"), and return a Run with one entry in `.ranks`.

    The same clocks, display, clean-up and keywords as lab.torchrun; `expect` is sought in the end of its stderr.
    `python` and `torchrun` are those of this kernel. Raises CommandError, HangError, ExpectationError, InputError.
    """
    return commands([argv], timeout, stall, show, expect, env, check)[0]


def commands(
    argvs: Sequence[Sequence[str]],
    timeout: float | None = 120,
    stall: float | None = 60,
    show: str | int | Iterable[int] = "all",
    expect: str | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
) -> list[Run]:
    """Run several commands at once, and return a Run for each when all have ended. See command()."""
    require_system()
    argvs = [_check_argv(argv) for argv in argvs]
    if not argvs:
        raise InputError("commands([]): there is no command to run.")
    check_clocks(timeout, stall)
    check_expect(expect)
    shown = shown_ranks(show, len(argvs))
    settings = check_env(env)

    began = time.monotonic()
    jobs: list[Job] = []
    runs: list[Run] = []
    for argv in argvs:
        text = " ".join([*(f"{k}={shlex.quote(v)}" for k, v in settings.items()), shlex.join(argv)])
        say(colored(f"$ {text}", _QUIET))
        folder = folders.create(1)
        runs.append(Run(folder, os.path.basename(argv[0]), text, 1, 0.0))
        jobs.append(Job(folder, {"kind": "command", "argv": argv}, environment.clean_path() | settings, 1))
    screen = Screen({i: job.streams(0) for i, job in enumerate(jobs)}, _labels(len(jobs)), shown)
    progress = Progress([run.dir / "rank0" / "progress.jsonl" for run in runs])
    try:
        follow(jobs, screen, progress, timeout, stall)
    except Interrupted as stop:
        for run in runs:
            run.seconds, run.error, stop.run = time.monotonic() - began, stop, runs[0]
            folders.finish(run.dir, {"outcome": "interrupted", "seconds": run.seconds, "command": run.command})
            remember(run)
        raise
    for run in runs:
        run.seconds = time.monotonic() - began
    for run, job in zip(runs, jobs, strict=True):
        run.error = outcome.judge(run, job, failures.CommandError)
    if all(run.ok for run in runs):
        count = f"{plural(len(runs), 'command')} · " if len(runs) > 1 else ""
        say(colored(f"{count}{runs[0].seconds:.1f} s", _QUIET))
    outcome.deliver(runs, expect, check, 1)
    return runs


def _check_argv(argv: Sequence[str]) -> list[str]:
    if isinstance(argv, str):
        raise InputError(f"{argv!r} is one text. Give the command in parts: {', '.join(map(repr, shlex.split(argv)))}.")
    argv = [os.fspath(part) if isinstance(part, os.PathLike) else part for part in argv]
    if not argv:
        raise InputError('the command is empty. Write command("python", "train.py").')
    check_arguments(argv)
    if shutil.which(argv[0], path=environment.clean_path()["PATH"]) is None:
        raise InputError(f"there is no command {argv[0]!r} on this machine's PATH.")
    return argv


def _labels(count: int):
    if count == 1:
        return lambda _: ""
    return lambda i: colored(f"[command {i}]", rank_color(i)) + " "
