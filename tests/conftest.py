"""How the tests are selected, ordered and reported: nothing is left out or skipped without being named."""

import fnmatch
import os
from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
allowed = {}  # what allowed_skips.txt says: pattern -> reason
left_out, skipped = {}, {}  # name of a test -> why; name -> (why, whether it needs a GPU)


def read_allowed(text):
    """{pattern: reason} of allowed_skips.txt. Raises ValueError for a line without a reason."""
    allowed = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, _, reason = line.partition(": ")
            if not reason.strip():
                raise ValueError(f"tests/allowed_skips.txt: no reason in {line!r}")
            allowed[pattern.strip()] = reason.strip()
    return allowed


def forbidden(skips, allowed):
    """The names of skips, {name: (reason, needs a GPU)}, that CI does not allow."""
    return [name for name, (_, gpu) in skips.items()
            if not gpu and not any(fnmatch.fnmatchcase(name, pattern) for pattern in allowed)]


def ci_forbids():
    """The names of this session's skips that fail it: none outside CI."""
    if os.environ.get("CI", "").lower() not in ("true", "1"):
        return []
    return forbidden(skipped, allowed)


def pytest_sessionstart(session):
    try:
        allowed.update(read_allowed((HERE / "allowed_skips.txt").read_text()))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    os.chdir(HERE.parent)  # wherever the command was called from; pytest has resolved its own paths by now


def pytest_collection_modifyitems(items):
    # Unit tests first, as they are quick to tell; then the notebooks, the browser, and what sums up all runs.
    def rank(item):
        return (item.path.name.startswith("test_zz"), bool(item.get_closest_marker("browser")),
                item.path.suffix == ".ipynb")

    items.sort(key=rank)


def pytest_deselected(items):
    for item in items:
        why = [mark for mark in ("slow", "browser", "gpu") if item.get_closest_marker(mark)]
        left_out[item.nodeid] = " and ".join(why) or "not selected"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        skipped[item.nodeid] = reason_of(report), bool(item.get_closest_marker("gpu"))
    return report


def pytest_collectreport(report):
    if report.skipped:
        skipped[report.nodeid] = reason_of(report), False


def reason_of(report):
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    if exitstatus == 0 and ci_forbids():
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter):
    by_reason = defaultdict(list)
    for name, why in left_out.items():
        if why != "not selected":  # by -k and the like: whoever wrote that knows
            by_reason[f"left out ({why})"].append(name)
    for name, (why, _) in skipped.items():
        by_reason[f"skipped ({why})"].append(name)
    for reason, names in by_reason.items():
        terminalreporter.section(f"{len(names)} {reason}")
        for name in names:
            terminalreporter.line(name)
    bad = ci_forbids()
    if bad:
        terminalreporter.section("skips that CI does not allow", red=True)
        for name in bad:
            terminalreporter.line(name)
