"""Models of time: recurrent, convolutional, and with fixed transforms of signals before them."""

import math

import torch
from tests.zoo.sources.case import Case, classes, classifier, model
from torch import nn
from torch.nn import functional as F


class Recurrent(nn.Module):
    """A recurrent layer of torch and a classifier of its last output."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner, self.fc = inner, nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.inner(x)[0][:, -1])


@model("LSTM, two layers")
def lstm() -> Case:
    return classifier(Recurrent(nn.LSTM(6, 12, 2, batch_first=True), 12), torch.randn(4, 9, 6))


@model("GRU, both directions")
def gru() -> Case:
    return classifier(Recurrent(nn.GRU(6, 8, batch_first=True, bidirectional=True), 16), torch.randn(4, 9, 6))


@model("Elman network")
def elman() -> Case:
    return classifier(Recurrent(nn.RNN(6, 12, nonlinearity="relu", batch_first=True), 12), torch.randn(4, 9, 6))


class Tagger(nn.Module):
    """Characters to tags: embedding, bidirectional LSTM with an initial state that is fed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.lstm = nn.LSTM(8, 8, bidirectional=True)
        self.fc = nn.Linear(16, 5)

    def forward(self, ids: torch.Tensor, state: torch.Tensor, cell: torch.Tensor) -> torch.Tensor:
        y, _ = self.lstm(self.embed(ids).transpose(0, 1), (state, cell))
        return self.fc(y).transpose(0, 1)


@model("LSTM tagger, both directions, states fed")
def tagger() -> Case:
    feeds = {"ids": classes(30, 3, 7), "state": torch.randn(2, 3, 8), "cell": torch.randn(2, 3, 8)}
    return Case(Tagger(), feeds, "CrossEntropyLoss", classes(5, 3, 7))


class Cells(nn.Module):
    """A loop over GRUCell and LSTMCell, unrolled by the exporters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.GRUCell(4, 8), nn.LSTMCell(8, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], 8)
        state = (h, h)
        for t in range(4):
            h = self.first(x[:, t], h)
            state = self.second(h, state)
        return self.fc(state[0])


@model("GRU and LSTM cells in a loop")
def cells() -> Case:
    return classifier(Cells(), torch.randn(4, 4, 4))


class Causal(nn.Module):
    """A residual block of dilated causal convolutions."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(inputs, outputs, 3, dilation=dilation))
        self.skip = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.skip(x) + F.relu(self.conv(F.pad(x, (self.pad, 0)))))


@model("Temporal convolutional network (weight norm)")
def tcn() -> Case:
    net = nn.Sequential(Causal(3, 12, 1), Causal(12, 12, 2), Causal(12, 12, 4), nn.Flatten(), nn.Linear(192, 5))
    return classifier(net, torch.randn(4, 3, 16))


