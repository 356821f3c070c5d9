import pytest

from remat.choice import RECOMPUTE, kept
from remat.gpt import gpt_layer

SMALL = {"s": 8, "b": 2, "h": 16, "a": 4}


def test_the_three_words_keep_all_all_but_the_attention_core_and_the_input() -> None:
    layer = gpt_layer(**SMALL)
    everything = kept(layer, recompute="none")
    assert len(everything) == 13
    core = {"softmax", "attention_mask", "attention_dropout"}
    assert kept(layer, recompute="selective") == tuple(name for name in everything if name not in core)
    assert kept(layer, recompute="full") == ("x",)


def test_with_a_fused_kernel_selective_drops_its_statistics_only() -> None:
    layer = gpt_layer(**SMALL, flash=True)
    dropped = set(kept(layer, recompute="none")) - set(kept(layer, recompute="selective"))
    assert dropped == {"softmax_statistics"}


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("word", RECOMPUTE)
def test_what_is_dropped_can_be_made_again_from_what_is_kept(word: str, flash: bool) -> None:
    layer = gpt_layer(**SMALL, flash=flash, norm_statistic_bytes=4)
    there = set(kept(layer, recompute=word))
    assert there <= {tensor.name for tensor in layer.saved}
    assert "x" in there
    for op in layer.operations:  # a mask is drawn again from nothing but the generator's state
        if set(op.inputs) <= there:
            there |= set(op.outputs)
    assert {tensor.name for tensor in layer.saved} <= there


@pytest.mark.parametrize("word", ["", "Full", "all", None, 2, ["none"]])
def test_another_word_is_refused_with_the_three(word: object) -> None:
    with pytest.raises(ValueError, match="recompute must be one of 'none', 'selective', 'full', got "):
        kept(gpt_layer(**SMALL), recompute=word)  # type: ignore[arg-type]
