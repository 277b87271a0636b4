"""Checks of notebook 05, first half: who gets what, validation, the silent faults of a script."""

import ast
import math
from collections import Counter

from ddp_lab.checks.answers import BRING, calls_in, ended_well, kind_of, logged, of_ranks, script_of
from ddp_lab.checks.verdict import NotYet, exercise

# Samples, ranks, drop_last: first those that the notebook has shown, what divides, and sets smaller than the world.
CASES = [(10, 3, False), (10, 4, True), (12, 4, False), (12, 4, True), (3, 4, False), (3, 4, True), (2, 5, False)]
CASES += [(samples, world, drop) for samples in range(1, 14) for world in range(1, 9) for drop in (False, True)]


@exercise("05.1")
def _predict_the_shares(answer):
    """The answer is your function: `lab.check("05.1", share)`."""
    if not callable(answer):
        raise NotYet(f"the answer is {kind_of(answer)}, not a function. {_predict_the_shares.__doc__}")
    for case in CASES:
        samples, world, drop_last = case
        for rank in range(world):
            where = _named(case, rank)
            try:
                found = answer(samples, world, rank, drop_last)
            except Exception as error:
                raise NotYet(f"your function raised {type(error).__name__}: {error}, for {where}.") from None
            if not isinstance(found, (list, tuple, range)):
                raise NotYet(f"your function returns {kind_of(found)}, not a list of samples, for {where}.")
            if list(found) != share(samples, world, rank, drop_last):
                _another_share(list(found), case, rank)
    return f"every share right, in {len(set(CASES))} cases: padded, dropped, and sets smaller than the world."


def share(samples, world, rank, drop_last):
    """What DistributedSampler(range(samples), world, rank, shuffle=False, drop_last=drop_last) gives, as a list."""
    total = samples // world * world if drop_last else -(-samples // world) * world
    return [place % samples for place in range(rank, total, world)]  # padded from the beginning, again and again


def _named(case, rank):
    samples, world, drop_last = case
    return f"{samples} samples, rank {rank} of {world}, drop_last={drop_last}"


def _another_share(found, case, rank):
    """The hint for a share that is not the sampler's."""
    samples, world, drop_last = case
    right, where = share(*case[:2], rank, drop_last), _named(case, rank)
    if len(right) > 1 < world and len(found) > 1 and sorted(found) == list(range(found[0], found[0] + len(found))):
        raise NotYet(f"for {where} your share is {found}: a block. The sampler deals out, as one deals cards.")
    again = samples < world and rank >= 2 * samples  # what fills the shares is used up once, and needed again
    if not drop_last and not again and found == list(range(rank, samples, world)):
        why = "All shares are equally long: what fills them?"
        if samples < world:
            why = "With fewer samples than ranks, too, no rank has an empty share."
        raise NotYet(f"for {where} your share has {len(found)} samples, the sampler's {len(right)}. {why}")
    if not drop_last and samples < world:
        raise NotYet(
            f"for {where} your share is {found}, the sampler's {right}. What fills the shares is the data set, "
            "from sample 0 on, and again as often as needed."
        )
    if drop_last and len(found) > len(right):
        raise NotYet(
            f"for {where} your share is {found}, the sampler's {right}. With drop_last nothing is read twice: "
            "what does not divide is cut off, and all shares are as long as the shortest, which may be empty."
        )
    why = ""
    if not drop_last and 0 < len(found) < len(right):
        why = " Without drop_last nothing is left out: all shares are as long as the longest."
    raise NotYet(f"for {where} your share is {found}, the sampler's {right}.{why}")


RIGHT = [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]  # of 05.2: what the model makes of each sample
TARGET = sum(RIGHT) / len(RIGHT)


@exercise("05.2")
def _count_each_once(run):
    """The answer is the run of your cell on 4 ranks: `lab.check("05.2", answer)`."""
    ended_well(run, _count_each_once.__doc__)
    of_ranks(run, 4)
    batches = [_lists(rank, "samples") for rank in run.ranks]
    tree = script_of(run)
    accuracies = logged(run, "accuracy")
    _each_once(batches, accuracies, tree)
    _are_numbers(accuracies)
    _the_accuracy(batches, accuracies)
    if tree and not any(name and BRING.match(name) for name, _, _ in calls_in(tree)):
        raise NotYet("the accuracy is right, but no rank asked the others for their counts: it was not counted here.")
    counts = ", ".join(str(sum(map(len, own))) for own in batches)
    return f"{len(RIGHT)} of {len(RIGHT)} samples, each once ({counts} on the ranks); accuracy {TARGET:g} on each rank."


def _lists(rank, name, **where):
    """[what this rank has logged as `name`, a list of sample numbers each], of the records with these values."""
    found = []
    for record in rank.records:
        if name in record and where.items() <= record.items():
            listed = record[name] if isinstance(record[name], list) else [record[name]]
            if not all(isinstance(sample, int) for sample in listed):
                raise NotYet(f"rank {rank.rank} logged {str(listed)[:40]} as {name}, which are no sample numbers.")
            found.append(listed)
    return found


