"""What checks have in common: what an answer is, how a run ended, what its ranks logged, what its script calls."""

import ast
import math
import re
import shlex
from pathlib import Path

from ddp_lab.checks.verdict import NotYet

# What brings the numbers of other ranks. A barrier only waits, and a broadcast adds nothing.
BRING = re.compile(r"(all_)?(reduce|gather|to_all)|i?recv|batch_isend_irecv")


def kind_of(answer):
    """What an answer is, in words: `nothing`, `an int`, `a dict`."""
    if answer is None or answer is ...:
        return "nothing"
    kind = type(answer).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def is_run(answer):
    """Whether this is a Run, or is read as one."""
    return all(hasattr(answer, part) for part in ("ranks", "ok", "error", "frame"))


def ended_well(run, doc):
    """A hint unless this is a run that ended well. `doc`: what the answer should be."""
    if not is_run(run):
        raise NotYet(f"the answer is {kind_of(run)}, not a run. {doc}")
    if getattr(run.error, "where", None):
        raise NotYet("the run hung. What one rank calls as a collective, all must call: read where each rank stood.")
    if not run.ok:
        mark = "Usual cause: "
        if cause := next((line for line in str(run.error).splitlines() if line.startswith(mark)), None):
            raise NotYet(f"the run failed: {cause.removeprefix(mark)} {_where_ranks_part(script_of(run))}")
        what = (str(run.error).splitlines() or [type(run.error).__name__])[0]
        error = re.search(r"^[A-Za-z_][\w.]*: .+", str(run.error).partition("\n")[2], re.MULTILINE)
        said = f": {error[0].rstrip('.')}" if error else ""
        raise NotYet(f"the run failed ({what}){said}. Mend that first.")


def _where_ranks_part(tree):
    """Where ranks of a script may make unequal numbers of collectives: at a test of the rank, else in a loop."""
    nodes = list(ast.walk(tree)) if tree else []
    tests = [ast.unparse(node.test) for node in nodes if isinstance(node, (ast.If, ast.IfExp))]
    loops = [node for node in nodes if isinstance(node, (ast.For, ast.While))]
    in_loop = any(name and BRING.match(name) for loop in loops for name, _, _ in calls_in(loop))
    if in_loop and not any("rank" in test for test in tests):
        return "A collective in a loop needs equally many rounds on all ranks."
    return "What stands under `if rank == 0`, one rank does alone."


def of_ranks(run, number, or_more=False):
    """A hint unless the run had so many ranks."""
    count = len(run.ranks)
    if count < number or (count > number and not or_more):
        ranks = "1 rank" if count == 1 else f"{count} ranks"
        what = f"Write --nproc {number} in the cell's first line, or nproc={number} in lab.torchrun."
        raise NotYet(f"the run had {ranks}. {what}")


def series(run, name, steps):
    """For each rank the list of what it logged as `name`, one number in each of so many steps, else a hint."""
    found = []
    for rank in run.ranks:
        values = {record["step"]: record[name] for record in rank.records if name in record and "step" in record}
        if sorted(values, key=str) != sorted(range(steps), key=str):
            raise NotYet(
                f"rank {rank.rank} logged {name} in {len(values)} of the {steps} steps. "
                f"Leave the loop and its worker.log(step=step, ...) as they were."
            )
        for step, value in values.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise NotYet(f"in step {step} rank {rank.rank} logged {str(value)[:40]!r} as {name}, not a number.")
        found.append([values[step] for step in range(steps)])
    return found


def spread(values):
    """How far the ranks are apart in each step: of a list for each rank. A NaN is apart from everything."""
    return [max(step) - min(step) if all(map(math.isfinite, step)) else math.inf for step in zip(*values, strict=True)]


def first(where):
    """The number of the first that is true, None if none is."""
    return next((number for number, true in enumerate(where) if true), None)


def logged(run, name):
    """[the last that each rank logged as `name`, a list of one number as that number; ... where there is nothing]."""
    found = []
    for rank in run.ranks:
        values = [record[name] for record in rank.records if name in record]
        value = values[-1] if values else ...
        found.append(value[0] if isinstance(value, list) and len(value) == 1 else value)
    return found


def named(numbers):
    """`rank 3`, `ranks 1, 2`."""
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"


def script_of(run):
    """The syntax tree of the script that was run, a cell or a file of one's own; None if it cannot be read any more.

    A hint if the file was changed after the run.
    """
    path = next((Path(word).expanduser() for word in shlex.split(run.command) if word.endswith(".py")), None)
    try:
        tree = ast.parse(path.read_bytes())
        changed = path.stat().st_mtime > (run.dir / "result.json").stat().st_mtime  # written when the run ended
    except (OSError, SyntaxError, ValueError, AttributeError):
        return None
    if changed:
        raise NotYet(f"{path.name} has been changed since this run. Run it again, then check.")
    return tree


def calls_in(tree):
    """[(name of what is called, the call, the function in which it stands)], in the order of the script.

    The name is the one that it has where it comes from: `DDP`, imported as that, is DistributedDataParallel.
    """
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    own = {alias.asname: alias.name for node in imports for alias in node.names if alias.asname}
    found = []

    def visit(node, scope):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                name = getattr(child.func, "attr", getattr(child.func, "id", None))
                found.append((own.get(name, name), child, scope))
            visit(child, child if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) else scope)

    visit(tree, tree)
    return sorted(found, key=lambda call: (call[1].lineno, call[1].col_offset))
