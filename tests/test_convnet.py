import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from remat.convnet import conv_net, mlp_net
from remat.layer import Layer
from remat.pytorch import saved_tensors

BLOCKS, CHANNELS, HEIGHT, WIDTH, BATCH = 4, 6, 8, 12, 2


def described(pool_every: int = 0) -> Layer:
    return conv_net(
        blocks=BLOCKS, channels=CHANNELS, height=HEIGHT, width=WIDTH, batch=BATCH, pool_every=pool_every
    )


def in_pytorch(pool_every: int = 0) -> nn.Sequential:
    parts: list[nn.Module] = []
    for block in range(1, BLOCKS + 1):
        parts.append(nn.Conv2d(CHANNELS if block > 1 else 3, CHANNELS, 3, padding=1, bias=False))
        parts += [nn.BatchNorm2d(CHANNELS), nn.ReLU()]
        if pool_every and block % pool_every == 0:
            parts.append(nn.MaxPool2d(2))
    return nn.Sequential(*parts)


def image() -> torch.Tensor:
    return torch.randn(BATCH, 3, HEIGHT, WIDTH)


def test_saved_bytes_are_pytorchs_but_for_the_statistics() -> None:
    net = in_pytorch()
    x = image()
    with saved_tensors(net) as record:
        y = net(x)
    large = [item for item in record.storages if item.shape != (CHANNELS,) and item.shape != (0,)]
    assert sum(item.bytes for item in large) == described().saved_bytes
    assert y.shape == (BATCH, CHANNELS, HEIGHT, WIDTH)
    statistics = record.bytes - described().saved_bytes
    assert 0 < statistics <= BLOCKS * 4 * CHANNELS * 4  # mean and deviation, and no more than a few of them


@pytest.mark.parametrize("pool_every", [0, 2, 3])
def test_sizes_flops_and_parameters_are_pytorchs(pool_every: int) -> None:
    layer, net = described(pool_every), in_pytorch(pool_every)
    sizes = []
    x = image()
    with FlopCounterMode(display=False) as counter:
        for module in net:
            x = module(x)
            sizes.append(x.nbytes)
    assert [tensor.bytes for tensor in layer.tensors[1:]] == sizes
    assert layer.flops == counter.get_total_flops()
    assert layer.parameters == sum(p.numel() for p in net.parameters())


def test_the_mlp_is_pytorchs() -> None:
    layer = mlp_net(layers=3, width=5, batch=7)
    net = nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(5, 5), nn.Sigmoid())))
    x = torch.randn(7, 5)
    with saved_tensors(net) as record, FlopCounterMode(display=False) as counter:
        net(x)
    assert record.bytes == layer.saved_bytes
    assert layer.flops == counter.get_total_flops()
    assert layer.parameters == sum(p.numel() for p in net.parameters())


def test_a_block_in_numbers() -> None:
    """ResNet's scale: 32 images of 224 x 224, 64 channels, single precision."""
    layer = conv_net(blocks=2, channels=64, height=224, width=224, batch=32)
    feature_map = 32 * 224 * 224 * 64 * 4
    assert [tensor.bytes for tensor in layer.tensors] == [32 * 224 * 224 * 3 * 4] + [feature_map] * 6
    assert [tensor.name for tensor in layer.saved] == ["x", "conv1", "relu1", "conv2", "relu2"]
    assert layer.unit == feature_map
    second = layer.operations[3]
    assert second.moved == 2 * feature_map + 9 * 64 * 64 * 4
    assert [op.moved / feature_map for op in layer.operations[4:]] == [3, 2]


def test_half_precision_halves_everything_that_moves() -> None:
    single, half = (
        conv_net(blocks=2, channels=4, height=4, width=4, batch=2, element_bytes=size, pool_every=1)
        for size in (4, 2)
    )
    assert [tensor.bytes for tensor in single.tensors] == [2 * tensor.bytes for tensor in half.tensors]
    assert [op.moved for op in single.operations] == [2 * op.moved for op in half.operations]


def test_pooling_reads_its_input_and_its_output_in_backward() -> None:
    layer = described(pool_every=2)
    assert layer.output == "pool4"
    assert layer.operations[6].backward_needs == ("relu2", "pool2")
    assert layer["pool2"].bytes * 4 == layer["relu2"].bytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks": 0}, "blocks must be a whole number at least 1, got 0"),
        ({"channels": -3}, "channels must be a whole number at least 1, got -3"),
        ({"kernel": 1.5}, "kernel must be a whole number at least 1, got 1.5"),
        ({"pool_every": -1}, "pool_every must be a whole number at least 0, got -1"),
        ({"pool_every": 1}, "height must be even at every pooling, got 1 after block 2"),
    ],
)
def test_bad_sizes_are_refused(change: dict[str, int], message: str) -> None:
    good = {"blocks": 4, "channels": 6, "height": 2, "width": 4, "batch": 2}
    with pytest.raises(ValueError, match=message):
        conv_net(**(good | change))


def test_bad_mlps_are_refused() -> None:
    with pytest.raises(ValueError, match="activation must be one of 'sigmoid', 'tanh', got 'relu'"):
        mlp_net(layers=1, width=1, batch=1, activation="relu")
    with pytest.raises(ValueError, match="width must be a whole number at least 1, got 0"):
        mlp_net(layers=1, width=0, batch=1)
