"""What the property tests draw: chains and plans."""

from typing import Any

from hypothesis import strategies as st

from naive import is_allowed, next_backward, things, way_on
from remat.chain import Action, Backward, Chain, Drop, Forward, Needs, Output, Stage, Tape

MODELS: tuple[Needs, ...] = ("values", "tape")
whole = st.integers(0, 9)
real = st.floats(0, 10, allow_subnormal=False)


@st.composite
def chains(
    draw: st.DrawFn,
    *,
    most: int = 8,
    number: st.SearchStrategy[Any] = whole,
    needs: Needs | None = None,
) -> Chain:
    """A chain of 1 to ``most`` stages; sizes, scratch, costs all drawn from ``number``."""
    stages = draw(
        st.lists(
            st.builds(
                Stage,
                out=number,
                saved=number,
                scratch_forward=number,
                scratch_backward=number,
                scratch_taping=st.none() | number,
                forward_s=number,
                backward_s=st.none() | number,
            ),
            min_size=1,
            max_size=most,
        )
    )
    return Chain(
        tuple(stages),
        input=draw(number),
        needs=needs or draw(st.sampled_from(MODELS)),
        scratch_loss=draw(st.just(0) | number),
    )


@st.composite
def lengths(draw: st.DrawFn, n: int) -> list[int]:
    """Lengths of segments that add up to n."""
    cut_after = draw(st.lists(st.booleans(), min_size=n - 1, max_size=n - 1))
    ends = [i + 1 for i, cut in enumerate(cut_after) if cut] + [n]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def moves(chain: Chain, past: list[Action]) -> list[Action]:
    """All that a plan may do next."""
    n = len(chain)
    every: list[Action] = [
        Forward(i, keep) for i in range(1, n + 1) for keep in ("nothing", "output", "tape")
    ]
    every += [Backward(next_backward(chain, past))]
    every += [Drop(thing) for thing in things(chain)]
    return [action for action in every if is_allowed(chain, past, action)]


@st.composite
def plans(draw: st.DrawFn, chain: Chain, *, wander: int = 12) -> list[Action]:
    """A valid plan, most of them of no regular form: a walk over legal moves that is led home."""
    past: list[Action] = []
    while next_backward(chain, past):
        if wander and draw(st.booleans()):
            wander -= 1
            past.append(draw(st.sampled_from(moves(chain, past))))
        else:
            past.append(way_on(chain, past))
    return past


def actions(n: int) -> st.SearchStrategy[Action]:
    """Any action on a chain of n stages, and on stages just outside it."""
    stage = st.integers(-1, n + 2)
    thing = st.builds(Output, stage) | st.builds(Tape, stage)
    keep = st.sampled_from(["nothing", "output", "tape"])
    return st.builds(Forward, stage, keep) | st.builds(Backward, stage) | st.builds(Drop, thing)


@st.composite
def spoiled(draw: st.DrawFn, plan: list[Action], n: int) -> list[Action]:
    """A plan with one to three things done to it, which may or may not leave it valid."""
    plan = list(plan)
    for _ in range(draw(st.integers(1, 3))):
        if not plan:
            break
        at = draw(st.integers(0, len(plan) - 1))
        match draw(st.sampled_from(["delete", "swap", "insert", "double", "keep", "drop made", "cut"])):
            case "delete":
                del plan[at]
            case "swap":
                other = draw(st.integers(0, len(plan) - 1))
                plan[at], plan[other] = plan[other], plan[at]
            case "insert":
                plan.insert(at, draw(actions(n)))
            case "double":
                plan.insert(at, plan[at])
            case "keep":
                action = plan[at]
                if isinstance(action, Forward):
                    plan[at] = Forward(action.stage, draw(st.sampled_from(["nothing", "output", "tape"])))
            case "drop made":
                action = plan[at]
                if isinstance(action, Forward):
                    plan.insert(at + draw(st.integers(1, 3)), Drop(Output(action.stage)))
            case "cut":
                del plan[at:]
    return plan
