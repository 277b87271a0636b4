"""lab.torchrun: a script or a lab under torch's own torchrun, from the call to the Run."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from pathlib import Path

from ddp_lab import catalog, gpus, limits
from ddp_lab.errors import InputError
from ddp_lab.launch import cluster, environment, failures, folders, hosts, outcome, warm
from ddp_lab.launch.job import Interrupted, Job, follow
from ddp_lab.launch.output import Progress, Screen, colored, rank_color, say
from ddp_lab.launch.result import Run, plural, remember

MOST_RANKS = 64
_QUIET = "#6E7781"


def torchrun(
    script: str | os.PathLike,
    *args: str,
    nproc: int = 2,
    timeout: float | None = 120,
    stall: float | None = 60,
    show: str | int | Iterable[int] = "all",
    expect: str | None = None,
    env: Mapping[str, str] | None = None,
    warm: bool | None = None,
    check: bool = True,
    count: bool = False,
    trace: bool = False,
    nodes: int = 1,
    link: str | int | None = None,
    delay: str | None = None,
) -> Run:
    """Run a script on `nproc` ranks with torchrun, show what they print, and return a Run.

    script: a path that ends in .py, or the name of a lab ("train_ddp", "faults/no_sampler").
    args: its command-line arguments.
    nproc: ranks, all on this machine (1 to 64); with `nodes`, on each of them.
    timeout, stall: seconds in all, and without a sign of life, after which the run is stopped; None: no limit.
    show: "all", "none", a rank or several. Whatever is shown, `run.ranks` has everything.
    expect: the run passes only if it fails, with this text in the error's type and message (or the hang's report).
    env: variables set for the ranks on top of the kernel's own.
    warm: True starts from the warm server or fails, False starts fresh interpreters; None: warm where it can serve,
        and a line says why where it cannot.
    check: False returns the Run of a failure or a hang (`run.error`) and raises nothing.
    count: True counts the collectives that the ranks issue, whatever the script does: see `run.collectives`.
    trace: True records when each rank computes and communicates, by torch's profiler: see `run.timeline()`. For runs
        of some tens of steps: everything that torch does is written down.
    nodes: above 1, so many emulated hosts, each with a network stack, a name and a torchrun of its own, joined by
        links: see `run.wire`. Linux only.
    link: the rate of each link, both ways, in tc's notation ("1gbit", "200mbit"); None: no limit.
    delay: of each packet ("20ms"), where the kernel has netem.

    Raises RankError, HangError, ExpectationError, LaunchError; InputError for arguments that cannot be used.
    """
    require_system()
    target, name = _target(script)
    given = (nproc, timeout, stall, show, expect, env, warm, check, count, trace, nodes, link, delay)
    return launch(target, name, args, *given)


def launch(
    target: list[str],
    name: str,
    args: tuple[str, ...],
    nproc: int,
    timeout: float | None,
    stall: float | None,
    show: str | int | Iterable[int],
    expect: str | None,
    env: Mapping[str, str] | None,
    warm: bool | None,
    check: bool,
    count: bool = False,
    trace: bool = False,
    nodes: int = 1,
    link: str | int | None = None,
    delay: str | None = None,
    cell: str | None = None,
) -> Run:
    """What torchrun() and %%torchrun share. `cell`: source to be saved in the run's folder under `name`, and run."""
    check_arguments(args)
    check_nproc(nproc)
    hosted = cluster.of(nodes, nproc, link, delay)
    if hosted:
        nproc *= hosted.nodes
        check_nproc(nproc, f"{hosted.nodes} hosts with {hosted.nproc} each: ")
    check_clocks(timeout, stall)
    ranks = shown_ranks(show, nproc)
    settings = check_env(env)
    if not (warm is None or isinstance(warm, bool)):
        raise InputError(f"warm={warm!r} is unknown. Write True, False, or leave it out.")
    for option, value in (("count", count), ("trace", trace)):
        if not isinstance(value, bool):
            raise InputError(f"{option}={value!r} is unknown. Write True, or leave it out.")
    check_expect(expect)
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            f"torch is not installed for {sys.executable}. Start JupyterLab with `python3 scripts/lab.py`, "
            "which installs it, or choose the kernel of its .venv."
        )
    settings, note = _hide_missing_gpus(nproc, settings, hosted)

    folder = folders.create(nproc)
    if cell is not None:
        path = folder / name
        path.write_text(cell, encoding="utf-8")
        target = [str(path)]
    options = hosted.options(0) if hosted else ["--standalone", "--nproc-per-node", str(nproc)]
    command = shown_command(settings, ["torchrun", *options], target, args)
    say(colored(f"$ {command}", _QUIET))
    if hosted:
        say(colored(f"{hosted}; this is the command on host 0, the others have --node-rank 1 and up", _QUIET))
    if note:
        say(colored(note, _QUIET))

    began = time.monotonic()
    meters = {name: "1" for name, on in (("DDP_LAB_COUNT", count), ("DDP_LAB_TRACE", trace)) if on}
    env = environment.of_ranks(nproc, hosts.INTERFACE if hosted else None) | settings | meters
    run = Run(folder, name, command, nproc, 0.0, count, trace)
    try:
        server = _server(warm, env, Path.cwd() if target[0] == "-m" else Path(target[0]).resolve().parent)
        work = {"argv": [*target, *args], **(_on_hosts(folder, hosted) if hosted else _here(folder, nproc))}
        job = Job(folder, work, env, nproc, server, warm_only=bool(warm))
        screen = Screen({r: job.streams(r) for r in range(nproc)}, label_of(hosted), ranks)
        progress = Progress([folder / f"rank{r}" / "progress.jsonl" for r in range(nproc)])
        follow([job], screen, progress, timeout, stall)
    except Interrupted as stop:
        run.seconds, run.error, stop.run = time.monotonic() - began, stop, run
        remember(run)
        folders.finish(folder, {"outcome": "interrupted", "seconds": run.seconds, "command": command})
        raise
    run.seconds = time.monotonic() - began
    run.error = outcome.judge(run, job, failures.RankError)
    if run.ok:
        say(colored(f"{plural(nproc, 'rank')} · {run.seconds:.1f} s", _QUIET))
    outcome.deliver([run], expect, check, nproc)
    return run


