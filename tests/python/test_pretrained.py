"""`from_pretrained` against a folder and tokens of transformers (tests/golden/pretrained)."""

import json
import shutil
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from trainweb import TrainingSession
from trainweb.data import Dataset
from trainweb.errors import ModelError, SessionError
from trainweb.generation.pretrained import Pretrained, generation_of
from trainweb.lora import Adapter, LoraModel
from trainweb.model.safetensors import read_safetensors

GOLDEN = Path(__file__).parents[1] / "golden" / "pretrained"
FOLDER = GOLDEN / "folder"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())


class PanicException(BaseException):
    """As pyo3 raises it."""


class Words:
    """The recorded tokenizer, by its vocabulary: what the package tokenizers has of it."""

    def __init__(self, path: str) -> None:
        found = json.loads(Path(path).read_text())
        self.vocabulary: dict[str, int] = found["model"]["vocab"]
        self.truncation, self.padding = found["truncation"], found["padding"]
        self.words = {k: word for word, k in self.vocabulary.items()}

    def encode(self, text: str, add_special_tokens: bool = True) -> Any:
        if text == "panics":
            raise PanicException("retry-limit")
        ids = [self.vocabulary[word] for word in text.split()]
        if self.truncation:
            ids = ids[: self.truncation["max_length"]]
        if self.padding:
            ids += [self.padding["pad_id"]] * (self.padding["strategy"]["Fixed"] - len(ids))
        return type("Encoding", (), {"ids": ids})

    def no_truncation(self) -> None:
        self.truncation = None

    def no_padding(self) -> None:
        self.padding = None

    def decode(self, ids: list[int]) -> str:
        return " ".join(self.words[k] for k in ids if k > 1)  # the others are special

    def token_to_id(self, token: str) -> int | None:
        return self.vocabulary.get(token)


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the package tokenizers there, with what the recorded file needs."""
    module = ModuleType("tokenizers")
    module.Tokenizer = type("Tokenizer", (), {"from_file": staticmethod(Words)})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tokenizers", module)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the recorded folder."""
    return Path(shutil.copytree(FOLDER, tmp_path / "folder"))


def text_of(session: TrainingSession, **settings: Any) -> tuple[list[int], str]:
    found = list(session.generate(EXPECTED["prompt"], **settings))
    return [one.token for one in found], "".join(one.text or "" for one in found)


def tokens_of(session: TrainingSession, **settings: Any) -> list[int]:
    return [one.token for one in session.generate(EXPECTED["ids"], **settings)]


def test_a_folder_of_transformers_gives_its_tokens_and_texts() -> None:
    with TrainingSession.from_pretrained(FOLDER, lora={"rank": 2}) as session:
        assert text_of(session) == (EXPECTED["tokens"], EXPECTED["text"])
        assert session.tokenizer.eos_token_id == 0
        data = Dataset.from_text(["the cat", "a dog likes"], session.tokenizer, length=4)
        assert data.columns["labels"].tolist() == [[4, 0, 3, 5]]
        session.fit(data, epochs=1, batch_size=1)


def test_a_session_saves_what_its_adapters_learned(folder: Path, tmp_path: Path) -> None:
    """The file of another session continues with the same losses."""
    ids = np.array([[2, 3, 4, 5]])
    feeds = {"input_ids": ids, "labels": np.roll(ids, -1)}
    with TrainingSession.from_pretrained(folder, lora={"rank": 2}, learning_rate=0.05) as session:
        session.train_step(feeds)
        session.optimizer_step()
        assert session.adapted is not None
        session.adapted.adapter(session).save(tmp_path / "adapter")
        learned = session.eval_step(feeds)
    adapter = Adapter.load(tmp_path / "adapter")
    with TrainingSession.from_pretrained(folder, lora={"adapter_config": adapter.config_json}) as session:
        assert isinstance(session.adapted, LoraModel) and session.eval_step(feeds) != learned
        session.adapted.load_adapter(session, adapter)
        assert session.eval_step(feeds) == learned
    with TrainingSession.from_pretrained(folder) as plain, pytest.raises(SessionError, match="has no adapters"):
        plain.adapted.adapter(plain)


