"""Modules as people write them: tables, sets, graphs, points, physics, recommenders."""

import math

import torch
from tests.zoo.sources.case import Case, classes, classifier, model
from torch import nn
from torch.nn import functional as F


@model("Multilayer perceptron with batch norm")
def mlp() -> Case:
    net = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 5))
    return classifier(net, torch.randn(8, 12))


class Spline(nn.Module):
    """A layer of a Kolmogorov-Arnold network: cubic B-splines on fixed knots, and a SiLU branch."""

    def __init__(self, inputs: int, outputs: int, intervals: int = 4, degree: int = 3) -> None:
        super().__init__()
        self.degree = degree
        knots = torch.arange(-degree, intervals + degree + 1) * (2 / intervals) - 1
        self.register_buffer("grid", knots.expand(inputs, -1).contiguous())
        self.base_weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.spline_weight = nn.Parameter(torch.randn(outputs, inputs, intervals + degree) * 0.1)
        self.spline_scaler = nn.Parameter(torch.ones(outputs, inputs))

    def bases(self, x: torch.Tensor) -> torch.Tensor:
        x, grid = x.unsqueeze(-1), self.grid
        b = ((x >= grid[:, :-1]) & (x < grid[:, 1:])).to(x.dtype)
        for k in range(1, self.degree + 1):
            left = (x - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)]) * b[:, :, :-1]
            right = (grid[:, k + 1 :] - x) / (grid[:, k + 1 :] - grid[:, 1:-k]) * b[:, :, 1:]
            b = left + right
        return b

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.spline_weight * self.spline_scaler.unsqueeze(-1)
        return F.linear(F.silu(x), self.base_weight) + F.linear(self.bases(x).flatten(1), weight.flatten(1))


@model("Kolmogorov-Arnold network (B-splines)")
def kan() -> Case:
    return classifier(nn.Sequential(Spline(4, 6), Spline(6, 5)), torch.rand(8, 4) * 1.6 - 0.8)


class RadialBasis(nn.Module):
    """Gaussians with learned centres and widths."""

    def __init__(self) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.randn(16, 3))
        self.log_width = nn.Parameter(torch.zeros(16))
        self.out = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        distance = (x[:, None] - self.centers).pow(2).sum(-1)
        return self.out(torch.exp(-distance * self.log_width.exp()))


@model("Radial basis functions with learned centres")
def rbf() -> Case:
    return classifier(RadialBasis(), torch.randn(8, 3))


class DeepSets(nn.Module):
    """Elements are encoded one by one, then pooled by sum, mean and maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(3, 16), nn.ELU(), nn.Linear(16, 16), nn.ELU())
        self.rho = nn.Sequential(nn.Linear(48, 16), nn.ELU(), nn.Linear(16, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.phi(x)
        return self.rho(torch.cat([x.sum(1), x.mean(1), x.amax(1)], -1))


@model("DeepSets")
def deepsets() -> Case:
    return classifier(DeepSets(), torch.randn(4, 7, 3))


class GraphConvolution(nn.Module):
    """Two layers of a graph convolution; the adjacency is fed and normalized in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        a = adjacency + torch.eye(adjacency.shape[0], dtype=x.dtype)
        scale = a.sum(-1).rsqrt()
        a = scale[:, None] * a * scale[None, :]
        return self.second(a @ F.relu(self.first(a @ x)))


@model("Graph convolution (dense adjacency)")
def gcn() -> Case:
    edges = (torch.rand(9, 9) < 0.3).float().triu(1)
    return Case(
        GraphConvolution(), {"x": torch.randn(9, 6), "adjacency": edges + edges.T}, "CrossEntropyLoss", classes(5, 9)
    )


class GraphAttention(nn.Module):
    """One layer of graph attention: edges that are not there are masked out."""

    def __init__(self, heads: int = 2, width: int = 8) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.project = nn.Linear(6, heads * width, bias=False)
        self.source = nn.Parameter(torch.randn(heads, width) * 0.3)
        self.sink = nn.Parameter(torch.randn(heads, width) * 0.3)
        self.out = nn.Linear(heads * width, 5)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        h = self.project(x).view(-1, self.heads, self.width).transpose(0, 1)
        scores = (h * self.source[:, None]).sum(-1)[:, :, None] + (h * self.sink[:, None]).sum(-1)[:, None]
        scores = F.leaky_relu(scores, 0.2).masked_fill(adjacency == 0, float("-inf"))
        return self.out(F.elu((scores.softmax(-1) @ h).transpose(0, 1).flatten(1)))


@model("Graph attention")
def gat() -> Case:
    edges = (torch.rand(9, 9) < 0.3).float().triu(1)
    feeds = {"x": torch.randn(9, 6), "adjacency": edges + edges.T + torch.eye(9)}
    return Case(GraphAttention(), feeds, "CrossEntropyLoss", classes(5, 9))


