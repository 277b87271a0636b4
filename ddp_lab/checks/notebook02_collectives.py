"""Checks of the first half of notebook 02, collectives."""

from ddp_lab.checks.answers import BRING, calls_in, ended_well, named, of_ranks, script_of
from ddp_lab.checks.verdict import NotYet, exercise
from ddp_lab.errors import InputError

RANKS = 4
MOST = 96  # bytes for 02.1, with the best collectives
BEST = {"all_gather": 16, "scatter": 16, "all_to_all": 64}  # of these
ROWS = [[number * 10.0**rank for number in range(1, RANKS + 1)] for rank in range(RANKS)]


def _after(run, name, doc):
    """For each rank what it has logged last as `after` of a collective, a list of numbers; else a hint."""
    found = []
    for rank in run.ranks:
        values = [record.get("after") for record in rank.records if record.get("collective") == name]
        value = values[-1] if values else None
        value = [value] if isinstance(value, (int, float)) else value
        if not isinstance(value, list):
            raise NotYet(f'rank {rank.rank} has not logged collective="{name}" with what it has after it. {doc}')
        flat = [number for row in value for number in (row if isinstance(row, list) else [row])]
        if not all(isinstance(number, (int, float)) for number in flat):
            raise NotYet(f"rank {rank.rank} logged {str(value)[:40]} after the {name}: not numbers.")
        found.append(flat)
    return found


def _wrong(found, wanted):
    """The ranks whose numbers are not the wanted ones."""
    return [rank for rank, (own, right) in enumerate(zip(found, wanted, strict=True)) if own != right]


def _numbers(values):
    return "[" + ", ".join(f"{value:g}" for value in values[:8]) + (", …]" if len(values) > 8 else "]")


@exercise("02.1")
def _sort_out(run):
    """The answer is the run of your cell on 4 ranks, counted: `lab.check("02.1", answer)`."""
    ended_well(run, _sort_out.__doc__)
    of_ranks(run, RANKS)
    leave = "Leave the calls of worker.log where they are."
    wanted = {
        "table": [[10.0**rank for rank in range(RANKS)]] * RANKS,
        "plan": [[number] for number in ROWS[0]],
        "letters": [list(column) for column in zip(*ROWS, strict=True)],
    }
    for name, right in wanted.items():
        found = _after(run, name, leave)
        if not (wrong := _wrong(found, right)):
            continue
        rank = wrong[0]
        got = f"{named(wrong)}: as {name} rank {rank} has {_numbers(found[rank])}, not {_numbers(right[rank])}."
        if name == "letters" and found[rank] == ROWS[rank]:
            raise NotYet(f"{got} These are the letters that it has written itself.")
        if name == "letters" and len(found[rank]) == RANKS**2:
            raise NotYet(f"{got} It has all letters of all ranks; it is to have those that are for it.")
        if name == "letters" and sorted(found[rank]) == sorted(right[rank]):
            raise NotYet(f"{got} The right letters in another order: that of the senders is asked for.")
        if not any(found[rank]):
            raise NotYet(f"{got} Nothing has come: is the buffer that you log the one that the collective fills?")
        raise NotYet(got)
    try:
        counted = run.collectives
    except InputError:
        raise NotYet("the run was not counted. Leave --count in the cell's first line.") from None
    total = int(counted["bytes"].sum())
    if total > MOST:
        parts = counted.groupby("op")["bytes"].agg(["size", "sum"]).sort_values("sum", ascending=False)
        wide = parts[parts.index.isin(["broadcast", "all_reduce"])]  # what gives all of it to all
        parts = wide if len(wide) else parts
        over = parts["sum"] - [BEST.get(op, 0) for op in parts.index]
        op, (calls, most) = over.idxmax(), parts.loc[over.idxmax()]
        what = f"Too many by {op}: {most} bytes in {calls} calls, on all ranks."
        if op == "all_reduce":
            what += " A sum moves a whole table to bring numbers that stand in different places of it."
        elif op == "broadcast":
            what += " A broadcast gives everything to everyone. Who needs all of it?"
        if counted["dtype"].eq("uint8").any():
            what = "An object collective sends pickles, and their sizes before them. Tensors need neither."
        raise NotYet(f"all numbers are right, and the ranks hand in {total} bytes; {MOST} are enough. {what}")
    letters = counted[~counted["op"].isin(["broadcast", "all_reduce", "recv"])].groupby("rank")["numel"].sum()
    if len(letters) < RANKS or letters.min() < RANKS - 1:
        raise NotYet(
            f"the numbers are right, but some were not brought by a collective: each rank has {RANKS - 1} letters to "
            "hand in, for the others."
        )
    if len(counted.query("op == 'all_gather' and numel >= @RANKS")):
        raise NotYet(
            f"every rank receives all {RANKS**2} letters, and needs {RANKS}. Which collective gives each rank "
            "something else?"
        )
    return f"all ranks have their numbers, for {total} bytes handed in."


