"""An exercise, its check, and the line and the Verdict that the learner gets."""

import difflib
from dataclasses import dataclass

from ddp_lab.errors import InputError

EXERCISES = {}


@dataclass(frozen=True)
class Verdict:
    """What a check found: `.exercise`, `.done`, and `.hint` (what to look at next, "" when done)."""

    exercise: str
    done: bool
    hint: str = ""

    def _ipython_display_(self):
        """Nothing: check() has printed its line already, also where it ends a cell."""


class NotYet(Exception):
    """Raised by a check; the message is the hint."""


def exercise(name):
    """Register the check of an exercise: a function of the answer that returns what is right, or raises NotYet.

    Its docstring says what the answer should be; the learner reads it if the answer is something else altogether.
    """

    def register(function):
        EXERCISES[name] = function
        return function

    return register


def check(name, answer):
    """Check the answer to an exercise: `lab.check("00.1", answer)` prints one line and returns a Verdict.

    InputError for an exercise that does not exist.
    """
    if not isinstance(name, str) or name not in EXERCISES:
        near = difflib.get_close_matches(str(name), EXERCISES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"there is no exercise {name!r}; {hint}exercises: {', '.join(sorted(EXERCISES))}")
    try:
        right, verdict = EXERCISES[name](answer), Verdict(name, True)
    except NotYet as hint:
        verdict = Verdict(name, False, str(hint))
    except Exception as error:  # a learner's answer may be anything, and may fail in any way when it is read
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        verdict = Verdict(name, False, f"the answer could not be read ({what}). {EXERCISES[name].__doc__}")
    print(f"done: {right}" if verdict.done else f"not yet: {verdict.hint}", flush=True)

    from ddp_lab.launch import ledger

    ledger.write("check", exercise=name, done=verdict.done)
    return verdict