class MessagePassing(nn.Module):
    """Messages along a list of edges, gathered and scattered by index."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(10, 16), nn.ReLU())
        self.update = nn.Linear(21, 5)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        messages = self.message(torch.cat([x[edges[0]], x[edges[1]]], -1))
        index = edges[1][:, None].expand(-1, messages.shape[1])
        total = torch.zeros(x.shape[0], messages.shape[1], dtype=x.dtype).scatter_add(0, index, messages)
        return self.update(torch.cat([x, total], -1))


@model("Message passing by index (scatter_add)")
def message_passing() -> Case:
    feeds = {"x": torch.randn(8, 5), "edges": torch.randint(0, 8, (2, 20))}
    return Case(MessagePassing(), feeds, "CrossEntropyLoss", classes(5, 8))


class RadianceField(nn.Module):
    """NeRF: sines of positions, a skip connection, density and colour, and volume rendering along the ray."""

    def __init__(self, bands: int = 4, width: int = 32) -> None:
        super().__init__()
        self.register_buffer("bands", 2.0 ** torch.arange(bands) * math.pi)
        encoded = 3 * (1 + 2 * bands)
        self.first = nn.Linear(encoded, width)
        self.second = nn.Linear(width + encoded, width)
        self.density, self.colour = nn.Linear(width, 1), nn.Linear(width, 3)

    def forward(self, points: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        angles = (points.unsqueeze(-1) * self.bands).flatten(-2)
        x = torch.cat([points, angles.sin(), angles.cos()], -1)
        h = F.relu(self.second(torch.cat([F.relu(self.first(x)), x], -1)))
        alpha = 1 - torch.exp(-F.softplus(self.density(h)).squeeze(-1) * steps)
        passed = torch.cumsum(torch.log(1 - alpha + 1e-5), -1)
        passed = torch.exp(F.pad(passed[:, :-1], (1, 0)))
        return ((alpha * passed).unsqueeze(-1) * torch.sigmoid(self.colour(h))).sum(1)


@model("NeRF with volume rendering")
def nerf() -> Case:
    feeds = {"points": torch.rand(6, 8, 3), "steps": torch.rand(6, 8) * 0.3 + 0.1}
    return Case(RadianceField(), feeds, "MSELoss", torch.rand(6, 3))


class Siren(nn.Module):
    """Layers with sines as activation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 24), nn.Linear(24, 24), nn.Linear(24, 1)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = torch.sin(10.0 * layer(x))
        return self.layers[-1](x)


@model("SIREN")
def siren() -> Case:
    return Case(Siren(), {"x": torch.rand(16, 2) * 2 - 1}, "MSELoss", torch.rand(16, 1))


class Pendulum(nn.Module):
    """Learned physical constants: a damped pendulum, integrated by Runge-Kutta steps."""

    def __init__(self) -> None:
        super().__init__()
        self.gravity = nn.Parameter(torch.tensor(9.0))
        self.log_damping = nn.Parameter(torch.tensor(-1.0))
        self.correction = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def slope(self, state: torch.Tensor) -> torch.Tensor:
        angle, speed = state[:, :1], state[:, 1:]
        force = -self.gravity * torch.sin(angle) - self.log_damping.exp() * speed + 0.1 * self.correction(state)
        return torch.cat([speed, force], 1)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        path, h = [], 0.05
        for _ in range(4):
            a = self.slope(state)
            b = self.slope(state + h / 2 * a)
            c = self.slope(state + h / 2 * b)
            d = self.slope(state + h * c)
            state = state + h / 6 * (a + 2 * b + 2 * c + d)
            path.append(state)
        return torch.stack(path, 1)


@model("Neural ordinary differential equation with learned constants")
def physics() -> Case:
    return Case(Pendulum(), {"state": torch.randn(6, 2)}, "MSELoss", torch.randn(6, 4, 2))


class Tokenizer(nn.Module):
    """Numbers times an embedding of their column, categories by embedding, and a class token."""

    def __init__(self, numbers: int, sizes: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(numbers, width) * 0.2)
        self.bias = nn.Parameter(torch.randn(numbers + len(sizes), width) * 0.2)
        self.register_buffer("offsets", torch.tensor([0, *sizes[:-1]]).cumsum(0))
        self.categories = nn.Embedding(sum(sizes), width)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.2)

    def forward(self, x: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        tokens = torch.cat([x.unsqueeze(-1) * self.weight, self.categories(kinds + self.offsets)], 1) + self.bias
        return torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1)


class TableTransformer(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tokenizer = Tokenizer(4, (3, 5), width)
        self.encoder = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, norm_first=True, batch_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.norm(self.encoder(self.tokenizer(x, kinds))[:, 0])))


