"""Transformers and mixers of images, narrow, and models of images with words or sounds."""

import timm
import timm.models as timm_models
import torch
import torchvision.models as tv
import transformers as hf
from tests.zoo.sources.case import Case, classes, classifier, model, pixels
from torch import nn


@model("ViT", "torchvision")
def vit() -> Case:
    return classifier(tv.VisionTransformer(16, 4, 2, 2, 16, 32, num_classes=5), pixels(16))


@model("DeiT (distilled)", "timm")
def deit() -> Case:
    net = timm_models.deit.VisionTransformerDistilled(
        img_size=16, patch_size=4, num_classes=5, embed_dim=16, depth=2, num_heads=2, mlp_ratio=2.0
    )
    return classifier(net, pixels(16))


@model("Swin", "torchvision")
def swin() -> Case:
    net = tv.SwinTransformer([2, 2], 8, [2, 2], [2, 4], [4, 4], mlp_ratio=2.0, stochastic_depth_prob=0.0, num_classes=5)
    return classifier(net, pixels(16))


@model("MobileViT", "timm")
def mobilevit() -> Case:
    byobnet = timm_models.byobnet
    config = byobnet.ByoModelCfg(
        blocks=(
            byobnet.ByoBlockCfg(type="bottle", d=1, c=8, s=2, gs=1, br=2.0),
            (
                byobnet.ByoBlockCfg(type="bottle", d=1, c=12, s=2, gs=1, br=2.0),
                byobnet.ByoBlockCfg(
                    type="mobilevit",
                    d=1,
                    c=12,
                    s=1,
                    block_kwargs={"transformer_dim": 16, "transformer_depth": 1, "patch_size": 2, "num_heads": 2},
                ),
            ),
        ),
        stem_chs=8,
        stem_type="3x3",
        act_layer="silu",
        num_features=24,
    )
    return classifier(byobnet.ByobNet(config, num_classes=5), pixels(32))


@model("MLP-Mixer", "timm")
def mlp_mixer() -> Case:
    net = timm_models.mlp_mixer.MlpMixer(5, img_size=16, patch_size=4, num_blocks=2, embed_dim=16)
    return classifier(net, pixels(16))


@model("gMLP", "timm")
def gmlp() -> Case:
    mixer = timm_models.mlp_mixer
    net = mixer.MlpMixer(
        5, img_size=16, patch_size=4, num_blocks=2, embed_dim=12, mlp_ratio=2, block_layer=mixer.SpatialGatingBlock,
        mlp_layer=mixer.GatedMlp,
    )  # fmt: skip
    return classifier(net, pixels(16))


@model("PoolFormer", "timm")
def poolformer() -> Case:
    net = timm_models.metaformer.MetaFormer(depths=(1, 1), dims=(12, 16), num_classes=5)
    return classifier(net, pixels(32))


@model("CLIP", "transformers")
def clip() -> Case:
    words = {
        "vocab_size": 40,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "max_position_embeddings": 12,
    }
    looks = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "image_size": 16, "patch_size": 4}
    config = hf.CLIPConfig(
        text_config={**words, "num_attention_heads": 2, "eos_token_id": 39},
        vision_config={**looks, "num_attention_heads": 2},
        projection_dim=12,
    )
    return Case(
        Clip(hf.CLIPModel(config)),
        {"ids": clip_words(), "pixels": pixels(16, batch=3)},
        "CrossEntropyLoss",
        torch.arange(3),
    )


def clip_words() -> torch.Tensor:
    """Three sentences, each with its end."""
    ids = classes(39, 3, 8)
    ids[:, -1] = 39
    return ids


class Clip(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=ids, pixel_values=pixels).logits_per_image


class Speech(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, features: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.inner(input_features=features, decoder_input_ids=ids, use_cache=False).logits


@model("Whisper", "transformers")
def whisper() -> Case:
    config = hf.WhisperConfig(
        vocab_size=40, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=12,
        max_target_positions=12, dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        begin_suppress_tokens=None,
    )  # fmt: skip
    feeds = {"features": torch.randn(2, 8, 24), "ids": classes(40, 2, 6)}
    return Case(Speech(hf.WhisperForConditionalGeneration(config)), feeds, "CrossEntropyLoss", classes(40, 2, 6))


class Perceiver(nn.Module):
    """Learned latents attend to all pixels, then to themselves."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(6, width) * 0.2)
        self.positions = nn.Parameter(torch.randn(64, width) * 0.2)
        self.embed = nn.Linear(3, width)
        self.cross = nn.MultiheadAttention(width, 2, batch_first=True)
        self.inner = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x.flatten(2).transpose(1, 2)) + self.positions
        latents = self.latents.expand(x.shape[0], -1, -1)
        latents = latents + self.cross(latents, x, x, need_weights=False)[0]
        return self.head(self.inner(latents).mean(1))


@model("Perceiver")
def perceiver() -> Case:
    return classifier(Perceiver(), pixels(8))


def create(name: str, x: torch.Tensor, **options: object) -> Case:
    """A model of timm by name."""
    return classifier(timm.create_model(name, num_classes=5, **options), x)
