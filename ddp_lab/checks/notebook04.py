"""Checks of notebook 04, Devices and launching."""

import re

from ddp_lab.checks.answers import ended_well, is_run, kind_of, logged, named, of_ranks
from ddp_lab.checks.verdict import NotYet, exercise
from ddp_lab.devices import visible_devices

MASKS, GPUS = ("2,0,3", "3,-1,0", "0,4,1", "1,3,1", "-1,2"), 4  # of 04.1
NODES, EACH = 2, 2  # of 04.2


def own_gpus(mask):
    """The physical GPU of each local rank that has one, in the order of the local ranks."""
    return [int(gpu) for gpu in visible_devices(mask, gpus=GPUS)["physical"].dropna()]


@exercise("04.1")
def _masks(answer):
    """The answer is a dict: for each mask the list of the GPUs of local ranks 0, 1, ..., as `{"2,0,3": [...], ...}`."""
    if not isinstance(answer, dict):
        raise NotYet(f"the answer is {kind_of(answer)}. {_masks.__doc__}")
    for mask in MASKS:
        given = answer.get(mask, ...)
        if given is None or given is ...:
            raise NotYet(f"the mask {mask!r} is still open: which GPUs do its local ranks get, in their order?")
        if not isinstance(given, (list, tuple)):
            raise NotYet(f"{mask!r}: {given!r} is {kind_of(given)}. Give a list, [] where no rank gets a GPU.")
        if list(given) != own_gpus(mask):
            raise NotYet(f"{mask!r}: {_why_not(mask, list(given))}")
    return f"{len(MASKS)} masks on {GPUS} GPUs, each rank's GPU right."


def _why_not(mask, given):
    """What to look at, in words: `given` is not what the ranks get."""
    right = own_gpus(mask)
    named_gpus = [int(part) for part in mask.split(",") if part.lstrip("-").isdecimal()]
    if [gpu for gpu in given if isinstance(gpu, int)] == right:
        return "leave out the ranks that get none."
    if not all(isinstance(gpu, int) for gpu in given):
        return f"{given!r}: numbers are asked for, such as [1, 2]."
    if len(set(named_gpus)) < len(named_gpus):
        return "it names a GPU twice. Look at what such a mask leaves, in the picture above."
    if len(given) > len(right) == len(named_gpus):
        return f"{len(given)} GPUs, and the mask has {len(named_gpus)} entries."
    if len(given) > len(right):
        return "an entry that names no GPU ends the list: what comes after it is hidden, too."
    if given == sorted(right) != right:
        return "the order is the mask's: cuda:0 is the GPU that it names first."
    if given == list(range(len(right))):
        return "these are the numbers by which the ranks see them, cuda:0 and so on. Which GPUs are they really?"
    return "not these. Go through its entries from the left: each names the next rank's GPU, until one names none."


@exercise("04.2")
def _two_nodes(answer):
    """The answer is what lab.commands returned for the two commands: `lab.check("04.2", answer)`."""
    if is_run(answer):
        raise NotYet("the answer is one run. Two nodes are two commands: lab.commands([[...], [...]]) runs both.")
    if not isinstance(answer, (list, tuple)) or not all(map(is_run, answer)):
        raise NotYet(f"the answer is {kind_of(answer)}. {_two_nodes.__doc__}")
    if len(answer) != NODES:
        raise NotYet(f"{len(answer)} commands were run. Each node needs one: {NODES}.")
    _have_met(answer)
    jobs = [[record for record in run.ranks[0].records if record.get("WORLD_SIZE")] for run in answer]
    for number, own in enumerate(jobs):
        if not own:
            raise NotYet(f"command {number} has left no record of a rank. Both run -m ddp_lab.labs.launched.")
    sizes = {int(record["WORLD_SIZE"]) for own in jobs for record in own}
    if [len(own) for own in jobs] != [EACH] * NODES:
        counts = " and ".join(str(len(own)) for own in jobs)
        raise NotYet(f"the nodes have {counts} ranks. Before the script each needs --nproc-per-node {EACH}.")
    if sizes == {EACH}:
        raise NotYet(
            f"{NODES} jobs of {EACH} ranks, each alone: the world size is {EACH} in both. Each command is to say that "
            "there are two nodes (--nnodes), and where they meet."
        )
    if sizes != {NODES * EACH}:
        raise NotYet(f"the world size is {' and '.join(map(str, sorted(sizes)))}. It is to be {NODES * EACH}.")
    ranks = sorted(int(record["RANK"]) for own in jobs for record in own)
    if ranks != list(range(NODES * EACH)):
        raise NotYet(f"the ranks are {ranks}: these are not the four of one job.")
    return f"{NODES} nodes with {EACH} ranks each have met: world size {NODES * EACH}, ranks 0 to {NODES * EACH - 1}."