def _some(samples):
    """`sample 3`, `samples 0 and 1`, `samples 0, 1 and 2`, `samples 0, 1, 2 and 9 more`."""
    samples = sorted(samples)
    if len(samples) == 1:
        return f"sample {samples[0]}"
    shown, rest = (samples[:3], [f"{len(samples) - 3} more"]) if len(samples) > 4 else (samples[:-1], samples[-1:])
    return f"samples {', '.join(map(str, shown))} and {rest[0]}"


def _each_once(batches, accuracies, tree):
    """A hint unless the ranks together have read each of the samples once."""
    orders = [[sample for batch in own for sample in batch] for own in batches]
    count = Counter(sum(orders, []))
    if not count:
        raise NotYet("no rank logged samples. Leave worker.log(step=step, samples=batch) where it was.")
    everything = list(range(len(RIGHT)))
    if all(sorted(own) == everything for own in orders):
        raise NotYet(f"each rank counts all {len(RIGHT)} samples: the work is done {len(orders)} times. Share it out.")
    again = [sample for sample, times in count.items() if times > 1]
    never = [sample for sample in everything if sample not in count]
    if again:
        times = "twice" if max(count.values()) == 2 else "more than once"
        if all(isinstance(own, float) and math.isclose(own, TARGET, abs_tol=1e-6) for own in accuracies):
            are = "is" if len(again) == 1 else "are"
            raise NotYet(
                f"the accuracy is {TARGET:g}, but {_some(again)} {are} read {times}: a stride needs no padding."
            )
        raise NotYet(
            f"{sum(count.values())} samples read, {_some(again)} {times}. "
            "Look at what fills the last places of the map."
        )
    if never:
        why = " drop_last leaves out what does not divide." if _says(tree, "drop_last", True) else ""
        raise NotYet(f"{len(count)} of {len(RIGHT)} samples read, {_some(never)} never.{why}")
    if any(not own for own in orders):
        idle = [rank for rank, own in enumerate(orders) if not own]
        raise NotYet(f"each sample counts once, but rank {idle[0]} has none and waits. Let every rank have a share.")


def _says(tree, name, value):
    """Whether a call in the script says `name=value`; not if the script is unknown."""
    given = [word for _, call, _ in (calls_in(tree) if tree else []) for word in call.keywords if word.arg == name]
    return any(isinstance(word.value, ast.Constant) and word.value.value is value for word in given)


def _are_numbers(accuracies):
    """A hint unless every rank has logged one."""
    for rank, accuracy in enumerate(accuracies):
        if accuracy is ...:
            raise NotYet(f"rank {rank} logged no accuracy. Each rank is to have it: worker.log(accuracy=...).")
        if isinstance(accuracy, bool) or not isinstance(accuracy, (int, float)):
            raise NotYet(f"rank {rank} logged {str(accuracy)[:40]!r} as accuracy, not a number.")


def _the_accuracy(batches, accuracies):
    """A hint unless every rank has the accuracy over all samples."""
    if all(math.isclose(accuracy, TARGET, abs_tol=1e-6) for accuracy in accuracies):
        return
    hits = [[[RIGHT[sample] for sample in batch] for batch in own] for own in batches]
    of_ranks_alone = [_mean(sum(own, [])) for own in hits]
    of_batches = [_mean([_mean(batch) for batch in own]) for own in hits]
    close = {name: math.isclose(accuracies[0], _mean(values), abs_tol=1e-6) for name, values in
             (("ranks", of_ranks_alone), ("batches", of_batches))}  # fmt: skip
    got = f"the samples are right, the accuracy is {accuracies[0]:.4g}, not {TARGET:g}"
    if max(accuracies) - min(accuracies) > 1e-6:
        if math.isclose(accuracies[0], TARGET, abs_tol=1e-6):
            raise NotYet("rank 0 has the accuracy over all samples, the others do not. all_reduce gives it to each.")
        raise NotYet("each rank has an accuracy of its own. Add up hits and samples, both, over the ranks.")
    if math.isclose(accuracies[0], 100 * TARGET, abs_tol=1e-4):
        raise NotYet(f"the accuracy is right, but in percent: the target is {TARGET:g}.")
    if close["ranks"]:
        raise NotYet(f"{got}: a mean of the ranks' accuracies, and ranks with fewer samples count as much as others.")
    if close["batches"]:
        raise NotYet(f"{got}: a mean of batches' accuracies, and small batches count as much as full ones.")
    if math.isclose(accuracies[0] * len(RIGHT), sum(map(sum, sum(hits, []))) * len(RIGHT), abs_tol=1e-6):
        raise NotYet(f"{got}: these are the hits. Divide them by the samples counted.")
    raise NotYet(f"{got}. Add up hits and samples over all ranks, and divide once.")


