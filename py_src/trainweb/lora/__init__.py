"""Low-rank adapters (LoRA): train a few numbers beside the frozen weights of a model.

    adapted = trainweb.lora.inject("model.onnx", rank=8)
    artifacts = adapted.build_artifacts(loss="CrossEntropyLoss", optimizer="AdamW")
    ... train a session on the artifacts ...
    adapted.adapter(session).save("adapter")       # files that PEFT reads
    adapted.merge(session, "merged.onnx")

https://arxiv.org/abs/2106.09685

`inject_prompt` does the same with a trained prompt.
"""

from trainweb.lora.adapter import Adapter
from trainweb.lora.config import LoraConfig
from trainweb.lora.model import LoraModel, inject
from trainweb.lora.prompt import PromptModel, inject_prompt
from trainweb.lora.prompt_config import PromptConfig

__all__ = ["Adapter", "LoraConfig", "LoraModel", "PromptConfig", "PromptModel", "inject", "inject_prompt"]


def __dir__() -> list[str]:
    return sorted(__all__)