def test_a_tokenizer_that_was_saved_after_a_batch_takes_whole_texts(folder: Path) -> None:
    found = json.loads((folder / "tokenizer.json").read_text())
    found["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    found["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 1}
    (folder / "tokenizer.json").write_text(json.dumps(found))
    with TrainingSession.from_pretrained(folder, lora={"rank": 2}) as session:
        assert text_of(session) == (EXPECTED["tokens"], EXPECTED["text"])


def test_files_may_start_with_a_byte_order_mark(folder: Path) -> None:
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    with TrainingSession.from_pretrained(folder, lora={"rank": 2}) as session:
        assert text_of(session) == (EXPECTED["tokens"], EXPECTED["text"])


def test_the_settings_for_generation_go_before_the_models(folder: Path) -> None:
    """A model may end a text by one token, and a chat by another."""
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 3, "max_new_tokens": 5}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert Pretrained(folder, None).generation() == {"stop": [7], "max_tokens": 5}


def with_weights(folder: Path) -> onnx.ModelProto:
    """The graph with the weights of the folder."""
    found = read_safetensors((folder / "model.safetensors").read_bytes())
    model = onnx.load(folder / "model.onnx")
    for tensor in model.graph.initializer:
        if tensor.name in found:
            array = np.frombuffer(found[tensor.name].data, np.float32).reshape(tuple(tensor.dims))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


def test_a_graph_with_its_own_weights_reads_no_others(folder: Path) -> None:
    model = with_weights(folder)
    (folder / "onnx").mkdir()
    onnx.save(model, folder / "onnx" / "model.onnx")
    (folder / "model.onnx").unlink()
    (folder / "model.safetensors").write_bytes(b"not read")
    with TrainingSession.from_pretrained(folder, lora={"rank": 2}) as session:
        assert tokens_of(session) == EXPECTED["tokens"]
    shutil.copy(FOLDER / "model.safetensors", folder)
    onnx.save(model, folder / "model.onnx")
    with TrainingSession.from_pretrained(folder, lora={"rank": 2}) as session:
        assert tokens_of(session) == EXPECTED["tokens"]


@pytest.mark.parametrize("place", [".", "onnx"])
def test_weights_lie_beside_the_graph_or_in_the_folder(folder: Path, place: str) -> None:
    (folder / "onnx").mkdir()
    (folder / "model.onnx").rename(folder / "onnx" / "model.onnx")
    if place == "onnx":
        (folder / "model.safetensors").rename(folder / "onnx" / "model.safetensors")
        (folder / "model.safetensors").write_bytes(b"not read")
    with TrainingSession.from_pretrained(folder, lora={"rank": 2}) as session:
        assert tokens_of(session) == EXPECTED["tokens"]


