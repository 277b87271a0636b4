"""Checks of the learner's answers: one line that says what is right, or what to look at next.

A check reads the answer as a colleague would: it says `done` only for what the task asks, never raises for a
wrong answer, and has a hint of its own for each typical mistake. The checks of a notebook's exercises stand in
notebookNN.py, which is found by its name; what they share is in answers.py.
"""

import importlib
import pkgutil

from ddp_lab.checks.verdict import EXERCISES, Verdict, check

__all__ = ["EXERCISES", "Verdict", "check"]

for _module in pkgutil.iter_modules(__path__):
    if _module.name.startswith("notebook"):
        importlib.import_module(f"{__name__}.{_module.name}")  # registers its exercises
