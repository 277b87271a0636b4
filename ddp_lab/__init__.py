"""DDP Lab: from one GPU to many in PyTorch, every step run, counted and checked.

In a notebook: `import ddp_lab as lab`. In a script that runs on every rank: `from ddp_lab import worker`.
"""

from __future__ import annotations

import importlib
import sys

# The whole public API, each name with the module it lives in. Loaded when first used: importing ddp_lab is quick, and
# neither it nor launching imports torch into the kernel.
_HOMES = {
    "torchrun": "launch.torchrun",
    "command": "launch.command",
    "commands": "launch.command",
    "Run": "launch.result",
    "last_run": "launch.result",
    "RankError": "launch.failures",
    "CommandError": "launch.failures",
    "HangError": "launch.failures",
    "LaunchError": "launch.failures",
    "ExpectationError": "launch.failures",
    "RunGoneError": "launch.result",
    "InputError": "errors",
    "machine": "doctor",
    "visible_devices": "devices",
    "can_run": "skips",
    "check": "checks",
    "source": "catalog",
    "diff": "catalog",
}
_MODULES = {"worker", "data", "models", "figures"}

__all__ = [*_HOMES, *_MODULES]
__version__ = "0.1.0"


def __getattr__(name: str):
    if name in _MODULES:
        return importlib.import_module(f"ddp_lab.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"ddp_lab.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'ddp_lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *globals()])


def load_ipython_extension(shell) -> None:
    """Register %%torchrun and the note on failed statements; `import ddp_lab` in IPython does it by itself."""
    from ddp_lab.launch import magic

    shell.register_magic_function(magic.torchrun_cell, "cell", "torchrun")
    shell.events.register("post_run_cell", _name_versions)


def _name_versions(result) -> None:
    """Where a statement (an assertion in a cell) has failed under another torch than the course's: name both."""
    if isinstance(result.error_in_exec, AssertionError):
        from ddp_lab.doctor import versions_note

        if note := versions_note():
            print(note)


if _shell := getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)():
    load_ipython_extension(_shell)
