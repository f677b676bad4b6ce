"""Records expected.npz and expected.json with torch: `python record.py`. Losses and their gradients, in float64.

FocalLoss and ContrastiveLoss, which torch does not have, are written with its functions; autograd does the rest.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

HERE = Path(__file__).parent
WEIGHTS = [0.5, 2.0, 1.0, 0.25]
SEQUENCE = [0.5, 2.0, 1.0, 0.25, 3.0, 1.5]


def focal(x, y, *, gamma=2.0, weight=None, reduction="mean", class_axis=-1):
    entropy = F.cross_entropy(x.movedim(class_axis, 1), y, reduction="none")
    each = (1 - torch.exp(-entropy)) ** gamma * entropy
    each = each if weight is None else each * torch.tensor(weight, dtype=x.dtype)[y]
    return each.mean() if reduction == "mean" else each.sum()


def cross_entropy(x, y, *, weight=None, class_axis=-1, ignore_index=-100, **settings):
    weight = None if weight is None else torch.tensor(weight, dtype=x.dtype)
    return F.cross_entropy(x.movedim(class_axis, 1), y, weight, ignore_index=ignore_index, **settings)


def soft_cross_entropy(x, t, *, weight=None, class_axis=-1, probabilities=True, **settings):
    assert probabilities
    weight = None if weight is None else torch.tensor(weight, dtype=x.dtype)
    return F.cross_entropy(x.movedim(class_axis, 1), t.movedim(class_axis, 1), weight, **settings)


def output_gradient(x, t):
    return (x * t).sum()


def bce(x, t, *, weight=None, pos_weight=None, reduction="mean"):
    weight, pos_weight = (None if w is None else torch.tensor(w, dtype=x.dtype) for w in (weight, pos_weight))
    return F.binary_cross_entropy_with_logits(x, t, weight, pos_weight=pos_weight, reduction=reduction)


def contrastive(a, b, y, *, margin=1.0, reduction="mean"):
    d = F.pairwise_distance(a, b)
    each = torch.where(y == 1, d**2, torch.clamp(margin - d, min=0) ** 2)
    return each.mean() if reduction == "mean" else each.sum()


LABELS = np.array([3, 0, 1, 1, 2, 0, 3])
SIGNS, SAME = np.array([1, -1, -1, 1, -1, 1, -1]), np.array([1, 0, 0, 1, 0, 1, 0])
ROWS, SEQ, IMAGE = (7, 4), (3, 5, 6), (2, 4, 3, 2)
# Title: function, settings, shapes of the outputs, target: labels, "real" numbers or "probabilities".
CASES = {
    "MSELoss": (F.mse_loss, {}, [ROWS], "real"),
    "L1Loss sum": (F.l1_loss, {"reduction": "sum"}, [ROWS], "real"),
    "CrossEntropyLoss": (cross_entropy, {}, [ROWS], LABELS),
    "CrossEntropyLoss weights": (cross_entropy, {"weight": WEIGHTS, "ignore_index": 1}, [ROWS], LABELS),
    "CrossEntropyLoss smoothed": (cross_entropy, {"label_smoothing": 0.1}, [ROWS], LABELS),
    "CrossEntropyLoss smoothed sum": (cross_entropy, {"label_smoothing": 0.3, "reduction": "sum"}, [ROWS], LABELS),
    "CrossEntropyLoss smoothed weights": (cross_entropy, {"label_smoothing": 0.1, "weight": WEIGHTS}, [ROWS], LABELS),
    "CrossEntropyLoss smoothed ignore": (cross_entropy, {"label_smoothing": 0.1, "ignore_index": 1}, [ROWS], LABELS),
    "CrossEntropyLoss smoothed all": (
        cross_entropy,
        {"label_smoothing": 0.2, "weight": SEQUENCE, "ignore_index": -100},
        [SEQ],
        np.array([[0, 5, 3, -100, 1], [2, 2, -100, -100, 0], [1, 4, 5, 3, 2]]),
    ),
    "CrossEntropyLoss sequence": (
        cross_entropy,
        {"ignore_index": -100},
        [SEQ],
        np.array([[0, 5, 3, -100, 1], [2, 2, -100, -100, 0], [1, 4, 5, 3, 2]]),
    ),
    "CrossEntropyLoss images": (
        cross_entropy,
        {"label_smoothing": 0.1, "class_axis": 1, "weight": WEIGHTS},
        [IMAGE],
        np.arange(12).reshape(2, 3, 2) % 4,
    ),
    "CrossEntropyLoss of probabilities": (soft_cross_entropy, {"probabilities": True}, [SEQ], "probabilities"),
    "CrossEntropyLoss of probabilities smoothed": (
        soft_cross_entropy,
        {"probabilities": True, "label_smoothing": 0.3, "class_axis": 1, "weight": WEIGHTS},
        [IMAGE],
        "probabilities",
    ),
    "CrossEntropyLoss of probabilities sum": (
        soft_cross_entropy,
        {"probabilities": True, "reduction": "sum", "weight": WEIGHTS},
        [ROWS],
        "probabilities",
    ),
    "BCEWithLogitsLoss": (bce, {"weight": [1.0, 2.0, 0.5, 3.0], "pos_weight": WEIGHTS}, [ROWS], "probabilities"),
    "HuberLoss": (F.huber_loss, {}, [ROWS], "real"),
    "HuberLoss delta": (F.huber_loss, {"delta": 0.4, "reduction": "sum"}, [ROWS], "real"),
    "SmoothL1Loss": (F.smooth_l1_loss, {"beta": 0.4}, [ROWS], "real"),
    "KLDivLoss": (F.kl_div, {"reduction": "batchmean"}, [ROWS], "probabilities"),
    "KLDivLoss logarithms": (F.kl_div, {"log_target": True}, [ROWS], "real"),
    "FocalLoss": (focal, {}, [ROWS], LABELS),
    "FocalLoss weights": (focal, {"gamma": 1.5, "weight": WEIGHTS, "reduction": "sum"}, [ROWS], LABELS),
    "CosineEmbeddingLoss": (F.cosine_embedding_loss, {"margin": 0.1}, [ROWS, ROWS], SIGNS),
    "ContrastiveLoss": (contrastive, {"margin": 2.0}, [ROWS, ROWS], SAME),
    "OutputGradient": (output_gradient, {}, [SEQ], "real"),
    "TripletMarginLoss": (F.triplet_margin_loss, {"margin": 0.7}, [ROWS] * 3, None),
}


STEPS, ITEMS, CLASSES = 9, 3, 5
LENGTHS = {"input_lengths": [9, 6, 8], "target_lengths": [4, 1, 3]}
TARGETS = [[1, 2, 2, 4], [3, 4, 4, 0], [1, 1, 1, 0]]
CTC = {
    "CTCLoss": {},
    "CTCLoss sum": {"reduction": "sum", "blank": 2, "targets": [[1, 3, 3, 4], [3, 0, 0, 0], [1, 1, 1, 0]]},
    # The target of the second item does not fit into its steps.
    "CTCLoss infinity": {
        "zero_infinity": True,
        "lengths": {"input_lengths": [9, 2, 8], "target_lengths": [4, 3, 3]},
        "targets": [[1, 2, 2, 4], [3, 3, 1, 0], [1, 1, 1, 0]],
    },
    "CTCLoss batch first": {"batch_first": True},
    "CTCLoss no labels": {"lengths": {"input_lengths": [9, 6, 1], "target_lengths": [0, 1, 1]}},
    "CTCLoss log-probabilities": {"of_logarithms": True},
}


def record_ctc(arrays: dict, cases: dict) -> None:
    """Of scores, whose log-softmax torch takes; or of log-probabilities themselves."""
    for title, given in CTC.items():
        settings = dict(given)
        lengths, targets = settings.pop("lengths", LENGTHS), settings.pop("targets", TARGETS)
        is_logarithms, batch_first = settings.pop("of_logarithms", False), settings.get("batch_first", False)
        rng = np.random.default_rng(len(title))
        scores = (2 * rng.standard_normal((STEPS, ITEMS, CLASSES))).astype(np.float32)
        if is_logarithms:
            scores = torch.log_softmax(torch.from_numpy(scores), -1).numpy()
        x = torch.from_numpy(scores.astype(np.float64)).requires_grad_()
        others = {n: v for n, v in settings.items() if n != "batch_first"}
        given_lengths = [torch.tensor(lengths[n]) for n in ("input_lengths", "target_lengths")]
        log_probs = x if is_logarithms else torch.log_softmax(x, -1)
        loss = torch.nn.CTCLoss(**others)(log_probs, torch.tensor(targets), *given_lengths)
        loss.backward()
        order = (1, 0, 2) if batch_first else (0, 1, 2)
        arrays |= {
            f"{title}/loss": loss.detach().numpy(),
            f"{title}/output0": scores.transpose(order),
            f"{title}/gradient0": x.grad.numpy().transpose(order),
            f"{title}/feed/targets": np.array(targets, np.int64),
        }
        arrays |= {f"{title}/feed/{n}": np.array(v, np.int64) for n, v in lengths.items()}
        cases[title] = {"type": "CTCLoss", **settings}


PREFERENCES = {"DPOLoss": {}, "DPOLoss smoothed": {"beta": 0.3, "label_smoothing": 0.2}}


def record_preferences(arrays: dict, cases: dict) -> None:
    """TRL's loss "sigmoid" (Rafailov et al., equation 7); rows are chosen and rejected texts by turns."""
    labels = torch.tensor([[1, 4, -100], [0, 2, 5], [-100, 3, -100], [-100, 1, 1]])
    for title, settings in PREFERENCES.items():
        rng = np.random.default_rng(len(title))
        scores, reference = rng.standard_normal((4, 3, 6)), rng.standard_normal(4) - 5
        scores, reference = scores.astype(np.float32), reference.astype(np.float32)
        x = torch.from_numpy(scores.astype(np.float64)).requires_grad_()
        counts = labels != -100
        each = torch.log_softmax(x, -1).gather(-1, (labels * counts)[..., None])[..., 0]
        policy, given = (each * counts).sum(-1), torch.from_numpy(reference.astype(np.float64))
        margin = (policy[0::2] - policy[1::2]) - (given[0::2] - given[1::2])
        beta, smoothing = settings.get("beta", 0.1), settings.get("label_smoothing", 0.0)
        losses = -F.logsigmoid(beta * margin) * (1 - smoothing) - F.logsigmoid(-beta * margin) * smoothing
        losses.mean().backward()
        arrays |= {
            f"{title}/loss": losses.mean().detach().numpy(),
            f"{title}/output0": scores,
            f"{title}/gradient0": x.grad.numpy(),
            f"{title}/feed/labels": labels.numpy(),
            f"{title}/feed/reference": reference,
        }
        cases[title] = {"type": "DPOLoss", **settings}


