"""Transformers of language, most of them by transformers, with two layers or fewer."""

from typing import Any

import torch
import transformers as hf
from tests.zoo.sources.case import Case, classes, classifier, model
from torch import nn
from torch.nn import functional as F

WORDS = 48
LENGTH = 10


def words(*shape: int) -> torch.Tensor:
    """Random words, none of them special: that PyTorch trains no row of a padding word is lost in ONNX."""
    return torch.randint(3, WORDS, shape)


class Logits(nn.Module):
    """A model of transformers as a function of tensors that returns its scores."""

    def __init__(self, inner: nn.Module, **options: Any) -> None:
        super().__init__()
        self.inner, self.options = inner, {"return_dict": True, **options}

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=input_ids, **self.options).logits


class Attended(nn.Module):
    """A causal language model that is given which words are padding."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


def causal(inner: nn.Module, *, mask: bool = True) -> Case:
    """Next words of random ones; with a mask, the second sentence is shorter."""
    inner.config.use_cache = False
    ids = words(2, LENGTH + 1)
    feeds = {"input_ids": ids[:, :-1].contiguous()}
    if mask:
        feeds["attention_mask"] = torch.ones(2, LENGTH, dtype=torch.int64)
        feeds["attention_mask"][1, 7:] = 0
    module = Attended(inner) if mask else Logits(inner, use_cache=False)
    return Case(module, feeds, "CrossEntropyLoss", ids[:, 1:].contiguous())


SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "attention_dropout": 0.0,
}
"""What most configurations call the sizes of a model."""
MASKED = {**SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 5, "pad_token_id": 0}
"""The same for encoders that classify."""


class Masked(nn.Module):
    """An encoder that is given which words are padding."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=input_ids, attention_mask=attention_mask).logits


def masked(inner: nn.Module) -> Case:
    """Classes of sentences, the second of which is shorter."""
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[1, 7:] = 0
    ids = words(2, LENGTH)
    return Case(Masked(inner), {"input_ids": ids, "attention_mask": mask}, "CrossEntropyLoss", classes(5, 2))


@model("BERT", "transformers")
def bert() -> Case:
    return masked(hf.BertForSequenceClassification(hf.BertConfig(**MASKED)))


@model("DistilBERT", "transformers")
def distilbert() -> Case:
    config = hf.DistilBertConfig(
        vocab_size=WORDS, dim=16, n_layers=2, n_heads=4, hidden_dim=32, max_position_embeddings=32, num_labels=5,
        dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
    )  # fmt: skip
    return masked(hf.DistilBertForSequenceClassification(config))


@model("RoBERTa", "transformers")
def roberta() -> Case:
    return masked(hf.RobertaForSequenceClassification(hf.RobertaConfig(**MASKED)))


@model("ALBERT (shared layers)", "transformers")
def albert() -> Case:
    return masked(hf.AlbertForSequenceClassification(hf.AlbertConfig(**MASKED, embedding_size=8)))


@model("ELECTRA", "transformers")
def electra() -> Case:
    return masked(hf.ElectraForSequenceClassification(hf.ElectraConfig(**MASKED, embedding_size=8)))


@model("BERT, masked words (tied head)", "transformers")
def bert_masked_words() -> Case:
    ids = words(2, LENGTH)
    inner = hf.BertForMaskedLM(hf.BertConfig(**MASKED))
    return Case(Logits(inner), {"input_ids": ids}, "CrossEntropyLoss", words(2, LENGTH))


@model("GPT-2 (tied head)", "transformers")
def gpt2() -> Case:
    config = hf.GPT2Config(
        vocab_size=WORDS,
        n_embd=16,
        n_layer=2,
        n_head=4,
        n_positions=32,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return causal(hf.GPT2LMHeadModel(config), mask=False)


@model("Llama (rotary positions, grouped keys)", "transformers")
def llama() -> Case:
    return causal(hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, num_key_value_heads=2)))


@model("Qwen2", "transformers")
def qwen2() -> Case:
    return causal(hf.Qwen2ForCausalLM(hf.Qwen2Config(**SMALL, num_key_value_heads=2, tie_word_embeddings=True)))


@model("Qwen3 (norms of queries and keys)", "transformers")
def qwen3() -> Case:
    return causal(hf.Qwen3ForCausalLM(hf.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8)))


@model("Gemma", "transformers")
def gemma() -> Case:
    return causal(hf.GemmaForCausalLM(hf.GemmaConfig(**SMALL, num_key_value_heads=1, head_dim=8)), mask=False)


@model("Gemma 2 (soft caps, sliding window)", "transformers")
def gemma2() -> Case:
    config = hf.Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=8, sliding_window=4)
    config._attn_implementation = "eager"
    return causal(hf.Gemma2ForCausalLM(config), mask=False)


