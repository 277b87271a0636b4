"""Nothing passes hollow: what the ledger of a session must say of each notebook that it has run."""

from collections import Counter


def complaints(notebook, events):
    """What the ledger's events of a notebook lack, one line each.

    `notebook`: as nbformat reads it; `events`: dicts, as ddp_lab.launch.ledger writes them.
    """
    found = []
    runs = [event for event in events if event["event"] == "run"]
    checks = Counter(event["exercise"] for event in events if event["event"] == "check" and event["done"])
    stated = notebook.metadata.ddp_lab.runs
    skips = sum(event["event"] == "skip" for event in events)  # by name, for want of GPUs: see lab.can_run
    if len(runs) + skips != stated:
        skipped = f" and {skips} skipped" if skips else ""
        found.append(f"{len(runs)} runs were started{skipped}, its metadata says {stated}")
    for run in runs:
        if run["outcome"] == "ok" and run["ranks"] != run["nproc"]:
            found.append(f"{run['script']} ended well, but only {run['ranks']} of {run['nproc']} ranks said anything")
    hidden = [cell.source for cell in notebook.cells if "solution" in cell.metadata.get("tags", [])]
    solutions = sum("lab.check(" in source for source in hidden)
    if sum(checks.values()) < solutions:
        found.append(f"{solutions} solutions are checked in it, {sum(checks.values())} were found right")
    return found
