"""Which modules, functions and methods return a tensor that nothing else refers to.

Only what is sure in every mode and for every argument stands here. Dropout in eval mode,
``Identity``, ``Flatten`` or ``contiguous`` may return their input, and do not.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

FRESH_MODULES: frozenset[type] = frozenset(
    getattr(nn, name)
    for name in """
    AvgPool1d AvgPool2d AvgPool3d AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d
    BatchNorm1d BatchNorm2d BatchNorm3d Bilinear Conv1d Conv2d Conv3d ConvTranspose1d
    ConvTranspose2d ConvTranspose3d Embedding GELU GLU GroupNorm InstanceNorm1d InstanceNorm2d
    InstanceNorm3d LayerNorm Linear LocalResponseNorm LogSigmoid LogSoftmax PReLU Sigmoid
    Softmax Softmax2d Softplus Softsign SyncBatchNorm Tanh
    """.split()
)

# Modules whose result is their input, or a fresh tensor: fresh if the input was.
TRANSPARENT_MODULES: frozenset[type] = frozenset(
    {nn.AlphaDropout, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d}
    | {nn.FeatureAlphaDropout, nn.Identity}
)

FACTORIES = frozenset(
    """arange empty empty_like eye full full_like linspace new_empty new_full new_ones new_zeros
    ones ones_like rand rand_like randint randn randn_like randperm zeros zeros_like""".split()
)

FRESH_METHODS = FACTORIES | frozenset(
    """abs acos add addmm amax amin asin atan bmm ceil clamp clone cos cosh cumprod cumsum div
    erf exp expm1 floor log log10 log1p log2 log_softmax masked_fill matmul mean mm mul neg
    pow prod reciprocal relu round rsqrt sigmoid sign sin sinh softmax sqrt square std sub sum
    tan tanh var""".split()
)

_FRESH_TORCH = FRESH_METHODS | {"cat", "concat", "maximum", "minimum", "stack", "where"}
FRESH_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    {getattr(torch, name) for name in _FRESH_TORCH if hasattr(torch, name)}
    | {
        getattr(F, name)
        for name in """
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool1d avg_pool2d
        avg_pool3d batch_norm conv1d conv2d conv3d conv_transpose1d conv_transpose2d
        conv_transpose3d elu embedding gelu group_norm hardswish hardtanh layer_norm leaky_relu
        linear log_softmax mish one_hot relu relu6 selu sigmoid silu softmax softplus tanh
        """.split()
    }
)

# Calls that look at a value, or copy it, and keep no reference to it.
READING_CALLS = frozenset({"bool", "float", "int", "isinstance", "len", "print", "repr", "str"})
READING_ATTRIBUTES = frozenset(
    """device dtype dim element_size grad_fn is_contiguous is_cuda item itemsize layout ndim
    numel requires_grad shape size stride tolist""".split()
)