def _have_met(runs):
    """A hint unless both commands ended well."""
    texts = [run.ranks[0].stderr for run in runs]
    if any("EADDRINUSE" in text for text in texts):
        raise NotYet(
            "both commands wanted to be the one that listens at the port (EADDRINUSE). One alone is node 0: give each "
            "its own --node-rank; or, with c10d, name --rdzv-backend and --rdzv-endpoint."
        )
    for number, (run, text) in enumerate(zip(runs, texts, strict=True)):
        if run.ok:
            continue  # torch may still warn, as of a "recvValueWithTimeout"
        if unknown := re.search(r"(?:unrecognized arguments|invalid \w+ value|expected one argument).*", text):
            raise NotYet(f"command {number} was not understood: {unknown[0]}")
        if getattr(run.error, "reason", None) or re.search(r"[Tt]imed out|TimeoutError", text):
            raise NotYet(
                "the nodes have not met: one waited in vain. Both say --nnodes 2. Static: one port, --node-rank 0 "
                "and 1; c10d: one --rdzv-endpoint, one --rdzv-id. --standalone is for one node."
            )
        ended_well(run, _two_nodes.__doc__)


@exercise("04.3")
def _old_script(answer):
    """The answer is both runs in a dict: `{"torchrun": answer, "launch": old}`."""
    if is_run(answer):
        raise NotYet('the answer is a run alone. Give both: {"torchrun": answer, "launch": old}.')
    if not isinstance(answer, dict):
        raise NotYet(f"the answer is {kind_of(answer)}. {_old_script.__doc__}")
    new, old = answer.get("torchrun"), answer.get("launch")
    if not is_run(new) or not is_run(old):
        raise NotYet(f"a run is missing. {_old_script.__doc__}")
    if any("the following arguments are required" in rank.stderr for rank in new.ranks):
        raise NotYet("torchrun gives no argument, so none may be required.")
    ended_well(new, _old_script.__doc__)
    of_ranks(new, 2)
    found = logged(new, "local_rank")
    if found == [0, 0]:
        raise NotYet(
            "under torchrun both ranks say 0: nothing gives the argument, so its default stands, on every rank. "
            "What does torchrun set instead?"
        )
    if found == ["0", "1"]:
        raise NotYet("under torchrun the ranks logged '0' and '1', texts. The numbers are asked for: int(...).")
    wrong = [rank for rank, value in enumerate(found) if value != rank or isinstance(value, bool)]
    if wrong:
        raise NotYet(f"under torchrun {named(wrong)} logged {found[wrong[0]]!r:.40} as local_rank, not its own number.")
    if str(new.dir) not in old.command and f"/{new.dir.name}/{new.name}" not in old.command:
        raise NotYet("the second run is not of this script. Run the old launcher's cell again, then check.")
    if missed := re.search(r"unrecognized arguments: \S+", old.ranks[0].stderr):
        raise NotYet(f"torchrun is content. The old launcher is not: {missed[0]}. Note the hyphen.")
    ended_well(old, _old_script.__doc__)
    numbers = [record.get("local_rank") for record in old.ranks[0].records]
    if sorted(numbers, key=str) != [0, 1]:
        raise NotYet(f"under the old launcher the ranks logged {numbers} as local_rank. They are 0 and 1.")
    if re.search(r"""environ[^\n]*["']RANK["']""", (new.dir / new.name).read_text()):
        raise NotYet("equal here, on one node. On a second node RANK is 2 and 3: take LOCAL_RANK.")
    return "ranks 0 and 1 have their own local rank, under torchrun and under the launcher before it."
