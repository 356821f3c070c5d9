"""Two small nets of the first paper's kind, described as graphs: convolutions with batch norm, and an MLP.

Both are whole nets, first tensor to last; the loss is not part of them. Weights are left out, as everywhere
in ``remat.layer``, and so are batch norm's statistics (two numbers a channel against a whole feature map).
"""

from __future__ import annotations

from remat import _check
from remat.layer import Layer, Operation, Tensor

ACTIVATIONS = ("sigmoid", "tanh")


def conv_net(
    *,
    blocks: int,
    channels: int,
    height: int,
    width: int,
    batch: int,
    input_channels: int = 3,
    pool_every: int = 0,
    kernel: int = 3,
    element_bytes: int = 4,
) -> Layer:
    """Describe blocks of convolution, batch norm and ReLU, with a 2x2 max pooling now and then.

    Convolutions keep height and width (stride 1, padded) and have no bias. What a backward needs: the
    convolution and the batch norm their inputs; ReLU its output, as in PyTorch (the sign of the output
    tells that of the input), which is why the batch norm's output need not be kept; the pooling its input
    and its output, as in cuDNN, which finds the maximum again by comparing.

    Args:
        blocks: how many blocks.
        channels: of every feature map but the first.
        height: rows of the input image.
        width: columns of the input image.
        batch: images.
        input_channels: of the input image.
        pool_every: a pooling follows every so many blocks; 0 for none.
        kernel: side of the convolution kernel.
        element_bytes: bytes of one element; 4, single precision, as in the paper.

    Returns:
        The net; its unit is the bytes of one full-size feature map.

    Raises:
        ValueError: if a size is not a positive whole number, or a pooling meets an odd height or width.

    Source: Chen et al. 2016, section 4.2 (Conv-BatchNorm-Activation) and 5.2.

    >>> net = conv_net(blocks=10, channels=64, height=32, width=32, batch=8)
    >>> len(net.tensors), len(net.saved)
    (31, 21)
    """
    sizes = {"blocks": blocks, "channels": channels, "height": height, "width": width, "batch": batch}
    sizes |= {"input_channels": input_channels, "kernel": kernel, "element_bytes": element_bytes}
    for name, size in sizes.items():
        _check.count(name, size)
    _check.count("pool_every", pool_every, least=0)

    image = batch * height * width * input_channels * element_bytes
    tensors = [Tensor("x", image, "input")]
    operations: list[Operation] = []
    parameters, last, depth = 0, "x", input_channels

    def add(name: str, kind: str, elements: int, why: str, needs: str, moved: float, **flops: float) -> None:
        """Add an operation that reads the last tensor; needs is "input", "output" or both."""
        nonlocal last
        tensors.append(Tensor(name, elements * element_bytes, f"block {block}"))
        needed = tuple(one for word, one in (("input", last), ("output", name)) if word in needs)
        operations.append(
            Operation(name, kind, (last,), (name,), needed, moved=moved * element_bytes, why=why, **flops)
        )
        last = name

    for block in range(1, blocks + 1):
        pixels = batch * height * width
        weights, full = kernel * kernel * depth * channels, pixels * channels
        add(
            f"conv{block}", "convolution", full, "convolution: the gradient of W contains the input", "input",
            moved=pixels * depth + full + weights, flops=2 * pixels * weights,
        )  # fmt: skip
        add(
            f"bn{block}", "batch_norm", full, "batch norm: the gradient contains the normalized input",
            "input", moved=3 * full, element_flops=7 * full,  # one pass for the statistics, one to apply them
        )  # fmt: skip
        add(
            f"relu{block}", "relu", full, "ReLU: the gradient passes where the output is above 0", "output",
            moved=2 * full, element_flops=full,
        )  # fmt: skip
        parameters, depth = parameters + weights + 2 * channels, channels
        if pool_every and block % pool_every == 0:
            for name, side in (("height", height), ("width", width)):
                if side % 2:
                    raise ValueError(
                        f"{name} must be even at every pooling, got {side} after block {block}: "
                        f"start from another {name} or pool less often than every {pool_every}"
                    )
            height, width = height // 2, width // 2
            add(
                f"pool{block}", "max_pool", full // 4, "max pooling: the gradient goes to the largest input",
                "input and output", moved=full + full // 4, element_flops=3 * full // 4,
            )  # fmt: skip

    return Layer(
        name="convolutional net",
        tensors=tuple(tensors),
        operations=tuple(operations),
        input="x",
        output=last,
        unit=tensors[1].bytes,
        parameters=parameters,
        shape=sizes | {"pool_every": pool_every},
    )


def mlp_net(
    *, layers: int, width: int, batch: int, activation: str = "sigmoid", element_bytes: int = 4
) -> Layer:
    """Describe layers of a linear map and an activation whose backward needs its output alone.

    The output of a linear map is then needed by no backward: the activation may overwrite it, which makes
    this the smallest net that shows an in-place operation.

    Args:
        layers: how many pairs.
        width: features of every tensor.
        batch: rows.
        activation: "sigmoid" or "tanh".
        element_bytes: bytes of one element.

    Returns:
        The net; its unit is the bytes of one tensor, and all are equal.

    Raises:
        ValueError: if a size is not a positive whole number or the activation is another word.

    Source: Chen et al. 2016, section 3 (its example is such a net).

    >>> net = mlp_net(layers=2, width=1024, batch=64)
    >>> [tensor.name for tensor in net.tensors], [tensor.name for tensor in net.saved]
    (['x', 'linear1', 'sigmoid1', 'linear2', 'sigmoid2'], ['x', 'sigmoid1', 'sigmoid2'])
    """
    sizes = {"layers": layers, "width": width, "batch": batch, "element_bytes": element_bytes}
    for name, size in sizes.items():
        _check.count(name, size)
    _check.one_of("activation", activation, ACTIVATIONS)
    elements, last = batch * width, "x"
    tensors, operations = [Tensor("x", elements * element_bytes, "input")], []
    for i in range(1, layers + 1):
        linear, active = f"linear{i}", f"{activation}{i}"
        tensors += [Tensor(name, elements * element_bytes, f"layer {i}") for name in (linear, active)]
        operations += [
            Operation(
                linear, "matmul", (last,), (linear,), (last,),
                flops=2 * elements * width, moved=(2 * elements + width * width) * element_bytes,
                why="Y = XW: the gradient of W is Xᵀ times the gradient of Y",
            ),
            Operation(
                active, activation, (linear,), (active,), (active,),
                element_flops=4 * elements, moved=2 * elements * element_bytes,
                why=f"{activation}: the slope is written with the output itself",
            ),
        ]  # fmt: skip
        last = active
    return Layer(
        name="multilayer perceptron",
        tensors=tuple(tensors),
        operations=tuple(operations),
        input="x",
        output=last,
        unit=tensors[0].bytes,
        parameters=layers * width * (width + 1),
        shape=sizes | {"activation": activation},
    )