def rank_label(rank: int, host: int | None = None) -> str:
    """What stands before a line of a rank, and of its host where there are several."""
    where = f"rank {rank}" if host is None else f"host {host} rank {rank}"
    return colored(f"[{where}]", rank_color(rank)) + " "


def label_of(hosted: cluster.Cluster | None) -> Callable[[int], str]:
    """rank_label for the ranks of a run."""
    return (lambda rank: rank_label(rank, hosted.host(rank))) if hosted else rank_label


def shown_command(settings: Mapping[str, str], start: list[str], target: list[str], args: Iterable[str]) -> str:
    """The plain command, as one could type it in the working directory: settings in front, paths as short as can be."""
    front = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    rest = [_short(part) if part.endswith(".py") else shlex.quote(part) for part in target]
    return " ".join([*front, *map(shlex.quote, start), *rest, *map(shlex.quote, args)])


def _short(path: str) -> str:
    forms = [shlex.quote(path), shlex.quote(os.path.relpath(path))]
    home = os.path.expanduser("~")
    if os.path.abspath(path).startswith(home + os.sep):
        forms.append("~/" + shlex.quote(os.path.relpath(path, home)))
    return min(forms, key=len)


def _server(asked: bool | None, env: dict[str, str], folder: Path) -> warm.Server | None:
    """The server for a warm start of a script in this folder; None for a cold one."""
    if asked is False:
        return None
    try:
        server, why = warm.server_for(env, folder)
    except KeyboardInterrupt:
        raise Interrupted("interrupted while torch was being loaded; nothing of the run had started.") from None
    if server is None and asked:
        raise InputError(f"warm=True: {why}. Leave warm out.")
    if server is None:
        say(colored(f"cold start: {why}", _QUIET))
    return server


def _here(folder: Path, nproc: int) -> dict:
    """What the agent is to do for ranks on this machine alone."""
    own = ["--standalone", "--nproc-per-node", str(nproc), "--local-addr", "127.0.0.1", *_common(folder / "logs")]
    return {"kind": "torchrun", "options": own}


def _on_hosts(folder: Path, hosted: cluster.Cluster) -> dict:
    """What the agent is to do for ranks on emulated hosts."""

    def options(host: int) -> list[str]:
        return [
            *hosted.options(host),
            "--local-addr",
            hosts.address(host),
            *_common(folder / "logs" / hosts.name(host)),
        ]

    each = [options(host) for host in range(hosted.nodes)]
    return {"kind": "hosts", "options": each, "rate": hosted.rate, "delay": hosted.delay}


def _common(logs: Path) -> list[str]:
    return [*("--redirects", "3", "--log-dir", str(logs)), *("--shutdown-timeout", "1", "--monitor-interval", "0.005")]


def _target(script: str | os.PathLike) -> tuple[list[str], str]:
    """What torchrun is to run (a path, or -m and a module) and the name that the reader sees."""
    if not isinstance(script, (str, os.PathLike)):
        raise InputError(f"script={script!r} is not a path or the name of a lab, but {type(script).__name__}.")
    text = os.path.expanduser(os.fspath(script))
    if not text.endswith(".py"):
        if os.path.isdir(text):
            raise InputError(f"{text} is a folder. Name the script in it that torchrun is to run.")
        if os.path.isfile(text):
            raise InputError(f"{text} is not a Python script: its name does not end in .py.")
        catalog.find(text)
        return ["-m", catalog.module(text)], text
    path = Path(text)
    if path.is_dir():
        raise InputError(f"{text} is a folder. Name the script in it that torchrun is to run.")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no script {text} in {os.getcwd()}.{_nearest_scripts(path)}") from None
    except OSError as error:
        raise InputError(f"{text} cannot be read: {error.strerror}.") from None
    if b"\0" in content:
        raise InputError(f"{text} is not Python: it holds binary data.")
    return [text], path.name