@model("Mistral (sliding window)", "transformers")
def mistral() -> Case:
    return causal(hf.MistralForCausalLM(hf.MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=4)))


@model("Phi (parallel blocks, partly rotary)", "transformers")
def phi() -> Case:
    return causal(hf.PhiForCausalLM(hf.PhiConfig(**SMALL)))


@model("GPT-NeoX", "transformers")
def gpt_neox() -> Case:
    return causal(hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SMALL)))


@model("OPT", "transformers")
def opt() -> Case:
    config = hf.OPTConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, ffn_dim=32,
        max_position_embeddings=32, dropout=0.0, word_embed_proj_dim=16,
    )  # fmt: skip
    return causal(hf.OPTForCausalLM(config))


@model("BLOOM (ALiBi)", "transformers")
def bloom() -> Case:
    config = hf.BloomConfig(vocab_size=WORDS, hidden_size=16, n_layer=2, n_head=4)
    return causal(hf.BloomForCausalLM(config))


class Translator(nn.Module):
    """An encoder and a decoder of transformers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=input_ids, decoder_input_ids=decoder_input_ids, use_cache=False).logits


def translation(inner: nn.Module) -> Case:
    """Random sentences to random ones."""
    ids = words(2, 8)
    feeds = {"input_ids": words(2, LENGTH), "decoder_input_ids": ids[:, :-1].contiguous()}
    return Case(Translator(inner), feeds, "CrossEntropyLoss", ids[:, 1:].contiguous())


@model("T5", "transformers")
def t5() -> Case:
    config = hf.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=4, dropout_rate=0.0,
        relative_attention_num_buckets=8, decoder_start_token_id=0,
    )  # fmt: skip
    return translation(hf.T5ForConditionalGeneration(config))


@model("BART", "transformers")
def bart() -> Case:
    config = hf.BartConfig(
        vocab_size=WORDS, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=32, dropout=0.0,
    )  # fmt: skip
    return translation(hf.BartForConditionalGeneration(config))


class Transformer(nn.Module):
    """torch's own encoder and decoder, with causal mask and learned positions."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.positions = nn.Parameter(torch.randn(LENGTH, width) * 0.1)
        self.transformer = nn.Transformer(width, 4, 1, 1, 32, 0.0, batch_first=True)
        self.head = nn.Linear(width, WORDS)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        n = target.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n, dtype=self.positions.dtype)
        a, b = (self.embed(ids) + self.positions[: ids.shape[1]] for ids in (source, target))
        return self.head(self.transformer(a, b, tgt_mask=mask, tgt_is_causal=True))


@model("torch.nn.Transformer")
def nn_transformer() -> Case:
    feeds = {"source": words(2, LENGTH), "target": words(2, 7)}
    return Case(Transformer(), feeds, "CrossEntropyLoss", words(2, 7))


class Switch(nn.Module):
    """A causal language model in twenty lines, as in tutorials: heads split by view, mask by tril."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, WORDS, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(LENGTH, LENGTH)))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in self.qkv(x).split(c, 2))
        scores = q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5
        scores = scores.masked_fill(self.tril[:t, :t] == 0, float("-inf"))
        return self.out((F.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, t, c))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = x + self.attend(self.norms[0](x))
        x = x + self.mlp(self.norms[1](x))
        return self.head(self.norms[2](x))


@model("GPT as in tutorials (split, tril)")
def nano_gpt() -> Case:
    ids = words(2, LENGTH + 1)
    return Case(Switch(), {"ids": ids[:, :-1].contiguous()}, "CrossEntropyLoss", ids[:, 1:].contiguous())


class Bag(nn.Module):
    """fastText: the mean of embeddings, where the padding word counts nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc = nn.Embedding(WORDS, 12, padding_idx=0), nn.Linear(12, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        there = (ids != 0).unsqueeze(-1).to(self.fc.weight.dtype)
        return self.fc((self.embed(ids) * there).sum(1) / there.sum(1).clamp(min=1))


@model("Mean of embeddings with a padding word")
def fasttext() -> Case:
    ids = words(6, 9)
    ids[:, 6:] = 0
    return classifier(Bag(), ids)


class Padded(nn.Module):
    """A language model whose padding word has a row that is read and never learned, and a head that is tied to it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner = nn.Embedding(WORDS, 12, padding_idx=3), nn.Linear(12, 12)
        nn.init.normal_(self.embed.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(self.embed(ids).cumsum(1))) @ self.embed.weight.T


@model("Language model with a padding word (tied head)")
def padding_word() -> Case:
    ids = words(4, 9)
    ids[:, 6:8] = 3
    return Case(Padded(), {"ids": ids[:, :-1].contiguous()}, "CrossEntropyLoss", ids[:, 1:].contiguous())
