"""What is known about modules of torch, as data."""

from typing import Final

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

__all__ = ["COMPILABLE_CLASSES", "IGNORED_ATTRIBUTES", "SAVES_TOO_EARLY", "always_copied"]

# Attributes of every module that its forward does not read.
IGNORED_ATTRIBUTES: Final = frozenset(
    {
        "_non_persistent_buffers_set",
        "_backward_pre_hooks",
        "_backward_hooks",
        "_is_full_backward_hook",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
    }
)

# Randomized ReLU saves its noise before it fills it, so a recomputation that stops as soon as
# everything is saved would find it unfilled.
SAVES_TOO_EARLY: Final = frozenset({"rrelu", "rrelu_", "rrelu_with_noise", "RReLU"})

# Modules whose forward reads nothing that it writes, if they are not in place. Those that
# `torch.compile` takes apart into other code (recurrent ones) and lazy ones are left out.
COMPILABLE_CLASSES: Final = frozenset(
    getattr(nn, name)
    for name in """
    Identity Flatten Unflatten Sequential ModuleList ModuleDict
    Linear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d
    Embedding EmbeddingBag MultiheadAttention
    Transformer TransformerEncoder TransformerEncoderLayer TransformerDecoder
    TransformerDecoderLayer
    BatchNorm1d BatchNorm2d BatchNorm3d InstanceNorm1d InstanceNorm2d InstanceNorm3d
    LayerNorm GroupNorm RMSNorm LocalResponseNorm CrossMapLRN2d
    Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout
    CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax
    Mish PReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax Softmax2d Softmin Softplus Softshrink Softsign
    Tanh Tanhshrink Threshold
    AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d
    AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d LPPool1d LPPool2d LPPool3d
    MaxPool1d MaxPool2d MaxPool3d
    CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d
    ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d
    ReplicationPad3d ZeroPad1d ZeroPad2d ZeroPad3d
    ChannelShuffle PixelShuffle PixelUnshuffle Fold Unfold
    Upsample UpsamplingBilinear2d UpsamplingNearest2d CosineSimilarity PairwiseDistance
    """.split()
)

_STATISTICS: Final = ("running_mean", "running_var", "num_batches_tracked")


def always_copied(module: nn.Module) -> tuple[str, ...]:
    """Names of tensors that a module's forward writes, whatever their size.

    The statistics of batch and instance norm are written without their versions saying so;
    an embedding with a ``max_norm`` renormalises rows of its weight.

    Example:
        >>> always_copied(nn.BatchNorm1d(2)), always_copied(nn.BatchNorm1d(2).eval())
        (('running_mean', 'running_var', 'num_batches_tracked'), ())
    """
    if isinstance(module, _NormBase):
        return _STATISTICS if module.training and module.track_running_stats else ()
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        return ("weight",)
    return ()
