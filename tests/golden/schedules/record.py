"""Records expected.json with the schedulers of torch: `python record.py`. Rates of steps 0 to 39, and of plateaus."""

import json
from pathlib import Path

import torch
from torch.optim import lr_scheduler as lr

RATE, STEPS, PLATEAU_METRICS = 0.05, 40, [5, 4, 4, 4, 3.9999, 4, 4, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2]


def linear(o):
    return lr.LinearLR(o, 0.8, 0.1, 20)


def warm(after, steps=8, start=0.1):
    return lambda o: lr.SequentialLR(o, [lr.LinearLR(o, start, 1.0, steps), after(o)], [steps])


CASES = {
    "Constant": ({}, lambda o: lr.LambdaLR(o, lambda t: 1.0)),
    "Linear": ({"total": 20, "start": 0.8, "end": 0.1}, linear),
    "Cosine": ({"total": 39, "end": 0.1}, lambda o: lr.CosineAnnealingLR(o, 39, 0.1 * RATE)),
    "Step": ({"every": 7, "gamma": 0.5}, lambda o: lr.StepLR(o, 7, 0.5)),
    "Exponential": ({"gamma": 0.9}, lambda o: lr.ExponentialLR(o, 0.9)),
    "Polynomial": ({"total": 25, "power": 2.0}, lambda o: lr.PolynomialLR(o, 25, 2.0)),
    "OneCycle": ({"total": 40}, lambda o: lr.OneCycleLR(o, RATE, 40, cycle_momentum=False)),
    "OneCycle other": (
        {"total": 40, "rise": 0.45, "start": 0.1, "end": 0.001},
        lambda o: lr.OneCycleLR(o, RATE, 40, pct_start=0.45, div_factor=10, final_div_factor=100, cycle_momentum=False),
    ),
    "Step warm": (
        {"every": 7, "gamma": 0.5, "warmup": 8, "warmup_start": 0.1},
        warm(lambda o: lr.StepLR(o, 7, 0.5)),
    ),
    "Exponential warm": (
        {"gamma": 0.9, "warmup": 8, "warmup_start": 0.1},
        warm(lambda o: lr.ExponentialLR(o, 0.9)),
    ),
    "Cosine warm": (
        {"total": 39, "warmup": 8, "warmup_start": 0.1},
        warm(lambda o: lr.CosineAnnealingLR(o, 31)),
    ),
}
PLATEAUS = {
    "Plateau": ({"patience": 2}, {"patience": 2}),
    "Plateau all": (
        {"patience": 1, "reduction": 0.5, "cooldown": 2, "least": 0.2, "threshold": 0.01},
        {"patience": 1, "factor": 0.5, "cooldown": 2, "min_lr": 0.2 * RATE, "threshold": 0.01},
    ),
    "Plateau max": ({"patience": 2, "mode": "max"}, {"patience": 2, "mode": "max"}),
}


def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)


def main() -> None:
    found = {}
    for title, (settings, make) in CASES.items():
        o = optimizer()
        scheduler, rates = make(o), []
        for _ in range(STEPS):
            rates.append(o.param_groups[0]["lr"])
            o.step()
            scheduler.step()
        found[title] = {"settings": {"type": title.split()[0], "learning_rate": RATE, **settings}, "rates": rates}
    for title, (settings, theirs) in PLATEAUS.items():
        o = optimizer()
        scheduler, rates = lr.ReduceLROnPlateau(o, **theirs), []
        metrics = PLATEAU_METRICS if settings.get("mode") != "max" else [-m + 9 for m in PLATEAU_METRICS]
        for metric in metrics:
            scheduler.step(metric)
            rates.append(o.param_groups[0]["lr"])
        found[title] = {
            "settings": {"type": "Plateau", "learning_rate": RATE, **settings},
            "metrics": metrics,
            "rates": rates,
        }
    Path(__file__).with_name("expected.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