def _mean(values):
    return sum(values) / len(values)


EPOCHS, TRAIN, VALIDATION, UPDATE = 3, 16, 8, 8  # of 05.3


@exercise("05.3")
def _two_silent_faults(run):
    """The answer is the run of your cell: `lab.check("05.3", answer)`."""
    ended_well(run, _two_silent_faults.__doc__)
    of_ranks(run, 2, or_more=True)
    orders, held = [], []
    for epoch in range(EPOCHS):
        orders.append([tuple(sum(_lists(rank, "samples", epoch=epoch), [])) for rank in run.ranks])
        held.append([sum(_lists(rank, "validated", epoch=epoch), []) for rank in run.ranks])
        if not any(orders[-1]) or not any(held[-1]):
            raise NotYet(f"epoch {epoch} has no samples, or none validated. Leave the loops and their logs.")
    _no_leak(orders, held)
    for epoch, own in enumerate(orders):
        if all(len(set(rank)) == TRAIN for rank in own):
            raise NotYet(f"each rank reads all {TRAIN}: who shares them out?")
        count = Counter(sum(own, ()))
        again, missing = [sample for sample in count if count[sample] > 1], TRAIN - len(count)
        if again or missing:
            raise NotYet(
                f"in epoch {epoch} {_some(again) + ' are read twice' if again else 'none is read twice'}, and "
                f"{missing} of {TRAIN} never. Do all ranks shuffle alike?"
            )
    updates = {len(sum((_lists(rank, "samples", epoch=0, step=0)[0] for rank in run.ranks), []))}
    if updates != {UPDATE}:
        raise NotYet(f"an update has {updates.pop()} samples, not {UPDATE}. A loader's batch_size is that of its rank.")
    different = len({own[0] for own in orders})
    if different < EPOCHS:
        _too_few_orders(different, script_of(run))
    _noise_of_its_own(run)
    return (
        f"{EPOCHS} epochs, {EPOCHS} orders: each of {TRAIN} samples once in each, none of the {VALIDATION} validated; "
        "and every rank has random numbers of its own."
    )


def _too_few_orders(different, tree):
    """The hint if epochs have an order in common."""
    if _says(tree, "shuffle", False) and different == 1:
        raise NotYet("the epochs are not shuffled: shuffle=False. Leave the training's sampler its shuffle.")
    found = f"{EPOCHS} epochs have {different} order{'s' * (different > 1)}"
    if tree and any(name == "set_epoch" for name, _, _ in calls_in(tree)):
        raise NotYet(f"{found}: is set_epoch called before the epoch's loop, with the epoch, on the loader's sampler?")
    raise NotYet(f"{found}: who tells the sampler the epoch?")


def _no_leak(orders, held):
    """A hint if a sample is both trained on and validated, or if not each of the others is validated once."""
    trained, validated = ({sample for own in lists for rank in own for sample in rank} for lists in (orders, held))
    if both := trained & validated:
        for epoch, (train, validation) in enumerate(zip(orders, held, strict=True)):
            for rank, (read, kept) in enumerate(zip(train, validation, strict=True)):
                if own := set(read) & set(kept):
                    raise NotYet(
                        f"in epoch {epoch} rank {rank} trains on what it validates itself, such as sample {min(own)}. "
                        "What does the loader read?"
                    )
        if not any(set(sum(train, ())) & set(sum(kept, [])) for train, kept in zip(orders, held, strict=True)):
            raise NotYet(
                f"{len(both)} samples are trained on in one epoch and validated in another: the split changes from "
                "epoch to epoch. Draw it once, before the loop."
            )
        raise NotYet(
            f"{len(both)} samples are trained on and validated as well, such as sample {min(both)}: what one rank "
            "holds back another trains on. Who draws the split, and from which seed?"
        )
    for epoch, own in enumerate(held):
        count = Counter(sum(own, []))
        if sum(count.values()) != VALIDATION or len(count) != VALIDATION:
            raise NotYet(
                f"in epoch {epoch} {sum(count.values())} samples are validated, {len(count)} of them distinct; "
                f"it should be {VALIDATION}, each once."
            )


def _noise_of_its_own(run):
    """A hint unless the ranks have drawn different random numbers."""
    noise = [[str(record["noise"]) for record in rank.records if "noise" in record] for rank in run.ranks]
    if not all(noise):
        raise NotYet("a rank logged no noise. Leave worker.log(epoch=epoch, step=step, samples=batch, noise=noise).")
    for rank, own in enumerate(noise):
        if len(set(own)) < len(own):
            raise NotYet(f"rank {rank} draws the same noise again and again. Seed it once, at the start.")
    if len(set(sum(noise, []))) < len(sum(noise, [])):
        raise NotYet(
            "split and orders are right, but two ranks draw the same noise. One seed for the split, "
            "and another for each rank from there on."
        )
