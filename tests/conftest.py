"""How the tests are selected, ordered and reported: nothing is left out or skipped without being named, and no notebook
passes hollow. Under pytest-xdist the workers run the tests, and what they have left out comes to the one that reports.
"""

import fnmatch
import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
allowed = {}  # what allowed_skips.txt says: pattern -> reason
left_out, skipped = {}, {}  # name of a test -> why; name -> (why, whether it needs a GPU)
notebooks = []  # the files of those that have passed


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


class Noting:
    """A plugin of its own: a conftest.py hears of the tests in its folder alone, and the notebooks stand in another."""

    def pytest_runtest_logreport(self, report):
        if report.skipped and not hasattr(report, "wasxfail"):
            skipped[report.nodeid] = reason_of(report), "gpu" in report.keywords
        file = report.nodeid.split("::")[0]
        if file.endswith(".ipynb") and report.when == "call" and report.passed:
            notebooks.append(file)


def pytest_sessionstart(session):
    session.config.pluginmanager.register(Noting())
    try:
        allowed.update(read_allowed((HERE / "allowed_skips.txt").read_text()))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    os.chdir(HERE.parent)  # wherever the command was called from; pytest has resolved its own paths by now


def pytest_collection_modifyitems(config, items):
    # Unit tests first, as they are quick to tell; then the notebooks and the browser. Side by side the other way round,
    # so that no worker begins with what is longest when the other has nothing left.
    def rank(item):
        return bool(item.get_closest_marker("browser")), item.path.suffix == ".ipynb", "launch" in item.path.parts

    items.sort(key=rank, reverse=hasattr(config, "workerinput"))


def pytest_deselected(items):
    for item in items:
        why = [mark for mark in ("slow", "browser", "gpu") if item.get_closest_marker(mark)]
        left_out[item.nodeid] = " and ".join(why) or "not selected"


def pytest_collectreport(report):
    if report.skipped:
        skipped[report.nodeid] = reason_of(report), False


def reason_of(report):
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    left_out.update(getattr(node, "workeroutput", {}).get("left_out", {}))


def of_ledger():
    """{file of a notebook that has passed: what the ledger of this session has of it}; {} without a ledger."""
    if "DDP_LAB_LEDGER" not in os.environ:
        return {}
    ledger = Path(os.environ["DDP_LAB_LEDGER"])
    events = [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []
    return {file: [event for event in events if event["notebook"] == Path(file).stem] for file in notebooks}


def hollow(root):
    """What the ledger of this session lacks of the notebooks that have passed, one line each."""
    import nbformat
    from hollow import complaints

    of_files = of_ledger().items()
    return [f"{file}: {line}" for file, own in of_files for line in complaints(nbformat.read(root / file, 4), own)]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = left_out
    elif exitstatus == 0 and (ci_forbids() or hollow(session.config.rootpath)):
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter, config):
    by_reason = defaultdict(list)
    for name, why in left_out.items():
        if why != "not selected":  # by -k and the like: whoever wrote that knows
            by_reason[f"left out ({why})"].append(name)
    for name, (why, _) in skipped.items():
        by_reason[f"skipped ({why})"].append(name)
    for file, own in of_ledger().items():
        for event in own:
            if event["event"] == "skip":
                by_reason["skipped in a notebook, by name"].append(f"{file}: {event['script']} {event['why']}")
    for reason, names in by_reason.items():
        terminalreporter.section(f"{len(names)} {reason}")
        for name in names:
            terminalreporter.line(name)
    for title, lines in {
        "skips that CI does not allow": ci_forbids(),
        "notebooks that have passed hollow": hollow(config.rootpath),
    }.items():
        if lines:
            terminalreporter.section(title, red=True)
            for line in lines:
                terminalreporter.line(line)
