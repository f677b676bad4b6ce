"""Records expected.npz in float64: `python record.py` with torch and schedulefree, `python record.py optax` with optax.

Thirty steps of every optimizer on four parameters, with gradients of very different sizes; `expected.json` has
the settings. Keras's and optax's Lion are in ../lion.
"""

import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
SHAPES = {"fc1.weight": (4, 5), "fc1.bias": (4,), "fc2.weight": (3, 4), "fc2.bias": (3,)}
STEPS, RATE = 30, 0.01
CASES = {
    "AdamW, torch's": ("AdamW", {"adam_mode": 0, "weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-8}),
    "Adam": ("Adam", {}),
    "Adam with decay": ("Adam", {"weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-3}),
    "SGD with momentum": ("SGD", {"momentum": 0.9}),
    "SGD with dampening and decay": ("SGD", {"momentum": 0.8, "dampening": 0.3, "weight_decay": 0.1}),
    "SGD with decay alone": ("SGD", {"weight_decay": 0.1}),
    "SGD of Nesterov": ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "RMSProp": ("RMSProp", {}),
    "RMSProp with momentum": ("RMSProp", {"momentum": 0.9, "weight_decay": 0.1, "alpha": 0.9}),
    "RMSProp, centered": ("RMSProp", {"centered": True, "eps": 1e-2}),
    "RMSProp with all": ("RMSProp", {"centered": True, "momentum": 0.8, "eps": 1e-2, "weight_decay": 0.1}),
    "Adagrad": ("Adagrad", {}),
    "Adagrad with all": (
        "Adagrad",
        {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3},
    ),
    "Adadelta": ("Adadelta", {}),
    "Adadelta with decay": ("Adadelta", {"rho": 0.8, "eps": 1e-3, "weight_decay": 0.1}),
    "Adafactor": ("Adafactor", {"eps": 1e-7}),
    "Adafactor with all": (
        "Adafactor",
        {"eps": 1e-3, "scale_eps": 0.5, "clip_threshold": 1.5, "beta2_decay": -0.5, "weight_decay": 0.1},
    ),
    "Muon": ("Muon", {}),
    "Muon in its first form": ("Muon", {"match_rms": False, "nesterov": False, "weight_decay": 0.3, "momentum": 0.8}),
    "Lamb": ("Lamb", {}),
    "Lamb with decay": ("Lamb", {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    "Adamax": ("Adamax", {}),
    "Adamax with decay": ("Adamax", {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    "NAdam": ("NAdam", {}),
    "NAdam with all": ("NAdam", {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1, "momentum_decay": 0.1}),
    "RAdam": ("RAdam", {}),
    "RAdam with decay": ("RAdam", {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    "AdaBelief": ("AdaBelief", {}),
    "AdaBelief with all": ("AdaBelief", {"betas": (0.8, 0.95), "eps": 1e-3}),
    "Adan": ("Adan", {}),
    "Adan with decay": ("Adan", {"betas": (0.8, 0.7, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    "Lookahead": ("Lookahead", {}),
    "Lookahead of other steps": ("Lookahead", {"sync_period": 7, "slow_step_size": 0.3, "momentum": 0.5}),
    "ScheduleFreeAdamW": ("ScheduleFreeAdamW", {}),
    "ScheduleFreeAdamW with decay": (
        "ScheduleFreeAdamW",
        {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1},
    ),
    "AdamW in groups": (
        "AdamW",
        {
            "adam_mode": 0,
            "weight_decay": 0.1,
            "decay_biases_and_norms": False,
            "groups": [{"parameters": ["fc2.*"], "learning_rate_factor": 0.1, "betas": (0.5, 0.9)}],
        },
    ),
}
TORCH = {"RMSProp": "RMSprop"}
IN_OPTAX = ("Lamb", "AdaBelief", "Adan", "Lookahead")


def start() -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """Parameters, and the gradients of each step."""
    rng = np.random.default_rng(20241122)
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()}
    scales = {n: rng.choice([1e-3, 1, 30], s) for n, s in SHAPES.items()}
    return weights, [
        {n: (scales[n] * rng.standard_normal(s)).astype(np.float32) for n, s in SHAPES.items()} for _ in range(STEPS)
    ]


def in_muon(settings: dict) -> dict[str, np.ndarray]:
    """Matrices by torch.optim.Muon, with its products in float64 instead of bfloat16; vectors by AdamW."""
    import torch

    torch.bfloat16 = torch.float64
    settings = {"weight_decay": 0.1} | settings
    adjust = "match_rms_adamw" if settings.pop("match_rms", True) else "original"
    weights, gradients = start()
    tensors = {n: torch.nn.Parameter(torch.from_numpy(w.astype(np.float64))) for n, w in weights.items()}
    matrices, vectors = ([t for t in tensors.values() if (t.ndim == 2) == is_matrix] for is_matrix in (True, False))
    optimizers = [
        torch.optim.Muon(matrices, lr=RATE, adjust_lr_fn=adjust, **settings),
        torch.optim.AdamW(vectors, lr=RATE, weight_decay=settings["weight_decay"]),
    ]
    for step in gradients:
        for n, tensor in tensors.items():
            tensor.grad = torch.from_numpy(step[n].astype(np.float64))
        for optimizer in optimizers:
            optimizer.step()
    return {n: t.detach().numpy() for n, t in tensors.items()}


def in_torch(name: str, settings: dict) -> dict[str, np.ndarray]:
    import torch

    if name == "Muon":
        return in_muon(settings)
    if name == "ScheduleFreeAdamW":
        return in_schedulefree(settings)
    weights, gradients = start()
    tensors = {n: torch.nn.Parameter(torch.from_numpy(w.astype(np.float64))) for n, w in weights.items()}
    settings = {k: v for k, v in settings.items() if k != "adam_mode"}
    groups, decays = settings.pop("groups", []), settings.pop("decay_biases_and_norms", True)
    parts = []
    for n, tensor in tensors.items():
        own: dict = {"params": [tensor]}
        for group in groups:
            if n.startswith(group["parameters"][0].removesuffix(".*")):
                own |= {"lr": RATE * group["learning_rate_factor"], "betas": group["betas"]}
        if not decays and tensor.ndim < 2:
            own["weight_decay"] = 0.0
        parts.append(own)
    if name == "Adafactor":
        settings["eps"] = (settings["eps"], settings.pop("scale_eps", 1e-3))
        settings["d"] = settings.pop("clip_threshold", 1.0)
    defaults = {"eps": 1e-6} if name == "AdamW" and "eps" not in settings else {}
    optimizer = getattr(torch.optim, TORCH.get(name, name))(parts, lr=RATE, foreach=False, **settings, **defaults)
    for step in gradients:
        for n, tensor in tensors.items():
            tensor.grad = torch.from_numpy(step[n].astype(np.float64))
        optimizer.step()
    return {n: t.detach().numpy() for n, t in tensors.items()}


def in_schedulefree(settings: dict) -> dict[str, np.ndarray]:
    """The parameters where gradients are taken, and as "averages/..." those for evaluation."""
    import schedulefree
    import torch

    weights, gradients = start()
    tensors = {n: torch.nn.Parameter(torch.from_numpy(w.astype(np.float64))) for n, w in weights.items()}
    optimizer = schedulefree.AdamWScheduleFree(
        tensors.values(), lr=RATE, weight_lr_power=0.0, foreach=False, **settings
    )
    optimizer.train()
    for step in gradients:
        for n, tensor in tensors.items():
            tensor.grad = torch.from_numpy(step[n].astype(np.float64))
        optimizer.step()
    found = {n: t.detach().numpy().copy() for n, t in tensors.items()}
    optimizer.eval()
    return found | {f"averages/{n}": t.detach().numpy() for n, t in tensors.items()}


def optax_transform(name: str, settings: dict):
    import optax

    betas = {f"b{k}": b for k, b in enumerate(settings.get("betas", ()), 1)}
    decay = {"weight_decay": settings["weight_decay"]} if "weight_decay" in settings else {}
    if name == "Lookahead":
        fast = optax.sgd(RATE, settings.get("momentum", 0.9))
        return optax.lookahead(fast, settings.get("sync_period", 5), settings.get("slow_step_size", 0.5))
    eps = {"eps": settings["eps"]} if "eps" in settings else {}
    if name != "Lamb" and eps:
        eps["eps_root"] = settings["eps"]
    return {"Lamb": optax.lamb, "AdaBelief": optax.adabelief, "Adan": optax.adan}[name](RATE, **betas, **eps, **decay)


def in_optax(name: str, settings: dict) -> dict[str, np.ndarray]:
    import jax

    jax.config.update("jax_enable_x64", True)
    import optax

    transform = optax_transform(name, settings)
    weights, gradients = start()
    w = {n: x.astype(np.float64) for n, x in weights.items()}
    if name == "Lookahead":
        w = optax.LookaheadParams.init_synced(w)
    state = transform.init(w)
    for step in gradients:
        updates, state = transform.update({n: g.astype(np.float64) for n, g in step.items()}, state, w)
        w = optax.apply_updates(w, updates)
    return {n: np.asarray(x) for n, x in (w.fast if name == "Lookahead" else w).items()}


def main() -> None:
    path = HERE / "expected.npz"
    arrays = dict(np.load(path)) if path.is_file() else {}
    with_optax = sys.argv[1:] == ["optax"]
    for title, (name, settings) in CASES.items():
        if (name in IN_OPTAX) == with_optax:
            found = in_optax(name, settings) if with_optax else in_torch(name, settings)
            arrays |= {f"{title}/{n}": w for n, w in found.items()}
    weights, gradients = start()
    arrays |= {f"start/{n}": w for n, w in weights.items()}
    arrays |= {f"gradients/{n}": np.stack([g[n] for g in gradients]) for n in SHAPES}
    np.savez_compressed(path, **arrays)
    cases = {title: {"type": name, **settings} for title, (name, settings) in CASES.items()}
    (HERE / "expected.json").write_text(json.dumps({"rate": RATE, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