def main() -> None:
    arrays, cases = {}, {}
    for title, (function, settings, shapes, target) in CASES.items():
        rng = np.random.default_rng(len(title))
        outputs = [rng.standard_normal(s).astype(np.float32) for s in shapes]
        if isinstance(target, str):
            target = rng.standard_normal(shapes[0]) if target == "real" else rng.random(shapes[0])
            target = target.astype(np.float32)
            if title == "KLDivLoss":
                target[0, :2] = 0
        tensors = [torch.from_numpy(x.astype(np.float64)).requires_grad_() for x in outputs]
        wanted = [] if target is None else [torch.from_numpy(np.asarray(target))]
        wanted = [t.double() if t.is_floating_point() else t for t in wanted]
        loss = function(*tensors, *wanted, **settings)
        loss.backward()
        arrays[f"{title}/loss"] = loss.detach().numpy()
        for k, (x, tensor) in enumerate(zip(outputs, tensors, strict=True)):
            arrays |= {f"{title}/output{k}": x, f"{title}/gradient{k}": tensor.grad.numpy()}
        if target is not None:
            arrays[f"{title}/target"] = np.asarray(target)
        cases[title] = {"type": title.split()[0], **settings}
    record_ctc(arrays, cases)
    record_preferences(arrays, cases)
    np.savez_compressed(HERE / "expected.npz", **arrays)
    (HERE / "expected.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