def test_shards_and_another_graph(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys(["lm_head.weight", "model.norm.weight"], "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.onnx").rename(folder / "other.onnx")
    with TrainingSession.from_pretrained(folder, file="other.onnx", lora={"rank": 2}) as session:
        assert tokens_of(session) == EXPECTED["tokens"]


def test_one_file_goes_before_shards(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with TrainingSession.from_pretrained(folder, lora={"rank": 2}) as session:
        assert tokens_of(session) == EXPECTED["tokens"]


def test_a_shard_that_is_missing_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    names = {f"w{k}": f"model-{k}.safetensors" for k in range(3)}
    (folder / "model-0.safetensors").write_bytes(b"")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(ModelError, match=r"index\.json lists the file 'model-1\.safetensors', which is not beside it"):
        TrainingSession.from_pretrained(folder)


@pytest.mark.parametrize("text", ["{", "<html>", "null", '{"model": {"vocab": {"a": "\\ud800"}}}'])
def test_a_tokenizer_that_cannot_be_read_is_named(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=r"^tokenizer\.json cannot be used: "):
        TrainingSession.from_pretrained(folder, lora={"rank": 2})


def test_faults_of_the_package_tokenizers_name_the_file(folder: Path) -> None:
    """A panic is no Exception."""
    tokenizer = Pretrained(folder).tokenizer()
    assert tokenizer is not None and tokenizer.encode("the cat") == tokenizer.encode("the cat", False)
    for text in ("panics", "a lion"):
        with pytest.raises(ModelError, match=r"^tokenizer\.json cannot be used: "):
            tokenizer.encode(text)
    tokenizer.tokenizer.encode = lambda text, add_special_tokens: sys.exit()
    with pytest.raises(SystemExit):
        tokenizer.encode("the")


@pytest.mark.parametrize("end", [5, [], True, {"content": 5}, {"content": [1]}])
def test_an_end_token_is_text(folder: Path, end: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
    with pytest.raises(ModelError, match=r"^eos_token of tokenizer_config\.json is .*; it must be text"):
        TrainingSession.from_pretrained(folder, lora={"rank": 2})


@pytest.mark.parametrize("name", ["temperature", "top_p", "max_new_tokens"])
def test_numbers_of_hundreds_of_digits_are_refused(name: str) -> None:
    with TrainingSession.from_pretrained(FOLDER, lora={"rank": 2}) as session:
        session.generation_config = generation_of({"do_sample": True, name: 10**400})
        with pytest.raises(ModelError, match=rf"{name.removesuffix('_new_tokens')}.* is 1000"):
            session.generate([1])


@pytest.mark.parametrize("weight_map", [["a"], "a", {"a": 3}, {"a": "../a"}, {"a": ""}, {"a": ".."}])
def test_names_of_shards_are_files_of_the_folder(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError, match=r"'weight_map' of model\.safetensors\.index\.json must map"):
        TrainingSession.from_pretrained(folder)


def test_arguments_go_before_the_configuration(folder: Path) -> None:
    with TrainingSession.from_pretrained(folder, lora={"rank": 2}) as session:
        tokens = EXPECTED["tokens"]
        assert tokens_of(session, max_tokens=3) == tokens[:3]
        assert len(tokens_of(session, stop=())) == 24
        assert tokens_of(session, stop=tokens[1])[-1] == tokens[1]
        session.generation_config = generation_of({"do_sample": True, "top_k": 4, "max_new_tokens": 20})
        drawn = tokens_of(session)
        assert drawn == tokens_of(session, temperature=1.0, top_k=4, max_tokens=20) != tokens_of(session, temperature=0)
        assert tokens_of(session, temperature=0)[: len(tokens)] == tokens
        with pytest.raises(ModelError, match="'top_k' changes nothing at temperature 0"):
            session.generate([1], temperature=0, top_k=2)


def test_the_configuration_of_transformers() -> None:
    assert generation_of({}) == {}
    assert generation_of({"eos_token_id": [2, 7], "temperature": 0.6}) == {"stop": [2, 7]}
    sampled = {"do_sample": True, "eos_token_id": 2, "temperature": 0.6, "top_p": 0.9}
    assert generation_of(sampled) == {"stop": [2], "temperature": 0.6, "top_k": 50, "top_p": 0.9}
    assert generation_of({"do_sample": True, "top_k": 0}) == {"temperature": 1.0, "top_k": None, "top_p": None}
    with pytest.warns(UserWarning, match="has repetition_penalty, which generate of trainweb does not have"):
        generation_of({"repetition_penalty": 1.1, "num_beams": 1})
    neutral = {"guidance_scale": 1.0, "suppress_tokens": [], "sequence_bias": {}, "stop_strings": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert generation_of(neutral) == {}
    changes = {"guidance_scale": 1.5, "exponential_decay_length_penalty": [5, 1.1], "stop_strings": ["x"]}
    with pytest.warns(UserWarning, match=f"has {', '.join(changes)}, which generate of trainweb does not have"):
        generation_of(neutral | changes)


def test_bits_quantize_the_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainweb.lora.quantize.LEAST_ELEMENTS", 128)
    with TrainingSession.from_pretrained(folder, bits=8, lora={"rank": 2}) as session:
        found = sorted(session.parameter_names())
    assert "lm_head.weight" in found and not any("q_proj.weight" in name for name in found)


def test_what_a_folder_lacks_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.warns(UserWarning, match="tokenizers is not installed. Install that package, or give 'tokenizer'"):
        session = TrainingSession.from_pretrained(folder, lora={"rank": 2})
    with session:
        with pytest.raises(ModelError, match="'prompt' is text, which needs a tokenizer"):
            session.generate("the cat")
        assert tokens_of(session) == EXPECTED["tokens"]
    words = Words(str(folder / "tokenizer.json"))
    with TrainingSession.from_pretrained(folder, lora={"rank": 2}, tokenizer=words) as session:
        assert text_of(session) == (EXPECTED["tokens"], EXPECTED["text"])
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    with pytest.raises(ModelError, match=r"A folder has them in model\.safetensors"):
        TrainingSession.from_pretrained(folder)
    (folder / "tokenizer.json").unlink()
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"generation_config\.json cannot be read as JSON: Expecting"):
        TrainingSession.from_pretrained(folder, lora={"rank": 2})
    (folder / "generation_config.json").write_text("[]")
    with pytest.raises(ModelError, match="it has list, not an object"):
        TrainingSession.from_pretrained(folder, lora={"rank": 2})
    (folder / "model.onnx").unlink()
    with pytest.raises(ModelError, match=r"has no model\.onnx or onnx/model\.onnx\. Export"):
        TrainingSession.from_pretrained(folder)
    with pytest.raises(ModelError, match=r"has no third\.onnx"):
        TrainingSession.from_pretrained(folder, file="third.onnx")
    with pytest.raises(ModelError, match=r"There is no folder 'somebody/model': download the repository first"):
        TrainingSession.from_pretrained("somebody/model")


def test_bits_without_adapters_warn_of_the_bits_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainweb.lora.quantize.LEAST_ELEMENTS", 128)
    with pytest.warns(UserWarning) as caught, TrainingSession.from_pretrained(folder, bits=8):
        pass
    said = [str(one.message) for one in caught]
    assert any("numbers in the file's parameters are trained" in text for text in said)
    assert not any("not in the file" in text for text in said)


@pytest.mark.parametrize(
    ("peft", "ours"),
    {"r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout", "target_modules": "targets"}.items(),
)
def test_settings_by_their_names_in_peft_are_answered_with_ours(folder: Path, peft: str, ours: str) -> None:
    with pytest.raises(TypeError, match=f"no setting '{peft}'; did you mean '{ours}'"):
        TrainingSession.from_pretrained(folder, lora={peft: 4})


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "GPT2LMHeadModel", "BertForMaskedLM", None])
def test_adapters_of_a_causal_language_model_say_so(architecture: str | None, folder: Path) -> None:
    """PEFT's AutoPeftModelForCausalLM asks for it."""
    config = {} if architecture is None else {"architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(config))
    tasks = []
    for given in ({}, {"task_type": "FEATURE_EXTRACTION"}):
        with TrainingSession.from_pretrained(folder, lora={"rank": 2, **given}) as session:
            assert session.adapted is not None
            tasks.append(json.loads(session.adapted.adapter(session).config_json)["task_type"])
    is_causal = architecture in ("LlamaForCausalLM", "GPT2LMHeadModel")
    assert tasks == ["CAUSAL_LM" if is_causal else None, "FEATURE_EXTRACTION"]
