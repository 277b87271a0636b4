"""What every rank runs first: torchrun starts `python -u rank.py script.py ...` or `... rank.py -m module ...`; in a
warm run it forks itself and calls main().

It forks under a guard, and the child becomes the learner's script: `__main__`, `sys.argv` and `sys.path[0]` are what
plain Python gives. Around it stand an error file, an answer where it stands, and an end without teardown.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    sys.path.pop(0)  # the folder of this file: it must hide nobody's modules

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib.util
import io
import itertools
import os
import signal
import threading
import types
from pathlib import Path

if importlib.util.find_spec("ddp_lab") is None:  # used from a folder, not installed
    sys.path.append(str(Path(__file__).parents[2]))

from ddp_lab.launch import error_file, fresh, guard, processes
from ddp_lab.meters import collectives, tracing


def main(forked: bool = False) -> None:
    """The process that torchrun started: guards a child that runs the script, and ends as the child did.

    `forked`: torchrun has forked it. It then returns where the child ended well: torchrun waits for that.
    """
    folder = Path(os.environ.pop("DDP_LAB_RUN_DIR")) / f"rank{os.environ['RANK']}"
    os.environ["DDP_LAB_RANK_DIR"] = str(folder)
    agent = int(os.environ.pop("DDP_LAB_AGENT"))
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        _link_streams(folder)
    counts = os.environ.pop("DDP_LAB_COUNT", None)
    traces = os.environ.pop("DDP_LAB_TRACE", None)

    def be_rank() -> None:
        if forked:
            fresh.begin()
        if counts:
            collectives.count_into(folder)
        if traces:
            tracing.trace_into(folder)
        run(sys.argv[1:], folder)

    code, stopped = guard.run_guarded(be_rank, folder, agent)
    if forked and code == 0 and not stopped:  # a stopped one must go: torchrun tells it only once
        processes.die_with_parent(agent)
        return
    guard.leave_like(code)


def _link_streams(folder: Path) -> None:
    """Torchrun has named their files by the local rank, and whoever follows this run asks by rank."""
    for name, descriptor in (("stdout.log", 1), ("stderr.log", 2)):
        (folder / name).symlink_to(os.readlink(f"/proc/self/fd/{descriptor}"))


def run(target: list[str], folder: Path) -> None:
    """Be the script `target` (path or `-m module`, then its arguments); never returns."""
    stand_by(folder)
    report = error_file.Report(folder)
    code = 0
    try:
        program, namespace = _load(target)
        exec(program, namespace)
    except SystemExit as stop:
        code = _exit_code(stop)
        if code:
            report.write(stop, code, __file__)
    except BaseException as error:
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        report.write(error, code, __file__)
    leave(code)


def stand_by(folder: Path) -> None:
    """Be ready to say where this rank stands: stacks and unfinished collective on request, stacks alone on SIGUSR1."""
    # Opened once and kept: they are written from signal handlers, and when the disk or the memory may be at an end.
    stacks = open(folder / "stacks.txt", "ab", buffering=0)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    faulthandler.enable(file=open(folder / "crash.txt", "ab", buffering=0), all_threads=False)
    os.mkfifo(folder / "ask", 0o600)
    threading.Thread(target=_answer, args=(folder, stacks), name="ddp_lab", daemon=True).start()
    # Last: from here on the kernel may ask and signal.
    who = {"rank": processes.identity(), "main_thread": threading.main_thread().ident}
    guard.write_whole(folder / "rank.json", who)


def _answer(folder: Path, stacks: io.FileIO) -> None:
    """For each line written to the pipe `ask`, dump all stacks, then write the unfinished collective."""
    from ddp_lab.meters import recorder

    # Read and write, so that the pipe never ends when the kernel closes its side.
    with open(os.open(folder / "ask", os.O_RDWR), "rb", buffering=0) as asked:
        while question := asked.read(64):
            faulthandler.dump_traceback(stacks, all_threads=True)
            answer = {"question": question.decode().strip(), "unfinished": recorder.unfinished()}
            guard.write_whole(folder / "collective.json", answer)  # after the dump, and so the sign that it is whole


def _load(target: list[str]) -> tuple[types.CodeType, dict]:
    """The program and the fresh `__main__` it runs in, as `python script.py` or `python -m module` sets them up."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if target[0] == "-m":
        sys.path.insert(0, os.getcwd())
        spec = importlib.util.find_spec(target[1])
        main.__spec__, main.__package__, main.__file__ = spec, spec.parent, spec.origin
        sys.argv = [spec.origin, *target[2:]]
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(target[0])))
        main.__file__ = os.path.abspath(target[0])
        sys.argv = list(target)
    source = Path(main.__file__).read_bytes()
    return compile(source, main.__file__, "exec", dont_inherit=True), main.__dict__


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return (stop.code or 0) & 0xFF
    with contextlib.suppress(Exception):  # the script closed its stderr, or the object cannot be printed
        print(stop.code, file=sys.stderr)
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # the script closed it, or the disk is full


def _flush_files() -> None:
    """Write out the files that the script has left open, which the interpreter's teardown would do."""
    kinds = {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom}
    everything = gc.get_objects()  # some 300,000: gone through without a step of Python's for each
    files = list(itertools.compress(everything, map(kinds.__contains__, map(type, everything))))
    for file in sorted(files, key=lambda file: type(file) is not io.TextIOWrapper):  # they go to the buffers below
        with contextlib.suppress(Exception):  # whatever stands below may be closed, full or the script's own
            file.flush()


def leave(code: int) -> None:
    """End as Python ends: other threads waited for, exit handlers run, all flushed; but without the interpreter's
    teardown, in which torch 2.14 aborts some healthy DDP processes.
    """
    with contextlib.suppress(BaseException):  # an interrupt now changes nothing any more
        threading._shutdown()  # what Py_FinalizeEx calls first
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    _flush()
    _flush_files()
    ctypes.CDLL(None).fflush(None)  # what C and C++ printed
    os._exit(code)


if __name__ == "__main__":
    main()