@model("FT-Transformer (tables)")
def ft_transformer() -> Case:
    kinds = torch.stack([classes(3, 6), classes(5, 6)], 1)
    feeds = {"x": torch.randn(6, 4), "kinds": kinds}
    return Case(TableTransformer(), feeds, "BCEWithLogitsLoss", torch.randint(0, 2, (6, 1)).float())


class GatedBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(inputs, 2 * outputs, bias=False), nn.BatchNorm1d(2 * outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.glu(self.norm(self.fc(x)))


class TabNet(nn.Module):
    """Sequential attention over features: each step masks what earlier ones used."""

    def __init__(self, features: int = 8, width: int = 8, steps: int = 2) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(features)
        self.shared = GatedBlock(features, 2 * width)
        self.own = nn.ModuleList(GatedBlock(2 * width, 2 * width) for _ in range(steps + 1))
        self.attention = nn.ModuleList(nn.Linear(width, features, bias=False) for _ in range(steps))
        self.width, self.head = width, nn.Linear(width, 5)

    def block(self, x: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.shared(x)
        x = (x + self.own[step](x)) * math.sqrt(0.5)
        return F.relu(x[:, : self.width]), x[:, self.width :]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        prior = torch.ones_like(x)
        _, hint = self.block(x, 0)
        total = torch.zeros_like(hint)
        for step, attention in enumerate(self.attention, 1):
            mask = (attention(hint) * prior).softmax(-1)
            prior = prior * (1.3 - mask)
            decision, hint = self.block(x * mask, step)
            total = total + decision
        return self.head(total)


@model("TabNet")
def tabnet() -> Case:
    return classifier(TabNet(), torch.randn(8, 8))


class Recommender(nn.Module):
    """Neural collaborative filtering: products and concatenations of embeddings, and biases by user and item."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, 8), nn.Embedding(30, 8)
        self.user_bias, self.item_bias = nn.Embedding(20, 1), nn.Embedding(30, 1)
        self.deep = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))
        self.out = nn.Linear(16, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        u, i = self.users(user), self.items(item)
        score = self.out(torch.cat([u * i, self.deep(torch.cat([u, i], -1))], -1))
        return (score + self.user_bias(user) + self.item_bias(item)).squeeze(-1)


@model("Neural collaborative filtering")
def recommender() -> Case:
    feeds = {"user": classes(20, 8), "item": classes(30, 8)}
    return Case(Recommender(), feeds, "BCEWithLogitsLoss", torch.randint(0, 2, (8,)).float())


class ClickModel(nn.Module):
    """DLRM: bags of words by EmbeddingBag, dense features, and products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(40, 8, mode="mean")
        self.site = nn.Embedding(10, 8)
        self.dense = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(11, 16), nn.ReLU(), nn.Linear(16, 1))
        self.register_buffer("pairs", torch.tensor([3, 6, 7]))

    def forward(self, dense: torch.Tensor, words: torch.Tensor, site: torch.Tensor) -> torch.Tensor:
        d = self.dense(dense)
        z = torch.stack([d, self.words(words), self.site(site)], 1)
        products = (z @ z.transpose(1, 2)).flatten(1)[:, self.pairs]
        return self.top(torch.cat([d, products], 1)).squeeze(1)


@model("DLRM with an embedding bag")
def dlrm() -> Case:
    feeds = {"dense": torch.randn(6, 5), "words": classes(40, 6, 4), "site": classes(10, 6)}
    return Case(ClickModel(), feeds, "BCEWithLogitsLoss", torch.randint(0, 2, (6,)).float())


class FactorizationMachine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 1)
        self.factors = nn.Parameter(torch.randn(12, 4) * 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares = (x @ self.factors).square() - x.square() @ self.factors.square()
        return self.linear(x) + 0.5 * squares.sum(-1, keepdim=True)


@model("Factorization machine")
def factorization_machine() -> Case:
    return Case(FactorizationMachine(), {"x": torch.rand(8, 12)}, "MSELoss", torch.randn(8, 1))


class Siamese(nn.Module):
    """One encoder for both images; the loss is contrastive, with learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 12)
        )
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = (F.normalize(self.encoder(x), dim=-1) for x in (a, b))
        return self.logit_scale.exp() * a @ b.T


@model("Siamese encoders with a learned temperature")
def siamese() -> Case:
    feeds = {"a": torch.randn(6, 1, 15, 15), "b": torch.randn(6, 1, 15, 15)}
    return Case(Siamese(), feeds, "CrossEntropyLoss", torch.arange(6))


class Experts(nn.Module):
    """A mixture of experts, all of which run; a gate of the two best weighs them."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(8, experts)
        self.up = nn.Parameter(torch.randn(experts, 8, 16) * 0.3)
        self.down = nn.Parameter(torch.randn(experts, 16, 5) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x)
        best, index = scores.topk(2, -1)
        weight = torch.zeros_like(scores).scatter(-1, index, best.softmax(-1))
        outputs = torch.einsum("neh,eho->neo", F.gelu(torch.einsum("ni,eih->neh", x, self.up)), self.down)
        return (weight.unsqueeze(-1) * outputs).sum(1)


@model("Mixture of experts (top-2 gate)")
def mixture_of_experts() -> Case:
    return classifier(Experts(), torch.randn(8, 8))


class Highway(nn.Module):
    """Highway layers, spectral norm's cousin weight norm, and maxout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 12))
        self.transform, self.gate = nn.Linear(12, 12), nn.Linear(12, 12)
        self.maxout = nn.Linear(12, 15)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        t = torch.sigmoid(self.gate(x))
        x = t * F.relu(self.transform(x)) + (1 - t) * x
        return self.maxout(x).view(-1, 5, 3).amax(-1)


@model("Highway network with weight norm and maxout")
def highway() -> Case:
    return classifier(Highway(), torch.randn(8, 6))


class PointNet(nn.Module):
    """A learned rotation of the points, shared layers, a maximum over points."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, 12, 1), nn.BatchNorm1d(12), nn.ReLU())
        self.matrix = nn.Linear(12, 9)
        self.points = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 24, 1))
        self.head = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turn = self.matrix(self.turn(x).amax(-1)).view(-1, 3, 3) + torch.eye(3, dtype=x.dtype)
        return self.head(self.points(turn @ x).amax(-1))


