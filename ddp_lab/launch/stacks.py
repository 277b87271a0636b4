"""Where a rank stands: read from the stacks that Python's faulthandler wrote."""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path

_THREAD = re.compile(r"^(?:(?:Current thread|Thread) 0x([0-9a-f]+)|Stack \(most recent call first\))")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')

_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep
    for path in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_OURS = str(Path(__file__).resolve().parents[1]) + os.sep
_LABS = _OURS + "labs" + os.sep  # read and edited by the learner, as scripts of their own are
_RANK = os.path.join(_OURS, "launch", "rank.py")

# Functions of torch/distributed that wrap the one which the learner called.
_WRAPPERS = {"wrapper", "inner", "__call__"}


def of_script(dump: str) -> str:
    """A dump of a rank's stacks without what is not the script's: the frames that led to it (in a warm run, all of
    torchrun), and the thread that has written the dump.
    """
    threads: list[list[str]] = []
    ended = False
    for line in dump.splitlines():
        found = _FRAME.match(line)
        if _THREAD.match(line):
            threads.append([line])
            ended = False
        elif found and found[1] == _RANK and found[3] in ("run", "_answer"):
            ended = True
        elif found and threads and not ended:
            threads[-1].append(line)
    return "\n\n".join("\n".join(thread) for thread in threads if len(thread) > 1) + "\n" if threads else ""


def is_whole(dump: str) -> bool:
    """Whether a dump has been written to its end, which faulthandler does piece by piece: the main thread comes last,
    and its last frame is the program that was started, or dots where the stack is too deep.
    """
    return dump.endswith((" in <module>\n", "\n  ...\n"))


def frames(text: str, main_thread: int | None) -> list[dict]:
    """The frames (file, line, function) of one thread, innermost first, in the last dump in `text`.

    `main_thread`: its ident; None for the last thread of the dump, which is the main one. [] if it is not there.
    """
    threads: list[tuple[int, list[dict]]] = []
    for line in of_script(text).splitlines():
        if found := _THREAD.match(line):
            threads.append((int(found[1] or "0", 16), []))
        elif threads and (found := _FRAME.match(line)):
            threads[-1][1].append({"file": found[1], "line": int(found[2]), "function": found[3]})
    return next((stack for ident, stack in reversed(threads) if main_thread in (ident, None)), [])


def is_library(file: str) -> bool:
    """Whether a source file belongs to Python, an installed package or this one (labs aside), not to the learner."""
    if file.startswith("<"):
        return True
    path = os.path.realpath(file)
    if path.startswith(_OURS):
        return not path.startswith(_LABS)
    return path.startswith(_LIBRARIES) or f"{os.sep}site-packages{os.sep}" in path


def place(stack: list[dict], unfinished: dict | None) -> dict:
    """Where the learner's code stands and what it waits in.

    `stack`: frames, innermost first; `unfinished`: what meters.recorder.unfinished() said in that rank. Returns file
    (name only), line, function, each None where unknown; collective and its number, None where it waits in none;
    and `stuck`: whether it certainly waits there, rather than computing while a collective is on its way.
    """
    own = next((i for i, frame in enumerate(stack) if not is_library(frame["file"])), None)
    here = stack[own] if own is not None else (stack[-1] if stack else {})
    if own is None and any(frame["function"] == "leave" and frame["file"].startswith(_OURS) for frame in stack):
        here = {"file": "", "function": "its end, where it waits for a thread of its own"}
    called = _called(stack[:own] if own is not None else stack)
    if called == "backward":
        called = f"backward (bucket {unfinished['name']})" if unfinished else None
        certain = False
    else:
        certain = called is not None
    # gloo's entries stay unfinished until somebody waits for them; nccl's end by themselves.
    certain = certain or bool(unfinished and unfinished["backend"] == "nccl")
    return {
        "file": Path(here["file"]).name or None if here else None,
        "line": here.get("line"),
        "function": here.get("function"),
        "collective": called or (unfinished["name"] if unfinished else None),
        "number": unfinished["number"] if unfinished else None,
        "stuck": certain,
    }


def _called(inner: list[dict]) -> str | None:
    """What the learner's line called, of the calls that wait for other ranks. `inner`: the frames inside that line."""
    for frame in reversed(inner):  # from the learner's line inwards: the call that the learner knows comes first
        file, function = frame["file"].replace(os.sep, "/"), frame["function"]
        if file.endswith("torch/nn/parallel/distributed.py"):
            return "DDP(...)" if function == "__init__" else "DDP forward (buffer broadcast)"
        if file.endswith("torch/autograd/graph.py"):
            return "backward"
        if "/torch/distributed/" in file and function not in _WRAPPERS and not function.startswith("_"):
            return function
    return None
