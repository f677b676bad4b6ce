"""Low-rank adapters (LoRA): train a few numbers beside the frozen weights of a model.

    adapted = trainweb.lora.inject("model.onnx", rank=8)
    artifacts = adapted.build_artifacts(loss="CrossEntropyLoss", optimizer="AdamW")
    ... train a session on the artifacts ...
    adapted.adapter(session).save("adapter")       # files that PEFT reads
    adapted.merge(session, "merged.onnx")

https://arxiv.org/abs/2106.09685
"""

from trainweb.lora.adapted import LoraModel
from trainweb.lora.adapter import Adapter
from trainweb.lora.config import LoraConfig
from trainweb.lora.model import inject

__all__ = ["Adapter", "LoraConfig", "LoraModel", "inject"]
__dir__ = __all__.copy
