"""The outcomes that the book's text describes: a page says so if the installed PyTorch has others."""

from __future__ import annotations

from remat.pytorch.checkpointing.behaviors import Behavior

# Seen under PyTorch 2.11 and 2.13. Nothing is printed from here: what ran is compared with it.
DESCRIBED: dict[str, list[Behavior]] = {
    "recompute": [
        Behavior(
            "forward records the region's graph",
            "no; the result's node is CheckpointFunctionBackward",
            "yes; the result's node is CosBackward0",
        ),
        Behavior("operations: two products with a tanh between", "3 of 3 again", "2 of 3 again"),
        Behavior("… under `set_checkpoint_early_stop(False)`", "3 of 3 again", "3 of 3 again"),
        Behavior("… with `early_stop=False`", "3 of 3 again", "3 of 3 again"),
        Behavior("… in two backward passes over one graph", "3 + 3 of 3 again", "2 + 2 of 3 again"),
        Behavior(
            "operations: two outputs, the loss uses the first",
            "5 of 5 again; the first alone: 2 of 2 again",
            "4 of 5 again; the first alone: 1 of 2 again",
        ),
        Behavior(
            "a region checkpointed inside a region",
            "innermost starts 3 times, right gradients",
            "innermost starts 3 times, right gradients",
        ),
        Behavior("batches that a BatchNorm inside counts", "2 for one step", "2 for one step"),
    ],
    "derivatives": [
        Behavior("`loss.backward()`", "right gradients", "right gradients"),
        Behavior("`loss.backward(inputs=[x])`", "RuntimeError in backward", "right gradients"),
        Behavior("`torch.autograd.grad(loss, x)`", "RuntimeError in backward", "right gradients"),
        Behavior(
            "`backward(create_graph=True)`, then differentiate the gradient",
            "wrong gradients, no error",
            "right gradients",
        ),
    ],
    "arguments": [
        Behavior(
            "the input needs no gradient, a weight inside does",
            "no gradients, with a warning",
            "right gradients",
        ),
        Behavior("all tensors in a list", "no gradients, with a warning", "right gradients"),
        Behavior("a weight in a list, beside a tensor", "right gradients", "right gradients"),
        Behavior(
            "a computed tensor in a dict, used after the region too",
            "RuntimeError in backward",
            "right gradients",
        ),
        Behavior("the result in a dict", "no gradients", "right gradients"),
        Behavior("a number, a text and None returned too", "right gradients", "right gradients"),
        Behavior("a tensor passed by keyword", "ValueError in forward", "right gradients"),
        Behavior(
            "`context_fn`",
            "ValueError in forward; contexts entered: none",
            "right gradients; contexts entered: forward, recompute",
        ),
        Behavior("a detached tensor used inside", "right gradients", "right gradients"),
        Behavior(
            "a detached tensor returned beside another",
            "right gradients; the detached one claims to require gradient",
            "right gradients; the detached one requires no gradient",
        ),
        Behavior("only a detached tensor returned", "RuntimeError in backward", "right gradients"),
    ],
    "second run": [
        Behavior(
            'recompute gives another shape, `determinism_check="default"`',
            "wrong gradients, no error",
            "CheckpointError in backward",
        ),
        Behavior('… `determinism_check="none"`', "wrong gradients, no error", "wrong gradients, no error"),
        Behavior(
            "recompute gives other values of the same shape",
            "wrong gradients, no error",
            "wrong gradients, no error",
        ),
        Behavior(
            "an argument changed in place before backward",
            "RuntimeError in backward",
            "RuntimeError in backward",
        ),
        Behavior("… the argument stands in a list", "wrong gradients, no error", "wrong gradients, no error"),
        Behavior(
            "the region changes an argument in place", "wrong gradients, no error", "RuntimeError in backward"
        ),
    ],
}


def unlike_described(group: str, rows: list[Behavior]) -> list[str]:
    """Name the rows of a group that did not come out as the book's text describes them.

    Args:
        group: a group of ``behaviors``.
        rows: what ``behaviors`` returned for it.

    Returns:
        The names of rows with another outcome, and of those that only one side has.

    Raises:
        ValueError: there is no such group.

    >>> row = DESCRIBED["derivatives"][0]
    >>> unlike_described("derivatives", DESCRIBED["derivatives"][1:]) == [row.behavior]
    True
    """
    if group not in DESCRIBED:
        raise ValueError(f"group must be one of {', '.join(map(repr, DESCRIBED))}, got {group!r}")
    differ = set(rows) ^ set(DESCRIBED[group])
    return list(dict.fromkeys(row.behavior for row in [*rows, *DESCRIBED[group]] if row in differ))
