"""Record prompt tuning of PEFT on the tiny language models of tests/golden/generate, whose weights are the same.

    python scripts/record_prompt.py        PEFT's start and end, gradients, losses, logits and tokens
    python scripts/record_prompt.py --own  logits of PEFT with the prompts that trainweb saved

Needs torch, transformers, peft, onnx and onnxscript. `python -m tests.lora.test_prompt` saves prompts for the second
call.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel, PromptTuningConfig, get_peft_model
from torch.nn import functional as F  # noqa: N812

TESTS = Path(__file__).parents[1] / "tests"
GOLDEN, HERE = TESTS / "golden" / "generate", TESTS / "lora" / "prompt"
sys.path.insert(0, str(GOLDEN))
from record import MODELS, VOCABULARY, WITH_MASK  # type: ignore[import-not-found]  # noqa: E402

COUNT, STEPS, RATE, NEW, IGNORED = 5, 5, 0.01, 16, -100
EMBEDDED = [3, 1, 4, 1, 59]


def base_of(name: str) -> Any:
    """The model whose export is NAME.onnx."""
    torch.manual_seed(len(name))
    model = MODELS[name]().eval()
    for parameter in model.parameters():
        deviation = 0.3 if parameter.dim() > 1 else 0.1
        parameter.data += deviation * torch.randn_like(parameter)
    case = json.loads((GOLDEN / "expected.json").read_text())["models"][name][0]
    logits = model(torch.tensor([case["prompt"]])).logits[0, -1]
    torch.testing.assert_close(logits, torch.tensor(case["logits"]), rtol=1e-4, atol=1e-4)
    return model


def data_of(name: str) -> dict[str, torch.Tensor]:
    """Inputs and labels, which are the next tokens. A model with a mask has a row that ends with padding."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (3, 8), generator=generator)
    data = {"input_ids": ids, "labels": torch.cat([ids[:, 1:], torch.full((3, 1), IGNORED)], 1)}
    if name in WITH_MASK:
        data["attention_mask"] = torch.ones_like(ids)
        data["attention_mask"][1, 5:] = 0
        data["labels"][1, 4:] = IGNORED
    return data


def logits_of(model: Any, data: dict[str, torch.Tensor]) -> torch.Tensor:
    """The logits of the tokens."""
    feeds = {name: value for name, value in data.items() if name != "labels"}
    return model(**feeds).logits[:, COUNT:]


def loss_of(model: Any, data: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss over the tokens, which is PEFT's own without the one of the first token."""
    loss = F.cross_entropy(logits_of(model, data).flatten(0, 1), data["labels"].flatten(), ignore_index=IGNORED)
    own = torch.cat([torch.full((3, 1), IGNORED), data["labels"][:, :-1]], 1)
    torch.testing.assert_close(model(**data | {"labels": own}).loss, loss)
    return loss


def save(model: Any, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)


def greedy(model: Any, prompt: list[int]) -> list[int]:
    """Tokens, each of a whole text."""
    tokens = list(prompt)
    for _ in range(NEW):
        ids = torch.tensor([tokens])
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, -1]
        first, second = logits.topk(2).values
        assert first - second > 1e-3, "another seed: two tokens are equally likely"
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def record(name: str) -> None:
    """Write all files of a model."""
    data, base = data_of(name), base_of(name)
    truth = {"embedded": base.get_input_embeddings()(torch.tensor(EMBEDDED)).detach().numpy()}
    torch.manual_seed(5)
    model: Any = get_peft_model(base, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=COUNT)).eval()
    save(model, HERE / f"{name}.start")
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model, data)
        loss.backward()
        truth.setdefault("gradient", trained[0].grad.numpy().copy())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    save(model, HERE / f"{name}.end")
    truth |= {f"data.{key}": value.numpy() for key, value in data.items()}
    truth |= {"losses": np.array(losses, np.float32), "logits": logits_of(model, data).detach().numpy()}
    with torch.no_grad():
        prompt = data["input_ids"][0, :6].tolist()
        tokens = greedy(model, prompt)
    ids = torch.tensor([prompt])
    written = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, use_cache=False
    )
    print(name, written[0, len(prompt) :].tolist() == tokens)
    np.savez_compressed(HERE / f"{name}.npz", prompt=prompt, tokens=tokens, **truth)


def record_own(name: str) -> None:
    """Write PEFT's logits with the prompt that trainweb trained."""
    model = PeftModel.from_pretrained(base_of(name), HERE / f"{name}.own").eval()
    np.savez_compressed(HERE / f"{name}.own.npz", logits=logits_of(model, data_of(name)).detach().numpy())


def main() -> None:
    """Record all models."""
    HERE.mkdir(exist_ok=True)
    for name in MODELS:
        (record_own if "--own" in sys.argv else record)(name)


if __name__ == "__main__":
    main()
