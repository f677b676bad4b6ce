"""Models of transformers that say something of every pixel."""

import torch
import transformers as hf
from tests.zoo.sources.case import Case, classes, model, pixels
from torch import nn


class Scores(nn.Module):
    """Classes of every pixel."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).logits


@model("UPerNet (ConvNeXt, pooled pyramid)", "transformers")
def upernet() -> Case:
    stages = [f"stage{k}" for k in range(1, 5)]
    backbone = hf.ConvNextConfig(hidden_sizes=[6, 8, 10, 12], depths=[1, 1, 1, 1], out_features=stages)
    config = hf.UperNetConfig(
        backbone_config=backbone, hidden_size=8, pool_scales=[1, 2], use_auxiliary_head=False, num_labels=3
    )
    x = pixels(64, batch=2)
    return Case(
        Scores(hf.UperNetForSemanticSegmentation(config)), {"x": x}, "CrossEntropyLoss of axis 1", classes(3, 2, 64, 64)
    )


class Masks(nn.Module):
    """Masks of what points in an image are on."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, pixels: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return self.inner(pixel_values=pixels, input_points=points).pred_masks


@model("SAM (prompted by points)", "transformers")
def sam() -> Case:
    vision = hf.SamVisionConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=32,
        patch_size=8,
        output_channels=8,
        mlp_dim=32,
        window_size=2,
        global_attn_indexes=[1],
        num_pos_feats=4,
    )
    prompts = hf.SamPromptEncoderConfig(hidden_size=8, image_size=32, patch_size=8, mask_input_channels=4)
    masks = hf.SamMaskDecoderConfig(
        hidden_size=8, mlp_dim=16, num_hidden_layers=1, num_attention_heads=2, iou_head_depth=2, iou_head_hidden_dim=8
    )
    inner = hf.SamModel(
        hf.SamConfig(
            vision_config=vision.to_dict(), prompt_encoder_config=prompts.to_dict(), mask_decoder_config=masks.to_dict()
        )
    )
    for p in inner.parameters():
        if p.dim() > 1:  # small ones leave the masks all but empty
            p.data = 6 * p.data.contiguous()
    feeds = {"pixels": pixels(32, batch=2), "points": 32 * torch.rand(2, 1, 2, 2)}
    return Case(Masks(inner), feeds, "MSELoss", torch.randn(2, 1, 3, 16, 16))
