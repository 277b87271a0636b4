"""%%torchrun: the cell's text as a real file, run on every rank."""

from __future__ import annotations

import argparse
import ast
import keyword
import os
import re
import shlex
from types import ModuleType

from ddp_lab import skips
from ddp_lab.errors import InputError
from ddp_lab.launch.torchrun import launch, require_system

LONGEST_NAME = 255
"""Of a file, in bytes, on the file systems that are usual."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise InputError(f"%%torchrun: {message}. `%%torchrun?` lists the options.")


def _clock(text: str) -> float | None:
    """Seconds; `none` switches a clock off."""
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds (or none)") from None


def _show(text: str) -> str | list[int]:
    if text in ("all", "none"):
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is unknown: all, none, or ranks such as 0,2") from None


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="%%torchrun", add_help=False, allow_abbrev=False)
    add = parser.add_argument
    add("--nproc", default=2, type=int, metavar="N", help="ranks (default 2); with --nodes, on each host")
    add("--name", default="cell.py", metavar="FILE.py", help="the file's name that is shown (default cell.py)")
    add("--timeout", default=120, type=_clock, metavar="S", help="seconds in all, or none (default 120)")
    add("--stall", default=60, type=_clock, metavar="S", help="seconds without a sign of life, or none (default 60)")
    add("--expect", metavar="TEXT", help="pass only if the run fails with this text")
    add("--show", default="all", type=_show, metavar="WHICH", help="all, none, or ranks such as 0,2 (default all)")
    add("--result", default="run", metavar="NAME", help="the variable that gets the Run (default run)")
    add("--env", action="append", default=[], metavar="K=V", help="a variable for the ranks; may be given again")
    add("--warm", action="store_true", default=None, help="start from the warm server, or fail")
    add("--cold", dest="warm", action="store_false", default=None, help="start fresh interpreters")
    add("--count", action="store_true", help="count the collectives: run.collectives")
    add("--trace", action="store_true", help="record computing and communication: run.timeline()")
    add("--nodes", default=1, type=int, metavar="N", help="emulated hosts (default 1: this machine)")
    add("--link", metavar="RATE", help="the rate of their links, such as 1gbit or 200mbit (default: no limit)")
    add("--delay", metavar="TIME", help="the delay of each packet, such as 20ms (where the kernel has netem)")
    add("--no-check", dest="check", action="store_false", help="raise nothing when the run fails")
    return parser


def torchrun_cell(line: str, cell: str) -> None:
    """Run this cell on several ranks with torchrun."""
    import IPython

    require_system()
    options, args = _options(line)
    try:
        cell.encode()
    except UnicodeEncodeError as error:
        line = cell.count("\n", 0, error.start) + 2  # below the magic's own
        raise InputError(
            f"%%torchrun: line {line} of the cell has {cell[error.start]!a}, half of a character. Write it anew."
        ) from None
    if not cell.strip() or _is_empty(cell):
        raise InputError("%%torchrun: the cell is empty. Write the script below the first line.")
    if not re.fullmatch(r"[\w-][\w.-]*\.py", options.name):
        raise InputError(f"%%torchrun: --name {options.name!r} is no name of a script. Write one such as train.py.")
    if len(os.fsencode(options.name)) > LONGEST_NAME:
        raise InputError(f"%%torchrun: --name {options.name[:20]}... is longer than {LONGEST_NAME} bytes. Shorten it.")
    if not options.result.isidentifier() or keyword.iskeyword(options.result):
        raise InputError(f"%%torchrun: --result {options.result!r} is no name of a variable.")
    variables = IPython.get_ipython().user_ns
    if isinstance(variables.get(options.result), ModuleType):
        raise InputError(
            f"%%torchrun: --result {options.result} would replace the module {options.result}. Write another name."
        )
    env = {}
    for pair in options.env:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"%%torchrun: --env {pair!r} has no '='. Write --env NAME=value.")
        env[name] = value
    if options.nodes > 1 and (why := skips.hosts_lack()):
        skips.skip(options.name, why)
        variables[options.result] = None
        return
    given = (options.nproc, options.timeout, options.stall, options.show, options.expect, env or None, options.warm)
    given += (options.check, options.count, options.trace, options.nodes, options.link, options.delay)
    try:
        run = launch([], options.name, args, *given, cell=cell)
    except BaseException as error:
        if getattr(error, "run", None) is not None:
            variables[options.result] = error.run
        raise
    variables[options.result] = run


def _options(line: str) -> tuple[argparse.Namespace, list[str]]:
    """The magic's own options, and the script's arguments after `--`."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise InputError(f"%%torchrun: the first line cannot be read: {error}.") from None
    own, args = words, []
    if "--" in words:
        at = words.index("--")
        own, args = words[:at], words[at + 1 :]
    parser = _parser()
    options, unknown = parser.parse_known_args(own)
    if unknown:
        import difflib

        near = difflib.get_close_matches(unknown[0], parser._option_string_actions, n=1, cutoff=0.75)
        hint = f"Did you mean {near[0]}?" if near else "Arguments of the script go after `--`."
        raise InputError(f"%%torchrun: unknown option {unknown[0]}. {hint} `%%torchrun?` lists the options.")
    return options, args


def _is_empty(cell: str) -> bool:
    try:
        return not ast.parse(cell).body  # comments alone
    except SyntaxError:
        return False  # the ranks will say where


torchrun_cell.__doc__ = f"""{torchrun_cell.__doc__}

The cell is saved as a file in the run's folder, and that file is run. Arguments for the script go after `--`.
The Run is bound to `run` (see --result), also when it fails; the cell itself returns nothing. Where hosts cannot be
emulated, a cell with --nodes is skipped, in a line that says so, and None is bound.

{_parser().format_help()}
Example:

    %%torchrun --nproc 4 --name hello.py --timeout 30 -- --epochs 2
"""