@exercise("02.2")
def _silently_wrong(run):
    """The answer is the run of your cell on 4 ranks: `lab.check("02.2", answer)`."""
    ended_well(run, _silently_wrong.__doc__)
    of_ranks(run, RANKS)
    leave = "Leave the calls of worker.log as they are."
    names = {"loss": 1111.0, "error": 2222.0}
    meters = {name: _after(run, name, leave) for name in names}
    table = _after(run, "first column", leave)
    for name, right in names.items():
        for rank, values in enumerate(meters[name]):
            if values == [right]:
                continue
            own = [names[name] / 1111 * 10**rank]
            if values == own:
                raise NotYet(
                    f"the {name} of rank {rank} is {values[0]:g}, its own: nothing was added to it, or not yet. Was "
                    "something started, and not waited for?"
                )
            if values == [right / RANKS]:
                raise NotYet(f"the {name} of rank {rank} is {values[0]:g}, a mean. Sums are asked for.")
            raise NotYet(
                f"the {name} of rank {rank} is {_numbers(values)}, not {right:g}: digits 1 are losses, digits 2 are "
                "errors. In which order does each rank go through its meters?"
            )
    for rank, values in enumerate(table):
        own, sums = ROWS[rank], [number * 1111.0 for number in range(1, RANKS + 1)]
        right = [sums[0], own[1], sums[2], own[3]]
        if values == right:
            continue
        got = f"the table of rank {rank} is {_numbers(values)}, not {_numbers(right)}."
        if values == own:
            raise NotYet(f"{got} It has not changed: .contiguous() makes a copy, and the sums are in the copy.")
        if values == sums:
            raise NotYet(f"{got} The second column was added up too; it is each rank's own.")
        if values[:2] == sums[:2] and values[2:] == own[2:]:
            raise NotYet(f"{got} The first two numbers in memory were added, not the first column.")
        raise NotYet(got)
    _brought(run)
    return "loss 1111, error 2222 on all ranks; the first column added up, the second left alone."


@exercise("02.3")
def _pairs(run):
    """The answer is the run of your cell on 4 ranks: `lab.check("02.3", answer)`."""
    every = "Every rank calls new_group for every group, in the same order, also for those that it is not in."
    if "is not part of group" in str(getattr(run, "error", "")):
        raise NotYet(
            "the run failed: `src=` names a rank that is not in this pair. It is a rank of the whole job; "
            "`group_src=0` is the first of the group."
        )
    spots = getattr(getattr(run, "error", None), "where", None) or []
    if spots and "new_group" in _names(run):
        raise NotYet(
            "the run hung. Has every rank made both groups, in the same order? Is each call made with the group that "
            "the rank is in, and do both ranks of it name the same sender?"
        )
    ended_well(run, _pairs.__doc__)
    of_ranks(run, RANKS)
    leave = "Leave the calls of worker.log as they are."
    right = {"total": [11.0, 11.0, 1100.0, 1100.0], "first": [1.0, 1.0, 100.0, 100.0]}
    for name, wanted in right.items():
        found = _after(run, name, leave)
        if not (wrong := _wrong(found, [[value] for value in wanted])):
            continue
        rank = wrong[0]
        value = found[rank][0] if len(found[rank]) == 1 else None
        got = f"the {name} of rank {rank} is {_numbers(found[rank])}, not {wanted[rank]:g}."
        if value == 1111:
            raise NotYet(f"{got} All four ranks were added: without group= a collective is one of all ranks.")
        if name == "total" and value == 10.0**rank:
            raise NotYet(f"{got} Nothing was added to its own: is it in the group that it calls with?")
        if name == "total" and value in (101.0, 1010.0):
            raise NotYet(f"{got} The groups are of ranks 0 and 2, 1 and 3; the pairs are 0 and 1, 2 and 3.")
        if name == "total" and value in (1001.0, 110.0):
            raise NotYet(f"{got} It was added to a rank of the other pair: they have met by chance. {every}")
        if name == "first" and value == 10.0**rank:
            raise NotYet(f"{got} It has its own number: who sends, and is this rank in the group?")
        if name == "first" and value == 1:
            raise NotYet(f"{got} Rank 0 has sent to all: without group= a broadcast is one to all ranks.")
        if name == "first" and value in (10.0, 1000.0):
            raise NotYet(f"{got} That is the second of the pair. Its first is to send.")
        raise NotYet(got)
    names = _names(run)
    if names and not any(name in GROUPS for name in names):
        raise NotYet("the numbers are right, but there are no groups of two in the script: dist.new_group([0, 1]), …")
    _brought(run)
    return "each pair has its own sum, 11 and 1100, and the number of its first."


GROUPS = ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group", "init_device_mesh")


def _names(run):
    """The names of what the run's script calls; [] where it cannot be read any more."""
    tree = script_of(run)
    return [name for name, _, _ in calls_in(tree) if name] if tree else []


def _brought(run):
    """A hint if the script has no call that brings the numbers of other ranks."""
    names = _names(run)
    if names and not any(BRING.match(name) for name in names):
        raise NotYet("the numbers are right, but no rank asked the others for theirs: no all_reduce in the script.")