def _nearest_scripts(path: Path) -> str:
    if (lab := str(path.with_suffix(""))) in catalog.names():
        return f" The lab of that name is {lab!r}, without .py."
    try:
        there = sorted(p.name for p in path.parent.glob("*.py"))
    except OSError:
        there = []
    near = difflib.get_close_matches(path.name, there, n=3, cutoff=0.4)
    if near:
        return f" Did you mean {' or '.join(str(path.parent / name) for name in near)}?"
    return " A lab is named without .py, such as 'hello'."


def require_system() -> None:
    """Raise InputError where runs cannot be started at all."""
    if os.name != "posix":
        raise InputError("runs need Linux or macOS. On Windows, work in WSL (the README says how).")
    if "RANK" in os.environ and "DDP_LAB_RANK_DIR" in os.environ:
        raise InputError(
            "a rank must not start a run: each of its ranks would start the next. Under torchrun the script is the "
            "rank's own program; call lab.torchrun from a notebook or from another script."
        )
    try:
        os.getcwd()
    except OSError:
        raise InputError("the working directory of this kernel was removed. os.chdir() to one that exists.") from None


def check_arguments(args: Iterable[str]) -> None:
    for arg in args:
        if not isinstance(arg, str):
            raise InputError(f"argument {arg!r} is {type(arg).__name__}, not a text. Write {str(arg)!r}.")
        if "\0" in arg:
            raise InputError(f"argument {arg!r} holds a NUL character, which no command line can carry.")


def check_nproc(nproc: int, asked: str = "") -> None:
    if isinstance(nproc, bool) or not isinstance(nproc, Integral):
        raise InputError(f"nproc={nproc!r} is not a whole number. Write nproc=2.")
    asked = f"{asked}{plural(nproc, 'rank')}" if asked else f"nproc={nproc}"
    if not 1 <= nproc <= MOST_RANKS:
        raise InputError(f"{asked}: a run has 1 to {MOST_RANKS} ranks.")
    room = limits.memory()[0] // limits.RANK_MEMORY
    if nproc > max(1, room):
        raise InputError(
            f"{asked}: the free memory carries about {room} ranks ({limits.RANK_MEMORY >> 20} MiB each). "
            "Take fewer, or close other programs."
        )


def check_clocks(timeout: float | None, stall: float | None) -> None:
    for name, value in (("timeout", timeout), ("stall", stall)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise InputError(f"{name}={value!r} is not a number of seconds above 0. None means no limit.")


def check_expect(expect: str | None) -> None:
    if not (expect is None or isinstance(expect, str)) or expect == "":
        raise InputError(f"expect={expect!r} is no text to look for. Give a part of the error, such as expect='nan'.")


def shown_ranks(show: str | int | Iterable[int], nproc: int) -> set[int] | None:
    """The ranks whose output is shown; None for all."""
    if show == "all":
        return None
    if show == "none":
        return set()
    numbers = [show] if isinstance(show, int) else show
    try:
        numbers = list(numbers) if not isinstance(numbers, str) else None
    except TypeError:
        numbers = None
    if numbers is None or not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
        raise InputError(f"show={show!r} is unknown. Write 'all', 'none', a rank such as 0, or a list such as [0, 2].")
    for number in numbers:
        if not 0 <= number < nproc:
            raise InputError(
                f"show={show!r}: there is no rank {number} in a run of {plural(nproc, 'rank')} (0 to {nproc - 1})."
            )
    return set(numbers)


def _encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def check_env(env: Mapping[str, str] | None) -> dict[str, str]:
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise InputError(f"env={env!r} is not a dict. Write env={{'NAME': 'value'}}.")
    for name, value in env.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise InputError(f"env: {name!r} is no name of a variable.")
        if not isinstance(value, str) or "\0" in value or not _encodable(value):
            raise InputError(f"env: the value of {name} is {value!r}, not a text. Write {str(value)!r}.")
    return dict(env)


def _hide_missing_gpus(nproc: int, settings: dict[str, str], hosted: object = None) -> tuple[dict[str, str], str]:
    """Where there are GPUs, but fewer than ranks, hide them all: a rank without one of its own cannot take part.
    And those of this machine are on no emulated host: nccl would go from one to the other past the links.
    """
    present = gpus.count(dict(os.environ) | settings)
    if hosted and present:
        return settings | {"CUDA_VISIBLE_DEVICES": ""}, "emulated hosts have no GPUs: the run is on the CPU, with gloo"
    if not 0 < present < nproc:
        return settings, ""
    note = f"{nproc} ranks, but {plural(present, 'GPU')} here: the run is on the CPU, with gloo"
    return settings | {"CUDA_VISIBLE_DEVICES": ""}, note
