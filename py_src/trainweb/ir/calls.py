"""The calls of kernels. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead.

One class per kernel, in the order of their opcodes. A field is an argument of the kernel; an absent optional buffer is
None. `Builder.emit` allocates scratch buffers. `KernelCall` derives the rest from the fields.
"""

from __future__ import annotations

from math import prod

from trainweb.ir.extents import ceil4, reach_up
from trainweb.ir.instructions import In, InOut, Ints, KernelCall, OptionalIn, OptionalInOut, OptionalOut, OptionalSum, Out, Scratch, Sum, scratch


def chunks(n: int) -> int:
    return (n + 16384 - 1) // 16384


def ctc_states(labels: int) -> int:
    """The labels with blanks before, between and behind them."""
    return 2 * labels + 1


def key_blocks(n: int) -> int:
    return (n + 64 - 1) // 64


def mask_spans(batch: Ints, m: int, n: int, mask_strides: Ints) -> int:
    """Spans of each block of keys that each mask leaves, for each tile of rows."""
    return (1 + 16 * key_blocks(n)) * ((m + 64 - 1) // 64) * max(1, batch[0] * (mask_strides[0] > 0)) * max(1, batch[1] * (mask_strides[1] > 0))


def cell_gates(cell: int) -> int:
    return 1 + 3 * (cell == 2) + 2 * (cell >= 3)


def cell_kept(cell: int) -> int:
    """Floats for each state that the backward pass needs: the gates; for a GRU also the product that r multiplies, or r
    times the state.
    """
    return 1 + 3 * (cell >= 2)


def panels(hidden: int) -> int:
    return (hidden + 7) // 8 * 8


def conv_weights(c: int, m: int, groups: int, kernel: Ints) -> int:
    return m * (c // groups) * prod(kernel)


def grouped(c: int, m: int, groups: int) -> bool:
    return c >= 1 and m >= 1 and (groups >= 1) and (c // groups * groups == c) and (m // groups * groups == m)


def few_positions(n: int, m: int, weights: int, out: Ints) -> bool:
    """Columns take at most twice the memory of the weights."""
    return prod(out) <= 64 and n * prod(out) <= min(512, 2 * m) and (weights >= 32768)


def windows(size: Ints, kernel: Ints, out: Ints, stride: Ints, dilation: Ints, pad: Ints) -> bool:
    return prod(size) >= 1 and prod(out) >= 1 and (prod(kernel) >= 1) and (prod(stride) >= 1) and (prod(dilation) >= 1) and (reach_up(out, stride) + reach_up(kernel, dilation) + pad[0] + pad[1] + pad[2] <= 1073741824)


def winograd_planes(c: int, m: int) -> int:
    """Winograd's method for 3x3 windows of stride 1 and 2 without dilation or groups (conv/winograd.c). Transformed
    weights: a plane for each point; `flipped`: for the data gradient, where c counts the channels of dy and m the
    channels of dx.
    """
    return 36 * (ceil4(m) * ceil4(c) + 16)


def winograd_channels(c: int, m: int, stride: int) -> bool:
    """Channels of which a block of the fewest tiles fits a thread's workspace."""
    return max(c, m) <= 1024 - 384 * stride


def winograd_window(n: int, c: int, m: int, size: Ints, out: Ints, stride: int, pad: Ints) -> bool:
    return stride >= 1 and stride <= 2 and (n >= 1) and (c >= 1) and (m >= 1) and winograd_channels(c, m, stride) and (prod(size) >= 1) and (prod(out) >= 1) and (max(max(out[0], out[1]), max(size[0], size[1])) * stride + pad[0] + pad[1] <= 1073741824)


def winograd_tiled(n: int, stride: int, flipped: int) -> int:
    """Outputs along an axis in whole tiles of 4, or of 8 where the data gradient goes back through a stride of 2."""
    return (n + 3 + 4 * (stride - 1) * flipped) // (4 + 4 * (stride - 1) * flipped) * (4 + 4 * (stride - 1) * flipped)


def positions(n: int, out: Ints) -> int:
    return n * prod(out)


class Copy(KernelCall, kernel="copy", words=3, parts=("dst",)):
    src: In
    dst: Out
    n: int


class StridedCopy(KernelCall, kernel="strided_copy", words=29, parts=("dst",)):
    """Element dst_offset + sum i_k dst_strides_k of dst = element src_offset + sum i_k src_strides_k of src, for all i
    < dims. Offsets and strides count elements of `size` bytes; unused leading dims are 1. Slice, Pad, Concat, Split,
    Transpose, Expand.
    """

    src: In
    dst: Out
    size: int
    dims: Ints
    src_offset: int
    src_strides: Ints
    dst_offset: int
    dst_strides: Ints


class ConvertHalf(KernelCall, kernel="convert_half", words=4):
    x: In
    y: Out
    n: int
    conversion: int


class Reduce(KernelCall, kernel="reduce_f32", words=6):
    x: In
    y: Out
    outer: int
    n: int
    inner: int
    op: int


class ReduceInt(KernelCall, kernel="reduce_int", words=7):
    """sum, max, min or prod; size 4 or 8 bytes."""

    x: In
    y: Out
    outer: int
    n: int
    inner: int
    size: int
    op: int


class ArgReduce(KernelCall, kernel="arg_reduce_f32", words=7):
    """index of the largest (select_max 1) or smallest element; the last one of equals if last_index; a NaN wins."""

    x: In
    y: Out
    outer: int
    n: int
    inner: int
    select_max: int
    last_index: int


class ArgReduceI64(KernelCall, kernel="arg_reduce_i64", words=7):
    """the same of integers."""

    x: In
    y: Out
    outer: int
    n: int
    inner: int
    select_max: int
    last_index: int


class Cumsum(KernelCall, kernel="cumsum_f32", words=7):
    x: In
    y: Out
    outer: int
    n: int
    inner: int
    exclusive: int
    reverse: int


class Topk(KernelCall, kernel="topk_f32", words=9):
    """the k largest (or smallest) elements in order, and their positions; NaN comes first (topk.c)."""

    x: In
    y: OptionalOut = None
    at: OptionalOut = None
    heap: Scratch = scratch("int32", lambda call: call.n)
    outer: int
    n: int
    inner: int
    k: int
    largest: int


class TopkI64(KernelCall, kernel="topk_i64", words=9):
    """the same of integers."""

    x: In
    y: OptionalOut = None
    at: OptionalOut = None
    heap: Scratch = scratch("int32", lambda call: call.n)
    outer: int
    n: int
    inner: int
    k: int
    largest: int


class Softmax(KernelCall, kernel="softmax_f32", words=6):
    """along the middle axis of [outer, n, inner]; log 1: the logarithm of it."""

    x: In
    y: Out
    outer: int
    n: int
    inner: int
    log: int


class SoftmaxGrad(KernelCall, kernel="softmax_grad_f32", words=7):
    dy: In
    y: In
    dx: Out
    outer: int
    n: int
    inner: int
    log: int


class CrossEntropy(KernelCall, kernel="cross_entropy_f32", words=14, fails=("labels",)):
    """scores [n, c, inner] (from_log 1: already log-probabilities), labels [n, inner] of label_size 4 or 8 bytes. The
    loss of each is [n, inner]. A label outside [0, c) that is not ignored fails with TW_BAD_LABEL.
    """

    scores: In
    labels: In
    weights: OptionalIn = None
    loss: Out
    log_prob: OptionalOut = None
    row_loss: Scratch = scratch("float32", lambda call: call.n * call.inner)
    n: int
    c: int
    inner: int
    label_size: int
    has_ignore: int
    ignore_index: int
    reduction: int
    from_log: int


class CrossEntropyGrad(KernelCall, kernel="cross_entropy_grad_f32", words=13, fails=("labels",)):
    """dx = (exp(log_prob) - onehot) * weight * dy / D; from_log 1: -onehot * weight * dy / D."""

    dy: In
    log_prob: OptionalIn = None
    labels: In
    weights: OptionalIn = None
    dx: Out
    n: int
    c: int
    inner: int
    label_size: int
    has_ignore: int
    ignore_index: int
    reduction: int
    from_log: int


class HeadLoss(KernelCall, kernel="head_loss_f32", words=26, fails=("labels",)):
    """Cross entropy, as cross_entropy_f32 has it, of scores alpha * x w' + bias that are not stored. x [n, d], w [c, d]
    (turned 1: [d, c]). slope: the gradient by x where that by the loss is 1; log_sum: log(sum(e^score)) of each row, 0
    where it is ignored. The classes of a block of rows go to `parts` tasks. gradient 1: with slope.
    """

    x: In
    w: In
    bias: OptionalIn = None
    labels: In
    weights: OptionalIn = None
    loss: Out
    slope: OptionalOut = None
    log_sum: OptionalOut = None
    rows: Scratch = scratch("int32", lambda call: call.n)
    kept: Scratch = scratch("float32", lambda call: call.n * call.d)
    row_loss: Scratch = scratch("float32", lambda call: call.n)
    target: Scratch = scratch("float32", lambda call: call.n)
    top: Scratch = scratch("float32", lambda call: call.parts * call.n)
    sum: Scratch = scratch("float32", lambda call: call.parts * call.n)
    partial: Scratch = scratch("float32", lambda call: call.gradient * call.parts * call.n * call.d)
    n: int
    c: int
    d: int
    turned: int
    alpha: float
    label_size: int
    has_ignore: int
    ignore_index: int
    reduction: int
    parts: int
    gradient: int

    def flops(self) -> int:
        return 2 * self.n * self.c * self.d * (1 + self.gradient)


class HeadLossWeightGrad(KernelCall, kernel="head_loss_weight_grad_f32", words=20, fails=("labels",)):
    """dw (+)= its gradient by w, which lies as w does (the product of the scores, made again, is not among its flops).
    """

    dy: In
    x: In
    w: In
    bias: OptionalIn = None
    labels: In
    weights: OptionalIn = None
    log_sum: In
    dw: Sum
    rows: Scratch = scratch("int32", lambda call: call.n)
    kept: Scratch = scratch("float32", lambda call: call.n * call.d)
    n: int
    c: int
    d: int
    turned: int
    alpha: float
    label_size: int
    has_ignore: int
    ignore_index: int
    reduction: int
    accumulate: int

    def flops(self) -> int:
        return 2 * self.n * self.c * self.d


class CtcLoss(KernelCall, kernel="ctc_loss_f32", words=14, fails=("targets", "input_lengths", "target_lengths")):
    """loss = -log of the probability of all paths that give the target; alpha[batch, steps, states]: the same logarithm
    for the paths up to a step and a state. Labels outside [0, classes) within a target's length fail with TW_BAD_LABEL,
    lengths beyond `steps` and `labels` with TW_BAD_INDEX.
    """

    log_probs: In
    targets: In
    input_lengths: In
    target_lengths: In
    loss: Out
    alpha: OptionalOut = None
    steps: int
    batch: int
    classes: int
    labels: int
    label_size: int
    length_size: int
    blank: int
    zero_infinity: int


class CtcLossGrad(KernelCall, kernel="ctc_loss_grad_f32", words=15, fails=("targets", "input_lengths", "target_lengths")):
    """The gradient of log_probs, each of which is an independent input."""

    dloss: In
    log_probs: In
    targets: In
    input_lengths: In
    target_lengths: In
    alpha: In
    dx: Out
    steps: int
    batch: int
    classes: int
    labels: int
    label_size: int
    length_size: int
    blank: int
    zero_infinity: int


class Attention(KernelCall, kernel="attention_f32", words=37, parts=("y",)):
    """y = softmax(scale * q k' + mask) v for every item of the batch. q [m, d], k [n, d], v [n, e], mask [m, n].
    `group` items share k and v. Strides belong to the batch and to rows, whose elements lie side by side. If the mask
    is -infinity the score is `fill`. For the gradient: `top`, the largest score of each row, and `inverse`, 1 /
    sum(e^(score - top)). With `state` the probabilities go through dropout_f32's Dropout before v. guarded 1: rows of
    NaN, such as fully masked rows, give zeros.
    """

    q: In
    k: In
    v: In
    mask: OptionalIn = None
    state: OptionalIn = None
    y: Out
    top: OptionalOut = None
    inverse: OptionalOut = None
    spans: Scratch = scratch("int32", lambda call: mask_spans(call.batch, call.m, call.n, call.mask_strides))
    batch: Ints
    group: int
    m: int
    n: int
    d: int
    e: int
    q_strides: Ints
    k_strides: Ints
    v_strides: Ints
    mask_strides: Ints
    y_strides: Ints
    scale: float
    fill: float
    ratio: float
    salt: int
    draw: int
    guarded: int

    def flops(self) -> int:
        return 2 * prod(self.batch) * self.m * self.n * (self.d + self.e)


class AttentionGradient(KernelCall, kernel="attention_gradient_f32", words=56, parts=("dq", "dk", "dv")):
    """Its gradients (the product of the scores, made again, is not among its flops); the blocks of keys of a group go
    to `parts` tasks, one at least to each. conditional 1: none through a score where the mask is -infinity.
    """

    q: In
    k: In
    v: In
    mask: OptionalIn = None
    y: In
    dy: In
    top: In
    inverse: In
    state: OptionalIn = None
    dq: OptionalOut = None
    dk: OptionalOut = None
    dv: OptionalOut = None
    delta: Scratch = scratch("float32", lambda call: call.batch[0] * call.batch[1] * call.parts * call.m)
    partial: Scratch = scratch("float32", lambda call: call.batch[0] * call.batch[1] * (call.parts - 1) * call.m * call.d)
    spans: Scratch = scratch("int32", lambda call: mask_spans(call.batch, call.m, call.n, call.mask_strides))
    batch: Ints
    group: int
    m: int
    n: int
    d: int
    e: int
    q_strides: Ints
    k_strides: Ints
    v_strides: Ints
    mask_strides: Ints
    y_strides: Ints
    dy_strides: Ints
    dq_strides: Ints
    dk_strides: Ints
    dv_strides: Ints
    scale: float
    fill: float
    ratio: float
    salt: int
    draw: int
    conditional: int
    parts: int

    def flops(self) -> int:
        return 4 * prod(self.batch) * self.m * self.n * (self.d + self.e)


class Rotary(KernelCall, kernel="rotary_f32", words=23, parts=("y",)):
    """Of each row of x the halves x1, x2 are turned: y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2. back 1: the
    gradient, which is y1 = x1 cos1 + x2 sin2, y2 = x2 cos2 - x1 sin1. The second halves of cos and sin begin at
    cos_half and sin_half.
    """

    x: In
    cos: In
    sin: In
    y: Out
    dims: Ints
    half: int
    x_strides: Ints
    cos_strides: Ints
    sin_strides: Ints
    y_strides: Ints
    cos_half: int
    sin_half: int
    back: int


class LayerNorm(KernelCall, kernel="layer_norm_f32", words=10):
    """x [rows, n]; rms 1: no mean, y = x / sqrt(mean(x^2) + epsilon) * scale."""

    x: In
    scale: OptionalIn = None
    bias: OptionalIn = None
    y: Out
    mean: OptionalOut = None
    inv_std: OptionalOut = None
    rows: int
    n: int
    epsilon: float
    rms: int


class LayerNormGrad(KernelCall, kernel="layer_norm_grad_f32", words=12):
    dy: In
    x: In
    scale: OptionalIn = None
    mean: OptionalIn = None
    inv_std: In
    dx: OptionalOut = None
    dscale: OptionalOut = None
    dbias: OptionalOut = None
    partial: Scratch = scratch("float32", lambda call: 2 * call.n * min(32, chunks(call.rows * call.n)))
    rows: int
    n: int
    rms: int


class BatchNormTrain(KernelCall, kernel="batch_norm_train_f32", words=13, updates=("running_mean", "running_var")):
    """x [batch, channels, size]; running = momentum * running + (1 - momentum) * batch statistic (biased variance)."""

    x: In
    scale: In
    bias: In
    y: Out
    mean: OptionalOut = None
    inv_std: OptionalOut = None
    running_mean: OptionalInOut = None
    running_var: OptionalInOut = None
    batch: int
    channels: int
    size: int
    epsilon: float
    momentum: float


class BatchNorm(KernelCall, kernel="batch_norm_f32", words=10):
    x: In
    scale: In
    bias: In
    mean: In
    var: In
    y: Out
    batch: int
    channels: int
    size: int
    epsilon: float


class BatchNormGrad(KernelCall, kernel="batch_norm_grad_f32", words=11):
    """dx = scale*inv*(dy - mean(dy) - xh*mean(dy*xh))."""

    dy: In
    x: In
    scale: In
    mean: In
    inv_std: In
    dx: OptionalOut = None
    dscale: OptionalOut = None
    dbias: OptionalOut = None
    batch: int
    channels: int
    size: int


class GroupNorm(KernelCall, kernel="group_norm_f32", words=9):
    """statistics over a group's channels/groups * size values of an image; in the gradient they are computed again."""

    x: In
    scale: In
    bias: In
    y: Out
    batch: int
    channels: int
    size: int
    groups: int
    epsilon: float


class GroupNormGrad(KernelCall, kernel="group_norm_grad_f32", words=12):
    dy: In
    x: In
    scale: In
    dx: OptionalOut = None
    dscale: OptionalOut = None
    dbias: OptionalOut = None
    partial: Scratch = scratch("float32", lambda call: 2 * call.batch * call.channels)
    batch: int
    channels: int
    size: int
    groups: int
    epsilon: float


class CheckIndices(KernelCall, kernel="check_indices", words=8, fails=("indices",)):
    """fails unless lo <= index < hi (or index == ignore); label 1: with TW_BAD_LABEL."""

    indices: In
    n: int
    index_size: int
    lo: int
    hi: int
    has_ignore: int
    ignore: int
    label: int


class Gather(KernelCall, kernel="gather", words=8, fails=("indices",)):
    """data [outer, dim, inner bytes], y [outer, n, inner bytes]."""

    data: In
    indices: In
    y: Out
    outer: int
    dim: int
    n: int
    inner: int
    index_size: int


class GatherGrad(KernelCall, kernel="gather_grad_f32", words=8, fails=("indices",)):
    """dx [outer, dim, inner] = sum of the rows of dy [outer, n, inner] that came from each row."""

    indices: In
    dy: In
    dx: Out
    outer: int
    dim: int
    n: int
    inner: int
    index_size: int


class GatherElements(KernelCall, kernel="gather_elements", words=23, fails=("indices",)):
    """GatherElements: y has shape dims, as indices has; strides are the strides of data with 0 at the axis."""

    data: In
    indices: In
    y: Out
    dims: Ints
    strides: Ints
    axis_dim: int
    axis_stride: int
    size: int
    index_size: int


class ScatterElements(KernelCall, kernel="scatter_elements", words=25, fails=("indices",)):
    """ScatterElements into y, which holds data; `type` gives the elements' type unless reduction is SCATTER_SET:
    integers wrap.
    """

    updates: In
    indices: In
    y: InOut
    dims: Ints
    strides: Ints
    axis_dim: int
    axis_stride: int
    size: int
    index_size: int
    reduction: int
    type: int


class GatherNd(KernelCall, kernel="gather_nd", words=16, fails=("indices",)):
    """GatherND: data [batch, dims..., slice bytes], indices [batch, n, k] into the first k of dims (the others are 1).
    """

    data: In
    indices: In
    y: Out
    batch: int
    n: int
    k: int
    dims: Ints
    slice: int
    index_size: int


class ScatterNd(KernelCall, kernel="scatter_nd", words=18, fails=("indices",)):
    """ScatterND into y, which holds data; reductions as in scatter_elements, slice then a multiple of an element."""

    updates: In
    indices: In
    y: InOut
    batch: int
    n: int
    k: int
    dims: Ints
    slice: int
    index_size: int
    reduction: int
    type: int


class OneHot(KernelCall, kernel="one_hot", words=8):
    """y [outer, depth, inner] = values[1] where the index [outer, inner] says so, else values[0]; others leave a row
    all off.
    """

    indices: In
    values: In
    y: Out
    outer: int
    depth: int
    inner: int
    size: int
    index_size: int


class FlushMoments(KernelCall, kernel="flush_moments_f32", words=3):
    """Every 16th step, elements of less than 2^-106 become 0."""

    x: InOut
    state: In
    n: int


class ClipGradNorm(KernelCall, kernel="clip_grad_norm_f32", words=4):
    """g *= min(1, max_norm / (sqrt(sum of g^2) + 1e-6))."""

    g: InOut
    partial: Scratch = scratch("float32", lambda call: 2 * chunks(call.n))
    n: int
    max_norm: float


class ClipGrads(KernelCall, kernel="clip_grads_f32", words=4):
    """g = min(max(g, -limits[0]), limits[0]), then as above with max_norm = limits[1]; infinity leaves them as they
    are.
    """

    g: InOut
    limits: In
    partial: Scratch = scratch("float32", lambda call: 2 * chunks(call.n))
    n: int


class OptimizerAdvance(KernelCall, kernel="optimizer_advance", words=1):
    """step += 1."""

    state: InOut


class LinearLr(KernelCall, kernel="linear_lr", words=1):
    """learning_rate = initial_lr * f(step) of the linear scheduler."""

    state: InOut


class Dropout(KernelCall, kernel="dropout_f32", words=8):
    """y = x / (1 - ratio) where a random number is >= ratio, else 0; mask 1 where kept."""

    x: In
    y: Out
    mask: OptionalOut = None
    state: In
    n: int
    ratio: float
    salt: int
    draw: int


class Random(KernelCall, kernel="random_f32", words=8):
    """normal 0: uniform in [a, b); 1: normal with mean a and standard deviation b."""

    y: Out
    state: In
    n: int
    salt: int
    draw: int
    normal: int
    a: float
    b: float


class RandomAdvance(KernelCall, kernel="random_advance", words=2):
    """random offset += n: the next step draws other numbers."""

    state: InOut
    n: int


class SkipIfCurrent(KernelCall, kernel="skip_if_current", words=4):
    """Skip the next `instructions` if they ran since parameters changed last; trained 0: since they were loaded."""

    state: In
    seen: In
    instructions: int
    trained: int


class NoteCurrent(KernelCall, kernel="note_current", words=2):
    """They ran."""

    state: In
    seen: Out


class NoteChange(KernelCall, kernel="note_change", words=1):
    """This plan has changed parameters."""

    state: InOut


class LoopBegin(KernelCall, kernel="loop_begin", words=3):
    """Up to its loop_end the instructions run `trips` times, with 0, 1, ... in `counter`. The verifier matches
    beginnings and ends: it writes the loop's beginning into `begin` and `instruction`, and the remaining iterations
    into `left`.
    """

    counter: Out
    trips: int
    left: int


class LoopEnd(KernelCall, kernel="loop_end", words=3):
    counter: Out
    begin: int
    instruction: int


class LoopWhile(KernelCall, kernel="loop_while", words=5, fails=("condition", "count")):
    """Leave the loop, which ends `skip` instructions further on, if `condition` is false or `count` iterations have
    run: `counter` counts them. To go on beyond `limit` iterations is an error.
    """

    condition: OptionalIn = None
    count: OptionalIn = None
    counter: In
    limit: int
    skip: int


class LoopTake(KernelCall, kernel="loop_take", words=6, fails=("counter",)):
    """Part `counter` of `trips` parts of src, counted from the end if `reverse`."""

    src: In
    counter: In
    dst: Out
    n: int
    trips: int
    reverse: int


class LoopPut(KernelCall, kernel="loop_put", words=6, fails=("counter",), parts=("dst",)):
    """The same of dst."""

    src: In
    counter: In
    dst: Out
    n: int
    trips: int
    reverse: int


class Gemm(KernelCall, kernel="gemm_f32", words=30, result="c", parts=("c",)):
    """c[i,j][m,n] = activation(alpha * sum_k a[i,j](m,k) b[i,j](k,n) + beta * bias(m,n) + (accumulate ? c : 0));
    strides in elements; 0 in a batch broadcasts. Rows of c where `wanted` is 0 are 0 if `clears` is 1, else they may
    repeat another.
    """

    a: In
    b: In
    bias: OptionalIn = None
    wanted: OptionalIn = None
    c: Sum
    m: int
    n: int
    k: int
    a_row: int
    a_col: int
    b_row: int
    b_col: int
    c_row: int
    bias_row: int
    bias_col: int
    batch: Ints
    a_batch: Ints
    b_batch: Ints
    c_batch: Ints
    bias_batch: Ints
    alpha: float
    beta: float
    accumulate: int
    activation: int
    clears: int

    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * prod(self.batch)


class WantedTokens(KernelCall, kernel="wanted_tokens", words=15):
    """wanted [n] = 1 for a token with a label that is not `ignore`, or for all tokens if no label counts. A wanted
    token's keys are wanted, too: the keys that `mask` lowers by less than `ruled_out`, or all. The tokens of items lie
    `token_strides` apart.
    """

    labels: In
    mask: OptionalIn = None
    wanted: Out
    n: int
    label_size: int
    ignore: int
    batch: Ints
    m: int
    mask_strides: Ints
    token_strides: Ints
    ruled_out: float


class GemmInt(KernelCall, kernel="gemm_int", words=17):
    """c [batch, m, n] = the products of matrices of integers of 4 or 8 bytes, which wrap; strides as in gemm_f32."""

    a: In
    b: In
    c: Out
    m: int
    n: int
    k: int
    a_row: int
    a_col: int
    b_row: int
    b_col: int
    batch: Ints
    a_batch: Ints
    b_batch: Ints
    size: int

    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * prod(self.batch)


class Dequantize(KernelCall, kernel="dequantize_f32", words=16):
    """y [rows, cols] = ((x ^ flip) - (zero ^ flip)) * scale, where x is [rows, pitch]. Blocks of block_rows x
    block_cols elements have one scale (1 without) and one zero point (`center` without, flipped already); their strides
    are between blocks. `flip` is the sign bit of signed numbers, and 0 for 32 bits, which wrap. Floats have neither
    scale nor zero point.
    """

    x: In
    scale: OptionalIn = None
    zero: OptionalIn = None
    y: Out
    rows: int
    cols: int
    pitch: int
    packing: int
    flip: int
    center: int
    block_rows: int
    block_cols: int
    scale_row: int
    scale_col: int
    zero_row: int
    zero_col: int


class GatherDequantized(KernelCall, kernel="gather_dequantized_f32", words=19, fails=("indices",)):
    """y [n, cols] = the rows of it that indices of index_size 4 or 8 bytes name."""

    x: In
    scale: OptionalIn = None
    zero: OptionalIn = None
    indices: In
    y: Out
    n: int
    index_size: int
    rows: int
    cols: int
    pitch: int
    packing: int
    flip: int
    center: int
    block_rows: int
    block_cols: int
    scale_row: int
    scale_col: int
    zero_row: int
    zero_col: int


class GemmQuantized(KernelCall, kernel="gemm_quantized_f32", words=31, result="c", parts=("c",)):
    """As gemm_f32 without a batch, where b is w dequantized, as dequantize_f32 does it, and transposed if `turned`."""

    a: In
    w: In
    scale: OptionalIn = None
    zero: OptionalIn = None
    bias: OptionalIn = None
    wanted: OptionalIn = None
    c: Sum
    m: int
    n: int
    k: int
    turned: int
    a_row: int
    a_col: int
    c_row: int
    bias_row: int
    bias_col: int
    pitch: int
    packing: int
    flip: int
    center: int
    block_rows: int
    block_cols: int
    scale_row: int
    scale_col: int
    zero_row: int
    zero_col: int
    alpha: float
    beta: float
    accumulate: int
    activation: int
    clears: int

    def flops(self) -> int:
        return 2 * self.m * self.n * self.k


class HeadLossQuantized(KernelCall, kernel="head_loss_quantized_f32", words=37, fails=("labels",)):
    """As head_loss_f32, where w is dequantized as dequantize_f32 does it."""

    x: In
    w: In
    scale: OptionalIn = None
    zero: OptionalIn = None
    bias: OptionalIn = None
    labels: In
    weights: OptionalIn = None
    loss: Out
    slope: OptionalOut = None
    rows: Scratch = scratch("int32", lambda call: call.n)
    kept: Scratch = scratch("float32", lambda call: call.n * call.d)
    row_loss: Scratch = scratch("float32", lambda call: call.n)
    target: Scratch = scratch("float32", lambda call: call.n)
    top: Scratch = scratch("float32", lambda call: call.parts * call.n)
    sum: Scratch = scratch("float32", lambda call: call.parts * call.n)
    partial: Scratch = scratch("float32", lambda call: call.gradient * call.parts * call.n * call.d)
    n: int
    c: int
    d: int
    turned: int
    alpha: float
    label_size: int
    has_ignore: int
    ignore_index: int
    reduction: int
    parts: int
    gradient: int
    pitch: int
    packing: int
    flip: int
    center: int
    block_rows: int
    block_cols: int
    scale_row: int
    scale_col: int
    zero_row: int
    zero_col: int

    def flops(self) -> int:
        return 2 * self.n * self.c * self.d * (1 + self.gradient)


class Recurrence(KernelCall, kernel="recurrence_f32", words=19):
    """All steps of a layer in one direction, of x, the inputs of the gates with their biases; `bias` is added to the
    products with r. If step t is not below an item's length, y is zero and the states stay. h and c are the last
    states; `before` and `cells` are the states that each step started from.
    """

    x: In
    r: In
    bias: OptionalIn = None
    lengths: OptionalIn = None
    h0: OptionalIn = None
    c0: OptionalIn = None
    y: Out
    h: OptionalOut = None
    c: OptionalOut = None
    gates: OptionalOut = None
    before: OptionalOut = None
    cells: OptionalOut = None
    packed: Scratch = scratch("float32", lambda call: cell_gates(call.cell) * call.hidden * panels(call.hidden))
    states: Scratch = scratch("float32", lambda call: 5 * call.batch * call.hidden)
    steps: int
    batch: int
    hidden: int
    cell: int
    reverse: int

    def flops(self) -> int:
        return 2 * self.steps * self.batch * self.hidden * cell_gates(self.cell) * self.hidden


class RecurrenceGradient(KernelCall, kernel="recurrence_gradient_f32", words=19):
    """Gradients of x, of the products and of the first states, from the gradients of y and of the last states. A linear
    GRU must have the gradients of the products; in other cells these equal the gradients of x. An LSTM must have
    `cells`.
    """

    dy: OptionalIn = None
    dh: OptionalIn = None
    dc: OptionalIn = None
    r: In
    lengths: OptionalIn = None
    gates: In
    before: In
    cells: OptionalIn = None
    dx: Out
    dproduct: OptionalOut = None
    dh0: OptionalOut = None
    dc0: OptionalOut = None
    packed: Scratch = scratch("float32", lambda call: cell_gates(call.cell) * call.hidden * panels(call.hidden))
    states: Scratch = scratch("float32", lambda call: 3 * call.batch * call.hidden)
    steps: int
    batch: int
    hidden: int
    cell: int
    reverse: int

    def flops(self) -> int:
        return 2 * self.steps * self.batch * self.hidden * cell_gates(self.cell) * self.hidden


class Conv(KernelCall, kernel="conv_f32", words=28, result="y"):
    """Convolutions over (depth, height, width); fewer spatial axes have leading sizes 1 (kernel, stride, dilation 1,
    pad 0). `pad` is the padding at the begin of each axis; the end follows from `out`. y = activation(x * w + bias +
    (accumulate ? y : 0)).
    """

    x: In
    w: In
    bias: OptionalIn = None
    y: Sum
    n: int
    c: int
    m: int
    groups: int
    size: Ints
    kernel: Ints
    out: Ints
    stride: Ints
    dilation: Ints
    pad: Ints
    accumulate: int
    activation: int

    def flops(self) -> int:
        return 2 * self.n * self.m * (self.c // self.groups) * prod(self.kernel) * prod(self.out)


class ConvDataGradient(KernelCall, kernel="conv_data_gradient_f32", words=29, result="dx"):
    """dx = activation(transposed convolution of dy + bias + (accumulate ? dx : 0)): also ConvTranspose, whose input is
    dy and output dx.
    """

    dy: In
    w: In
    bias: OptionalIn = None
    dx: Sum
    ordered: Scratch = scratch("float32", lambda call: conv_weights(call.c, call.m, call.groups, call.kernel))
    n: int
    c: int
    m: int
    groups: int
    size: Ints
    kernel: Ints
    out: Ints
    stride: Ints
    dilation: Ints
    pad: Ints
    accumulate: int
    activation: int

    def flops(self) -> int:
        return 2 * self.n * self.m * (self.c // self.groups) * prod(self.kernel) * prod(self.out)


class ConvWeightGradient(KernelCall, kernel="conv_weight_gradient_f32", words=28):
    """dw (+)= gradient by the weights, db (+)= sum of dy per channel; `accumulate` adds to what they hold."""

    x: In
    dy: In
    dw: Sum
    db: OptionalSum = None
    partial: Scratch = scratch("float32", lambda call: 8 * call.m * call.c * prod(call.kernel) * (call.groups == 1) * (call.m * call.c * prod(call.kernel) <= 4096))
    n: int
    c: int
    m: int
    groups: int
    size: Ints
    kernel: Ints
    out: Ints
    stride: Ints
    dilation: Ints
    pad: Ints
    accumulate: int

    def flops(self) -> int:
        return 2 * self.n * self.m * (self.c // self.groups) * prod(self.kernel) * prod(self.out)


class WinogradWeights(KernelCall, kernel="winograd_weights_f32", words=6):
    w: In
    u: Out
    m: int
    c: int
    stride: int
    flipped: int


class WinogradConv(KernelCall, kernel="winograd_conv_f32", words=17, result="y"):
    """As conv_f32; flipped 1: as conv_data_gradient_f32, with dy as x. With stride 2 its paddings must then be both
    even or both odd. Its flops count a direct sum. It pays from 4 channels on if half of the tiles (stride 2: 3/4) lie
    inside.
    """

    x: In
    u: In
    bias: OptionalIn = None
    y: Sum
    n: int
    c: int
    m: int
    size: Ints
    out: Ints
    stride: int
    pad: Ints
    flipped: int
    accumulate: int
    activation: int

    def flops(self) -> int:
        return 18 * self.n * self.m * self.c * (prod(self.out) * (self.flipped == 0) + prod(self.size) * (self.flipped > 0))

    @staticmethod
    def pays(*, n: int, c: int, m: int, size: Ints, out: Ints, stride: int, pad: Ints, flipped: int, activation: int) -> bool:
        return bool((winograd_window(n, c, m, size, out, stride, pad) and flipped <= 1 and (activation <= 1) and ((pad[0] - pad[0] // 2 * 2 == pad[1] - pad[1] // 2 * 2) + (stride == 1) + (flipped == 0) >= 1)) and (min(c, m) >= 4 and 4 * prod(out) >= (1 + stride) * winograd_tiled(out[0], stride, flipped) * winograd_tiled(out[1], stride, flipped)))


class WinogradWeightGradient(KernelCall, kernel="winograd_weight_gradient_f32", words=16):
    """As conv_weight_gradient_f32; pays where winograd_conv_f32 does, but for few positions."""

    x: In
    dy: In
    dw: Sum
    db: OptionalSum = None
    partial: Scratch = scratch("float32", lambda call: min(8 * 36 * (call.m * ceil4(call.c) + 16), max(36 * (call.m * ceil4(call.c) + 16), 1048576)))
    n: int
    c: int
    m: int
    size: Ints
    out: Ints
    stride: int
    pad: Ints
    accumulate: int

    def flops(self) -> int:
        return 18 * self.n * self.m * self.c * prod(self.out)

    @staticmethod
    def pays(*, n: int, c: int, m: int, size: Ints, out: Ints, stride: int, pad: Ints) -> bool:
        return bool((winograd_window(n, c, m, size, out, stride, pad)) and ((few_positions(n, m, 9 * m * c, out) == 0) + (n * prod(out) > 64) >= 1))


class ColumnsConv(KernelCall, kernel="columns_conv_f32", words=30, result="y"):
    """Convolutions without groups as products of matrices, over all positions of all images at once. They suit
    positions so few that reading the weights is most of the work. As conv_f32, conv_data_gradient_f32 and
    conv_weight_gradient_f32.
    """

    x: In
    w: In
    bias: OptionalIn = None
    y: Sum
    columns: Scratch = scratch("float32", lambda call: call.c * prod(call.kernel) * positions(call.n, call.out))
    rows: Scratch = scratch("float32", lambda call: call.m * positions(call.n, call.out))
    table: Scratch = scratch("int32", lambda call: prod(call.kernel) * prod(call.out))
    n: int
    c: int
    m: int
    size: Ints
    kernel: Ints
    out: Ints
    stride: Ints
    dilation: Ints
    pad: Ints
    accumulate: int
    activation: int

    def flops(self) -> int:
        return 2 * self.n * self.m * self.c * prod(self.kernel) * prod(self.out)

    @staticmethod
    def pays(*, n: int, c: int, m: int, size: Ints, kernel: Ints, out: Ints, stride: Ints, dilation: Ints, pad: Ints, activation: int) -> bool:
        return bool((grouped(c, m, 1) and windows(size, kernel, out, stride, dilation, pad) and (activation <= 1)) and (few_positions(n, m, m * c * prod(kernel), out)))


class ColumnsDataGradient(KernelCall, kernel="columns_data_gradient_f32", words=30, result="dx"):
    dy: In
    w: In
    bias: OptionalIn = None
    dx: Sum
    columns: Scratch = scratch("float32", lambda call: call.c * prod(call.kernel) * positions(call.n, call.out))
    rows: Scratch = scratch("float32", lambda call: call.m * positions(call.n, call.out))
    table: Scratch = scratch("int32", lambda call: prod(call.kernel) * prod(call.out))
    n: int
    c: int
    m: int
    size: Ints
    kernel: Ints
    out: Ints
    stride: Ints
    dilation: Ints
    pad: Ints
    accumulate: int
    activation: int

    def flops(self) -> int:
        return 2 * self.n * self.m * self.c * prod(self.kernel) * prod(self.out)

    @staticmethod
    def pays(*, n: int, c: int, m: int, size: Ints, kernel: Ints, out: Ints, stride: Ints, dilation: Ints, pad: Ints, activation: int) -> bool:
        return bool((grouped(c, m, 1) and windows(size, kernel, out, stride, dilation, pad) and (activation <= 1) and (4 * prod(size) <= 1048576)) and (few_positions(n, m, m * c * prod(kernel), out)))


class ColumnsWeightGradient(KernelCall, kernel="columns_weight_gradient_f32", words=29):
    x: In
    dy: In
    dw: Sum
    db: OptionalSum = None
    columns: Scratch = scratch("float32", lambda call: call.c * prod(call.kernel) * positions(call.n, call.out))
    rows: Scratch = scratch("float32", lambda call: call.m * positions(call.n, call.out))
    table: Scratch = scratch("int32", lambda call: prod(call.kernel) * prod(call.out))
    n: int
    c: int
    m: int
    size: Ints
    kernel: Ints
    out: Ints
    stride: Ints
    dilation: Ints
    pad: Ints
    accumulate: int

    def flops(self) -> int:
        return 2 * self.n * self.m * self.c * prod(self.kernel) * prod(self.out)

    @staticmethod
    def pays(*, n: int, c: int, m: int, size: Ints, kernel: Ints, out: Ints, stride: Ints, dilation: Ints, pad: Ints) -> bool:
        return bool((grouped(c, m, 1) and windows(size, kernel, out, stride, dilation, pad)) and (few_positions(n, m, m * c * prod(kernel), out)))


class MaxPool(KernelCall, kernel="max_pool_f32", words=22):
    """Pooling over the last three axes (depth, height, width) of `planes` planes; fewer spatial axes have leading sizes
    1. indices: position of each maximum in the whole of x (the first one of equals); -1 where a window holds padding
    alone.
    """

    x: In
    y: Out
    indices: OptionalOut = None
    planes: int
    size: Ints
    kernel: Ints
    out: Ints
    stride: Ints
    dilation: Ints
    pad: Ints


class MaxPoolGradient(KernelCall, kernel="max_pool_gradient_f32", words=6):
    """dx = 0, then dx[indices[i]] += dy[i]. An index must lie in its own plane, as all do that max_pool_f32 makes."""

    dy: In
    indices: In
    dx: Out
    planes: int
    size: int
    out_size: int


class AveragePool(KernelCall, kernel="average_pool_f32", words=25):
    """Mean over the window; with count_include_pad it counts the positions of the padding, which ends pad_end after the
    input.
    """

    x: In
    y: Out
    planes: int
    size: Ints
    kernel: Ints
    out: Ints
    stride: Ints
    dilation: Ints
    pad: Ints
    pad_end: Ints
    count_include_pad: int


class AveragePoolGradient(KernelCall, kernel="average_pool_gradient_f32", words=25):
    dy: In
    dx: Out
    planes: int
    size: Ints
    kernel: Ints
    out: Ints
    stride: Ints
    dilation: Ints
    pad: Ints
    pad_end: Ints
    count_include_pad: int


class CountClasses(KernelCall, kernel="count_classes", words=10):
    """Faults: the number of targets that are not a class, the first of them, and the number of classes. If `ignores` is
    not 0, targets equal to `ignored` do not count. A target counts by its weight.
    """

    predicted: In
    targets: In
    weights: OptionalIn = None
    sums: Out
    faults: Out
    n: int
    classes: int
    mode: int
    ignores: int
    ignored: int


class CountTop(KernelCall, kernel="count_top_f32", words=11):
    """Right are those where fewer than k classes have a higher score than the target; sums: right ones and all."""

    scores: In
    targets: In
    weights: OptionalIn = None
    sums: Out
    faults: Out
    outer: int
    classes: int
    inner: int
    k: int
    ignores: int
    ignored: int


class ErrorSums(KernelCall, kernel="error_sums_f32", words=6):
    predicted: In
    target: In
    weights: OptionalIn = None
    sums: Out
    rows: int
    columns: int


TakesRelu = Gemm | GemmQuantized | Conv | ConvDataGradient | WinogradConv | ColumnsConv | ColumnsDataGradient
"""Calls that apply relu to their `result` where `activation` is ACTIVATION_RELU."""
TakesFactor = Gemm | GemmQuantized
"""Calls that multiply their `result` by `alpha`."""
TakesBias = Gemm | GemmQuantized
"""Calls that add `bias`, a vector along the columns of the result where `bias_col` is 1."""
Accumulates = HeadLossWeightGrad | Gemm | GemmQuantized | Conv | ConvDataGradient | ConvWeightGradient | WinogradConv | WinogradWeightGradient | ColumnsConv | ColumnsDataGradient | ColumnsWeightGradient
"""Calls that add to their `accumulated` results where `accumulate` is 1."""