@model("PointNet")
def pointnet() -> Case:
    return classifier(PointNet(), torch.randn(4, 3, 20))


class Capsules(nn.Module):
    """Capsules with three rounds of routing by agreement."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 5, 3)
        self.weight = nn.Parameter(torch.randn(18, 4, 4, 6) * 0.2)

    @staticmethod
    def squash(x: torch.Tensor) -> torch.Tensor:
        n = x.square().sum(-1, keepdim=True)
        return n / (1 + n) * x / torch.sqrt(n + 1e-8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = self.squash(self.conv(x).reshape(x.shape[0], 18, 4))
        votes = torch.einsum("bni,noij->bnoj", u, self.weight)
        logits = torch.zeros_like(votes[..., 0])
        for _ in range(3):
            v = self.squash((logits.softmax(-1).unsqueeze(-1) * votes).sum(1))
            logits = logits + (votes * v.unsqueeze(1)).sum(-1)
        return 5 * torch.sqrt(v.square().sum(-1) + 1e-8)


@model("Capsule network (dynamic routing)")
def capsules() -> Case:
    return classifier(Capsules(), torch.randn(4, 1, 13, 13), 4)


class Actor(nn.Module):
    """A policy and a value with a shared body; the loss is PPO's, from old log probabilities that are fed."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
        self.mean, self.value = nn.Linear(24, 2), nn.Linear(24, 1)
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def forward(
        self,
        state: torch.Tensor,
        action: torch.Tensor,
        old: torch.Tensor,
        advantage: torch.Tensor,
        returns: torch.Tensor,
    ) -> torch.Tensor:
        h = self.body(state)
        z = (action - self.mean(h)) * torch.exp(-self.log_std)
        log_prob = (-0.5 * z.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        ratio = torch.exp(log_prob - old)
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        value = (self.value(h).squeeze(-1) - returns).square().mean()
        return 0.5 * value - surrogate - 0.01 * self.log_std.sum()


@model("Actor and critic with the loss of PPO")
def ppo() -> Case:
    feeds = {
        "state": torch.randn(12, 6),
        "action": torch.randn(12, 2),
        "old": -torch.rand(12) * 2 - 1.5,
        "advantage": torch.randn(12),
        "returns": torch.randn(12),
    }
    return Case(Actor(), feeds, "")


class Edges(nn.Module):
    """Messages along edges that are fed, summed up by `index_add`, and by `index_put` into what each node has."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.message, self.back, self.head = (nn.Linear(i, o) for i, o in ((4, 6), (6, 6), (6, 6), (6, 3)))

    def forward(self, x: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.embed(x))
        h = torch.tanh(h.index_add(0, targets, self.message(h)[sources]))
        h = h.index_put((sources,), self.back(h)[targets], accumulate=True)
        return self.head(h)


@model("Message passing (edges are fed, `index_add`, `index_put`)")
def edges() -> Case:
    ends = torch.randint(0, 8, (2, 8))
    feeds = {"x": torch.randn(8, 4), "sources": ends[0], "targets": ends[1]}
    return Case(Edges(), feeds, "CrossEntropyLoss", classes(3, 8))
