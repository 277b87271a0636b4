"""What a picture is given, looked at before it is drawn: each returns it, or is an InputError that says what to give.

`call` is the function that the learner has called, with which each message begins.
"""

import math
from collections.abc import Mapping
from numbers import Integral, Real

from ddp_lab.errors import InputError


def panels(given, call, form):
    """A dict with something in it, `form`."""
    if not isinstance(given, Mapping):
        raise InputError(f"{call}(): {brief(given)} is no dict. Give {form}.")
    if not given:
        raise InputError(f"{call}({{}}): there is nothing to draw. Give {form}.")
    return given


def run(given, call, has="frame"):
    """A Run, or what has this part of one."""
    if not hasattr(given, has):
        raise InputError(f"{call}(): {brief(given)} is no run. Give what lab.torchrun() returns, or lab.last_run().")
    return given


def run_and_name(given, call, has="frame", most=2):
    """A tuple of a run and the name of what it has logged; `most`: of so many entries at most."""
    if not isinstance(given, (tuple, list)) or not 2 <= len(given) <= most:
        raise InputError(f"{call}(): {brief(given)} is no pair of a run and a name. Give {{title: (run, name)}}.")
    run(given[0], call, has)
    return given


def table(given, call, columns, source):
    """A pandas table with these columns; `source`: where one comes from."""
    import pandas

    if not isinstance(given, pandas.DataFrame) or (missing := [name for name in columns if name not in given]):
        lacks = f"has no {', '.join(missing)}" if isinstance(given, pandas.DataFrame) else "is no table"
        raise InputError(f"{call}(): {brief(given)} {lacks}. Give {source}.")
    return given


def line(given, call, form, above=-math.inf):
    """A dict of numbers, {x: y}, each above `above`."""
    if not isinstance(given, Mapping):
        raise InputError(f"{call}(): {brief(given)} is no dict. Give {form}.")
    for value in (*given, *given.values()):
        number(value, call, form, above)
    return given


def number(value, call, form, above=-math.inf):
    """A finite number above `above`."""
    if isinstance(value, bool) or not isinstance(value, Real) or not above < value < math.inf:
        what = "finite number" if above == -math.inf else f"finite number above {above}"
        raise InputError(f"{call}(): {brief(value)} is no {what}. Give {form}.")
    return value


def count(value, call, name):
    """A whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InputError(f"{call}(): {name}={brief(value)}: give a whole number, 1 or more.")
    return int(value)


def brief(value):
    """A value as it is, where that is short, else what it is."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"this {type(value).__name__}"