class WaveNet(nn.Module):
    """Gated dilated convolutions with skip connections over quantized samples."""

    def __init__(self, levels: int = 16, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(levels, width)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**k) for k in range(3))
        self.mixes = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(3))
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, levels, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids).transpose(1, 2)
        total = torch.zeros_like(x)
        for k, (gate, mix) in enumerate(zip(self.gates, self.mixes, strict=True)):
            a, b = gate(F.pad(x, (2**k, 0))).chunk(2, 1)
            step, skip = mix(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            x, total = x + step, total + skip
        return self.out(total).transpose(1, 2)


@model("WaveNet (gates by chunk)")
def wavenet() -> Case:
    ids = classes(16, 2, 21)
    return Case(WaveNet(), {"ids": ids[:, :-1].contiguous()}, "CrossEntropyLoss", ids[:, 1:].contiguous())


class Sound(nn.Module):
    """Fourier transform of frames and mel filters by products with fixed matrices, logarithm, convolutions."""

    def __init__(self, frame: int = 16, mels: int = 6) -> None:
        super().__init__()
        angle = 2 * math.pi * torch.arange(frame // 2 + 1)[:, None] * torch.arange(frame) / frame
        window = torch.hann_window(frame)
        self.register_buffer("real", (angle.cos() * window)[:, None])
        self.register_buffer("imaginary", (-angle.sin() * window)[:, None])
        self.register_buffer("mel", torch.rand(mels, frame // 2 + 1))
        self.net = nn.Sequential(nn.Conv1d(mels, 12, 3), nn.BatchNorm1d(12), nn.ReLU(), nn.AdaptiveAvgPool1d(1))
        self.fc = nn.Linear(12, 5)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        power = F.conv1d(wave, self.real, stride=8).square() + F.conv1d(wave, self.imaginary, stride=8).square()
        return self.fc(self.net(torch.log(self.mel @ power + 1e-3)).squeeze(-1))


@model("Mel spectrogram by fixed products, convolutions")
def mel_frontend() -> Case:
    return classifier(Sound(), torch.randn(3, 1, 80))


class Forecaster(nn.Module):
    """N-BEATS: blocks that subtract what they explain, on fixed polynomial and learned bases."""

    def __init__(self, past: int = 12, future: int = 4) -> None:
        super().__init__()
        time = torch.arange(past + future) / past
        self.register_buffer("trend", torch.stack([time**k for k in range(3)]))
        self.past = past
        self.first = nn.Sequential(nn.Linear(past, 16), nn.ReLU(), nn.Linear(16, 3))
        self.second = nn.Sequential(nn.Linear(past, 16), nn.ReLU(), nn.Linear(16, past + future))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        level = x.mean(1, keepdim=True)
        scale = x.std(1, keepdim=True, unbiased=False) + 1e-3
        x = (x - level) / scale
        a = self.first(x) @ self.trend
        b = self.second(x - a[:, : self.past])
        return (a[:, self.past :] + b[:, self.past :]) * scale + level


@model("N-BEATS")
def nbeats() -> Case:
    return Case(Forecaster(), {"x": torch.randn(6, 12).cumsum(1)}, "MSELoss", torch.randn(6, 4))


class Crnn(nn.Module):
    """Convolutions, then attention that weighs time, as for text in images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 8, 3, 1, 1), nn.ReLU(), nn.MaxPool2d((2, 1)), nn.Conv2d(8, 8, 3, 1, 1))
        self.query, self.key, self.fc = nn.Parameter(torch.randn(16)), nn.Linear(32, 16), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x).permute(0, 3, 1, 2).flatten(2)
        weights = (torch.tanh(self.key(x)) @ self.query).softmax(-1)
        return self.fc((weights.unsqueeze(-1) * x).sum(1))


@model("Convolutions with attention over time")
def attention_pooling() -> Case:
    return classifier(Crnn(), torch.randn(3, 1, 8, 11))


class StateSpace(nn.Module):
    """A diagonal state space layer as a causal convolution with a kernel that is computed."""

    def __init__(self, width: int = 6, states: int = 4, length: int = 16) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.log(torch.arange(1, states + 1) * 0.1).expand(width, -1).contiguous())
        self.weight = nn.Parameter(torch.randn(width, states) * 0.3)
        self.skip = nn.Parameter(torch.ones(width))
        self.out, self.fc = nn.Linear(width, 2 * width), nn.Linear(width, 5)
        self.register_buffer("time", torch.arange(length).float())
        gap = torch.arange(length)[:, None] - torch.arange(length)
        self.register_buffer("gap", gap.clamp(min=0))
        self.register_buffer("causal", (gap >= 0).float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kernel = (self.weight.unsqueeze(-1) * torch.exp(-self.log_rate.exp().unsqueeze(-1) * self.time)).sum(1)
        toeplitz = kernel[:, self.gap] * self.causal
        y = torch.einsum("dts,bsd->btd", toeplitz, x) + self.skip * x
        return self.fc(F.glu(self.out(F.gelu(y))).mean(1))


@model("Diagonal state space layer (S4D)")
def state_space() -> Case:
    return classifier(StateSpace(), torch.randn(3, 16, 6))


class OwnNames(nn.Module):
    """Attributes with names such as exporters make, and tokens and a state for each row of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.randn(1, 2, 6))
        self.patch, self.cell, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 5)
        self.cls_token_0, self.pos_embed_0 = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 7, 16))
        self.alpha_1, self.gamma_1 = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.randn(16))
        self.const, self.decay_2, self.h0 = (nn.Parameter(torch.randn(16)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        h = self.patch(torch.cat([self.prompt.expand(batch, -1, -1), x], 1))
        h = torch.cat([self.cls_token_0.expand(batch, -1, -1), h], 1) + self.pos_embed_0
        h = torch.tanh(h * self.alpha_1) * self.gamma_1 + self.const
        state = torch.zeros(batch, 16) + self.h0
        for t in range(h.shape[1]):
            state = torch.tanh(self.cell(h[:, t]) + state * self.decay_2)
        return self.head(state)


@model("Tokens and a state for each row of the input")
def own_names() -> Case:
    return classifier(OwnNames(), torch.randn(4, 4, 6))
