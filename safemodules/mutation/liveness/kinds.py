"""What calls do with the memory of their arguments, as tables and as torch itself declares it."""

import functools

import torch

from safemodules.mutation import internals

# Results that share the memory of the first argument; values are not read.
VIEWS = frozenset(
    """T H mT mH adjoint as_strided chunk conj data detach diagonal dsplit expand expand_as hsplit
    imag movedim moveaxis narrow permute real select split split_with_sizes
    squeeze swapaxes swapdims t tensor_split transpose unbind unflatten unfold unsafe_chunk
    unsafe_split unsqueeze view view_as view_as_complex view_as_real vsplit __getitem__""".split()
)
# Results that are the first argument itself, a view of it, or a copy.
PERHAPS_COPIES = frozenset(
    """alpha_dropout atleast_1d atleast_2d atleast_3d bfloat16 bool contiguous cpu cuda
    dequantize double dropout dropout1d dropout2d dropout3d einsum feature_alpha_dropout flatten
    float half int long nan_to_num numpy pad pixel_shuffle pixel_unshuffle ravel requires_grad_
    reshape reshape_as resolve_conj resolve_neg short to to_dense type type_as""".split()
)
# Nothing of a tensor is read but its shape, dtype or place; the result is no tensor.
SILENT = frozenset(
    """data_ptr device dim dtype element_size get_device grad_fn is_complex is_contiguous is_cuda
    is_floating_point is_leaf is_sparse itemsize layout name ndim ndimension nelement numel
    requires_grad shape size stride storage_offset""".split()
)
# New tensors that take only their form from an argument.
FACTORIES = frozenset(
    """arange empty empty_like eye full full_like linspace logspace new_empty new_full new_ones
    new_tensor new_zeros ones ones_like rand rand_like randint randint_like randn randn_like
    randperm scalar_tensor zeros zeros_like""".split()
)
# Results are new memory. Composite operators, for which torch declares nothing that can be
# relied on; each was looked up in the source of torch 2.14.
FRESH_COMPOSITES = frozenset(
    """adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d affine_grid avg_pool1d batch_norm bilinear binary_cross_entropy
    binary_cross_entropy_with_logits clone concat concatenate conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d cosine_similarity cross_entropy cumsum
    diff embedding_bag gelu grid_sample group_norm gumbel_softmax hardswish instance_norm
    interpolate kl_div l1_loss layer_norm linear local_response_norm log_softmax logsigmoid
    matmul max max_pool1d max_pool2d max_pool3d mean min mse_loss nll_loss norm normalize
    one_hot outer relu6 rms_norm scaled_dot_product_attention selu silu smooth_l1_loss softmax
    softmin softplus std stack tanhshrink tile upsample vander var where""".split()
)
# Operators of Python and methods of numbers; their results hold no tensor.
NUMBERS = frozenset({"item", "tolist", "count_nonzero_", "is_same_size", "equal", "allclose"})
CONTAINER_WRITERS = frozenset("append extend insert update setdefault appendleft".split())
CONTAINER_READERS = frozenset("pop popitem get values items keys copy popleft index".split())
BUILTINS_OF_VALUES = frozenset(
    """bool int float complex str repr format print len isinstance issubclass hasattr callable id
    hash type ord chr range slice""".split()
)
BUILTINS_OF_ENTRIES = frozenset(
    "list tuple set frozenset iter next reversed sorted enumerate zip dict map filter".split()
)
BUILTINS_OF_NUMBERS = frozenset("sum max min abs round any all divmod pow".split())


@functools.cache
def is_fresh(name: str) -> bool:
    """Whether a torch operator of that name always returns new memory.

    Torch declares for each overload of a primitive operator whether a result shares memory
    with an argument. A composite operator declares nothing binding (``dropout`` may return its
    input), so those that are known stand in a table.
    """
    if name in FRESH_COMPOSITES:
        return True
    if name in VIEWS or name in PERHAPS_COPIES or name.endswith("_"):
        return False
    return internals.returns_new_memory(name) or _is_operator(name)


def _is_operator(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and hasattr(torch.Tensor, name)


# Modules of torch whose result is new memory in every mode.
FRESH_MODULES = frozenset(
    """AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d
    AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d BatchNorm1d BatchNorm2d BatchNorm3d Bilinear
    Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d CrossEntropyLoss
    Embedding GELU GLU GRU GroupNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d L1Loss LSTM
    LayerNorm Linear LocalResponseNorm LogSigmoid LogSoftmax MSELoss MaxPool1d MaxPool2d MaxPool3d
    MultiheadAttention PReLU RMSNorm RNN Sigmoid Softmax Softmax2d Softplus Softsign SyncBatchNorm
    Tanh Upsample UpsamplingBilinear2d UpsamplingNearest2d""".split()
)
# Modules of torch whose result is their input, a view of it, or a copy.
ALIASING_MODULES = frozenset(
    """ConstantPad1d ConstantPad2d ConstantPad3d Flatten Identity PixelShuffle PixelUnshuffle
    ReflectionPad1d ReflectionPad2d ReplicationPad2d Unflatten ZeroPad1d ZeroPad2d
    ZeroPad3d""".split()
)
DROPOUTS = frozenset(
    "AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout".split()
)
DROPOUT_FUNCTIONS = frozenset(
    "alpha_dropout dropout dropout1d dropout2d dropout3d feature_alpha_dropout".split()
)
