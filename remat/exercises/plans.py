"""Plans that a reader writes: lists of actions, or lengths of segments, read and replayed."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from remat.chain import Action, Backward, Chain, Drop, Fetch, Forward, Offload, chain_of
from remat.exercises.verdict import wanted, whole, wrong
from remat.hardware import Link
from remat.replay import Replay, ReplayError, replay
from remat.schedules import Schedule, segmented

ACTIONS = (Forward, Backward, Drop, Offload, Fetch)


def replayed(chain: Chain, plan: object, *, link: Link | None = None) -> Replay:
    """Replay the reader's plan.

    Raises:
        Stop: if it is no plan, or replay refuses it; the verdict says why.
    """
    if not isinstance(plan, Iterable):
        wrong(f"a list of actions is asked for, and this is {plan!r}.", "not a plan")
    actions: list[Action] = list(plan)
    wanted(actions[0] if actions else None, "actions")
    for action in actions:
        wanted(action, "actions")
        if not isinstance(action, ACTIONS):
            wrong(f"{action!r} is no action, as Forward(1) is one.", "not an action")
    try:
        return replay(chain, actions, link=link)
    except ReplayError as refusal:
        wrong(f"replay refuses it for {len(chain)} stages: {refusal}", _refused(str(refusal)))


def _refused(message: str) -> str:
    """Name the mistake behind a refusal."""
    if "there already" in message and "Forward" in message:
        return "replayed what was still there"
    if "fetch it first" in message:
        return "did not fetch in time"
    if "reads" in message:
        return "used what was not there"
    if "still holds" in message:
        return "dropped what a tape holds"
    if "ends before" in message or "plan ends" in message:
        return "stopped early"
    return "a plan that cannot run"


def lengths_of(answer: object, chain: Chain) -> Schedule:
    """Read the reader's lengths of segments as a plan.

    Raises:
        Stop: if they are no lengths, or do not add up to the chain.
    """
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        wrong(f"lengths of segments are asked for, and this is {answer!r}.", "not lengths")
    lengths = list(answer)
    for length in lengths:
        wanted(length, "lengths of segments")
        if not whole(length, 1, len(chain)):
            wrong(f"a length is a whole number from 1, and this is {length!r}.", "not lengths")
    if sum(lengths) != len(chain):
        wrong(
            f"{lengths} has {sum(lengths)} stages, the chain {len(chain)}.",
            "gave the cuts, not the lengths"
            if len(lengths) > 1 and lengths == sorted(set(lengths))
            else "lengths do not add up",
        )
    return segmented(chain, lengths)


def uneven(draw: Random, n: int) -> Chain:
    """Draw a chain of n stages of whole sizes and costs."""
    return chain_of([draw.randrange(1, 9) for _ in range(n)], costs=[draw.randrange(1, 9) for _ in range(n)])
