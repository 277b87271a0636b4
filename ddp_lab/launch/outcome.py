"""From the end of a job to what the learner gets: a Run, an error, or an error that was expected."""

from __future__ import annotations

from ddp_lab.errors import InputError
from ddp_lab.launch import failures, folders, ledger
from ddp_lab.launch.job import Job
from ddp_lab.launch.output import dressed, say
from ddp_lab.launch.result import Rank, Run, remember


def judge(run: Run, job: Job, kind: type[failures.RankError]) -> Exception | None:
    """The error that a finished job amounts to, None if it went well. `kind`: RankError, CommandError for commands."""
    if not run.dir.is_dir():
        gone = InputError(f"the run's folder {run.dir} was removed meanwhile, and its results with it. Run it again.")
        gone.run = run
        return gone
    if job.expiry:
        text = failures.describe_hang(job.expiry.reason, job.expiry.limit, job.expiry.where)
        return failures.HangError(text, run, job.expiry.reason, job.expiry.where, job.expiry.dumps)
    ends = [failures.read(run.dir, rank) for rank in job.ranks]
    if job.code == 0 and all(end.ended_well for end in ends):
        return None
    if job.code < 0:  # by a signal; an end of its own gives 0 or more
        return failures.LaunchError(
            f"{run.name}: its launcher was killed from outside (signal {-job.code}), and its ranks were ended with it. "
            "SIGKILL (9) is often for memory.",
            run,
        )
    cause = failures.root_cause(ends)
    if cause is None or all(end.code is None and end.error is None for end in ends):
        return failures.LaunchError(_launch_report(run, job), run)
    place = cause.place or {}
    if kind is failures.CommandError:
        return kind(_command_report(run, cause), run, cause.rank)
    return kind(failures.describe(cause, ends), run, cause.rank, place.get("file"), place.get("line"))


def deliver(runs: list[Run], expect: str | None, check: bool, nproc: int) -> None:
    """Close the books on runs whose `.error` is set: ledger, mark of the folder, closing line, and raise what must be.

    With `expect` a run passes only if it failed with that text; with `check=False` failures are shown, not raised.
    """
    raised: Exception | None = None
    for run in runs:
        error, said = run.error, ""
        outcome = "ok" if error is None else "hang" if isinstance(error, failures.HangError) else "failed"
        if expect is not None and error is None:
            raised = raised or failures.ExpectationError(
                f"{run.name} was expected to fail with {expect!r}, but it ended well. See run.ranks.", run
            )
        elif expect is not None and expect in sought(error):
            outcome, said = "expected", f"failed as expected, with {expect!r}"
        elif error is not None and check:
            raised = raised or error
        elif error is not None:
            said = "stopped" if outcome == "hang" else "failed"
        if said:
            say(f"{said}:\n\n{dressed(str(error))}\n")
        remember(run)
        reporting = sum(map(_has_reported, run.ranks)) if run.dir.is_dir() else 0
        ledger.write("run", script=run.name, nproc=nproc, ranks=reporting, outcome=outcome)
        folders.finish(run.dir, {"outcome": outcome, "seconds": run.seconds, "command": run.command})
    if raised is not None:
        raise raised from None


def _has_reported(rank: Rank) -> bool:
    return bool(rank.records or rank.stdout or rank.stderr)


def sought(error: Exception) -> str:
    """Where an expectation is sought: the cause's type and message, the report of a hang, the end of a stderr."""
    if isinstance(error, failures.CommandError):
        return error.run.ranks[0].stderr[-8192:]
    if isinstance(error, failures.RankError):
        return failures.read(error.run.dir, error.rank).what
    return f"{type(error).__name__}: {error}"


def _launch_report(run: Run, job: Job) -> str:
    log = (run.dir / "agent.log").read_text(errors="replace").strip()
    tail = "\n".join(log.splitlines()[-15:]) or "(it said nothing)"
    return f"{run.name} was not run to its end: its launcher ended with exit code {job.code}, saying:\n\n{tail}"


def _command_report(run: Run, cause: failures.Failure) -> str:
    how = cause.what if cause.code < 0 else f"ended with exit code {cause.code}"
    tail = "\n".join(run.ranks[0].stderr.strip().splitlines()[-15:])
    return f"{run.name} {how}" + (f". The end of its stderr:\n\n{tail}" if tail else ", and said nothing on stderr.")
