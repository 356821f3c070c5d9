"""The GPT layer of Megatron, described: every tensor and operation, on one GPU of a parallel group.

Shape letters as in the papers: s sequence length, b micro-batch, h hidden size, a heads, t tensor-parallel
size, L layers. Activations take 2 bytes an element, dropout masks 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat import _check
from remat.layer import Layer, Operation, Tensor

ATTENTION_CORE = "attention core"


@dataclass(frozen=True)
class Shape:
    """The shape of a published model.

    Attributes:
        name: the key in ``SHAPES``.
        h: hidden size.
        a: attention heads.
        L: layers.
        s: the sequence length it was trained at.
        source: where the figures come from.
    """

    name: str
    h: int
    a: int
    L: int
    s: int
    source: str


_KORTHIKANTI = "Korthikanti et al. 2023, table 3"
SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("22B", 6144, 64, 48, 2048, _KORTHIKANTI),
        Shape("GPT-3 175B", 12288, 96, 96, 2048, _KORTHIKANTI),
        Shape("MT-NLG 530B", 20480, 128, 105, 2048, _KORTHIKANTI),
        Shape("1T", 25600, 160, 128, 2048, _KORTHIKANTI),
    )
}


def shape(name: str) -> Shape:
    """Look a published model's shape up by name.

    Raises:
        ValueError: if the name is unknown; the message lists the known ones.

    >>> shape("GPT-3 175B").h
    12288
    """
    return _check.known("shape", name, SHAPES)


def gpt_layer(
    *,
    s: int,
    b: int,
    h: int,
    a: int,
    t: int = 1,
    sequence_parallel: bool = False,
    flash: bool = False,
    fused_dropout: bool = False,
    causal_pass: bool = False,
    norm_statistic_bytes: int = 0,
) -> Layer:
    """Describe one GPT layer: 4h feed-forward, GeLU, three dropouts, causal attention.

    Tensor parallelism splits the attention heads and the feed-forward over t GPUs and repeats the rest on
    each; sequence parallelism splits the rest too, along s. Sizes, FLOPs and bytes moved are one GPU's.
    The sum of what is saved comes out as sbh(34 + 5as/h) on one GPU, sbh(10 + 24/t + 5as/(ht)) under tensor
    and sbh(34 + 5as/h)/t under sequence parallelism.

    Args:
        s: sequence length, tokens.
        b: micro-batch, sequences.
        h: hidden size.
        a: attention heads; must divide h.
        t: tensor-parallel size; must divide a (and s under sequence parallelism).
        sequence_parallel: whether the parts that tensor parallelism repeats are split along s.
        flash: whether attention is one fused kernel, which writes no a·s² tensor and keeps one float32
            statistic per row of each head instead.
        fused_dropout: whether attention dropout draws its mask in the same pass; two operations otherwise.
        causal_pass: whether the causal mask is a pass of its own over the scores; it costs nothing otherwise.
        norm_statistic_bytes: bytes per mean and per reciprocal deviation of LayerNorm; 0 leaves them out,
            as the paper does; PyTorch keeps both in float32 (4).

    Returns:
        The layer; its unit is s·b·h bytes.

    Raises:
        ValueError: if a size is not a positive whole number, or does not divide as said above; if a
            variation of the attention core is asked for with flash, which has none.

    Source: Korthikanti et al. 2023, sections 4.1 to 4.2.2; FlashAttention: Dao et al. 2022, section 3.

    >>> layer = gpt_layer(s=2048, b=1, h=12288, a=96)
    >>> layer.saved_bytes / layer.unit                      # 34 + 5as/h, with 5as/h = 80
    114.0
    >>> layer = gpt_layer(s=2048, b=1, h=12288, a=96, t=8)
    >>> layer.saved_bytes / layer.unit                      # 10 + 24/t + 5as/(ht)
    23.0
    >>> layer = gpt_layer(s=2048, b=1, h=12288, a=96, t=8, sequence_parallel=True)
    >>> layer.saved_bytes / layer.unit                      # (34 + 5as/h)/t
    14.25
    """
    s, b, h, a, t = (_check.count(*pair) for pair in (("s", s), ("b", b), ("h", h), ("a", a), ("t", t)))
    statistic = _check.count("norm_statistic_bytes", norm_statistic_bytes, least=0)
    _check.divides("a", a, "h", h)
    _check.divides("t", t, "a", a)
    if sequence_parallel:
        _check.divides("t", t, "s", s)
    for name, wanted in (("fused_dropout", fused_dropout), ("causal_pass", causal_pass)):
        if flash and wanted:
            raise ValueError(
                f"{name} must be False with flash=True, whose one kernel does it all; got {wanted!r}"
            )

    rest = t if sequence_parallel else 1  # how many GPUs share what tensor parallelism alone repeats
    sb, sbh, matrix = s * b, s * b * h, a * s * s * b
    gathered = 2 * sbh  # a split matrix product reads its whole input, gathered from the group or repeated

    tensors: list[Tensor] = []
    operations: list[Operation] = []

    def tensor(name: str, bytes: int, part: str) -> str:
        tensors.append(Tensor(name, bytes, part))
        return name

    def operation(
        name: str, kind: str, inputs: str, outputs: str, needs: str, why: str = "", **cost: float
    ) -> None:
        """Add an operation; names in one string, separated by blanks."""
        operations.append(
            Operation(
                name,
                kind,
                tuple(inputs.split()),
                tuple(outputs.split()),
                tuple(needs.split()),
                why=why,
                **cost,
            )
        )

    def layer_norm(source: str, target: str, part: str) -> None:
        tensor(target, 2 * sbh // rest, part)
        statistics = ""
        if statistic:
            statistics = tensor(f"{target}_statistics", 2 * statistic * sb // rest, "layer norms")
        operation(
            f"layer_norm_{target[-1]}", "layer_norm", source,
            f"{target} {statistics}", f"{source} {statistics}",
            "LayerNorm: the gradient contains the normalized input",
            element_flops=7 * sbh / rest, moved=4 * sbh / rest,
        )  # fmt: skip

    def product(name: str, source: str, target: str, *, k: int, n: int, moved: float) -> None:
        operation(
            name, "matmul", source, target, source, "Y = XW: the gradient of W is Xᵀ times the gradient of Y",
            flops=2 * sb * k * n / t, moved=moved + 2 * k * n / t,
        )  # fmt: skip

    def hidden_dropout(number: int, stream: str, branch: str, target: str, part: str) -> None:
        mask = tensor(f"mask{number}", sbh // rest, part)
        operation(f"draw_mask{number}", "mask", "", mask, "", element_flops=sbh / rest, moved=sbh / rest)
        tensor(target, 2 * sbh // rest, "layer norms")
        operation(
            f"add_residual{number}", "residual", f"{stream} {branch} {mask}", target, mask,
            "dropout: the gradient passes where the mask let the value pass",
            element_flops=3 * sbh / rest, moved=7 * sbh / rest,
        )  # fmt: skip

    tensor("x", 2 * sbh // rest, "layer norms")
    layer_norm("x", "ln1", "attention")
    tensor("qkv", 6 * sbh // t, "attention")
    product("project_qkv", "ln1", "qkv", k=h, n=3 * h, moved=gathered + 6 * sbh / t)

    if flash:
        tensor("softmax_statistics", 4 * a * s * b // t, ATTENTION_CORE)
        tensor("context", 2 * sbh // t, "attention")
        operation(
            "flash_attention", "attention", "qkv",
            "softmax_statistics context", "qkv softmax_statistics context",
            "fused attention: rebuilds each block of the matrix from q, k and the row's statistic",
            flops=4 * b * s * s * h / t, element_flops=8 * matrix / t, moved=(8 * sbh + 4 * a * s * b) / t,
        )  # fmt: skip
    else:
        tensor("scores", 2 * matrix // t, ATTENTION_CORE)
        operation(
            "query_key", "matmul", "qkv", "scores", "qkv", "QKᵀ: the gradients of Q and K contain K and Q",
            flops=2 * b * s * s * h / t, moved=(4 * sbh + 2 * matrix) / t,
        )  # fmt: skip
        scores = "scores"
        if causal_pass:
            scores = tensor("masked_scores", 2 * matrix // t, ATTENTION_CORE)
            operation(
                "causal_mask", "causal", "scores", scores, "",
                element_flops=matrix / t, moved=4 * matrix / t,
            )  # fmt: skip
        tensor("softmax", 2 * matrix // t, ATTENTION_CORE)
        operation(
            "softmax", "softmax", scores, "softmax", "softmax",
            "softmax: the gradient is written with the output itself",
            element_flops=5 * matrix / t, moved=4 * matrix / t,
        )  # fmt: skip
        mask = tensor("attention_mask", matrix // t, ATTENTION_CORE)
        if not fused_dropout:
            operation("draw_attention_mask", "mask", "", mask, "", element_flops=matrix / t, moved=matrix / t)
        dropped = tensor("attention_dropout", 2 * matrix // t, ATTENTION_CORE)
        operation(
            "attention_dropout", "dropout",
            "softmax" if fused_dropout else f"softmax {mask}",
            f"{mask} {dropped}" if fused_dropout else dropped, mask,
            "dropout: the gradient passes where the mask let the value pass",
            element_flops=(3 if fused_dropout else 2) * matrix / t, moved=5 * matrix / t,
        )  # fmt: skip
        tensor("context", 2 * sbh // t, "attention")
        operation(
            "times_value", "matmul", "attention_dropout qkv", "context", "attention_dropout qkv",
            "PV: the gradients of P and V contain V and P",
            flops=2 * b * s * s * h / t, moved=(4 * sbh + 2 * matrix) / t,
        )  # fmt: skip

    tensor("projection", 2 * sbh // rest, "attention")
    product("project_out", "context", "projection", k=h, n=h, moved=2 * sbh / t + gathered)
    hidden_dropout(1, "x", "projection", "residual", "attention")
    layer_norm("residual", "ln2", "feed-forward")
    tensor("gelu_in", 8 * sbh // t, "feed-forward")
    product("feed_forward_1", "ln2", "gelu_in", k=h, n=4 * h, moved=gathered + 8 * sbh / t)
    tensor("gelu_out", 8 * sbh // t, "feed-forward")
    operation(
        "gelu", "gelu", "gelu_in", "gelu_out", "gelu_in", "GeLU: its slope depends on its input",
        element_flops=32 * sbh / t, moved=16 * sbh / t,
    )  # fmt: skip
    tensor("feed_forward", 2 * sbh // rest, "feed-forward")
    product("feed_forward_2", "gelu_out", "feed_forward", k=4 * h, n=h, moved=8 * sbh / t + gathered)
    hidden_dropout(2, "residual", "feed_forward", "out", "feed-forward")

    return Layer(
        name="GPT layer",
        tensors=tuple(tensors),
        operations=tuple(operations),
        input="x",
        output="out",
        unit=sbh,
        parameters=12 * h * h + 13 * h,
        shape={
            "s": s,
            "b": b,
            "h": h,
            "a": a,
            "t": t,
            "sequence_parallel": sequence_parallel,
            "flash": flash,
            "fused_dropout": fused_dropout,
            "causal_pass": causal_pass,
        },
    )
