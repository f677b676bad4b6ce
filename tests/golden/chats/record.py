"""Records what transformers makes of chats, and where TRL begins to learn: `python record.py`.

It takes transformers and trl. A token is a letter or one of SPECIAL.
"""

import json
from pathlib import Path

import transformers as tf
import trl
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from trl.data_utils import common_prefix_length

HERE = Path(__file__).parent
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<think>", "</think>"]
LETTERS = [chr(k) for k in range(32, 127)] + ["\n"]
AROUND = {"llama": "<s> $A", "chatml": "$A", "closed": "<s> $A </s>", "moved": "<s> $A", "thoughts": "$A"}
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ANSWER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
INST = "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} "
TEMPLATES = {
    "llama": INST + "{{ m.content }}</s>{% endif %}{% endfor %}",
    "chatml": CHATML + ANSWER,
    "closed": INST + "{{ m.content }}{% endif %}{% endfor %}",
    "moved": INST.replace("[INST] ", "[INST] {% if loop.last %}Be brief. {% endif %}")
    + "{{ m.content }}</s>{% endif %}{% endfor %}",
    "thoughts": CHATML.replace(
        "\n{{ m.content }}",
        "\n{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}",
    )
    + ANSWER,
}
"""`closed` has no end, but its tokenizer has one. `moved` writes a prompt otherwise if an answer follows."""
CHATS = [["What is up?", "Much."], ["Hi", "Hello.", "And you?", "Fine, too."]]


def tokenizer_of(name):
    made = Tokenizer(models.WordLevel({one: k for k, one in enumerate([*SPECIAL, *LETTERS])}))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.add_special_tokens(SPECIAL)
    ids = [(one, made.token_to_id(one)) for one in SPECIAL[:2]]
    made.post_processor = processors.TemplateProcessing(single=AROUND[name], special_tokens=ids)
    end = "<|im_end|>" if AROUND[name] == "$A" else "</s>"
    found = tf.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token=end)
    found.chat_template = TEMPLATES[name]
    return found


def record(name):
    tokenizer, chats, texts = tokenizer_of(name), [], {}
    for turns in CHATS:
        chat = [{"role": ("user", "assistant")[k % 2], "content": text} for k, text in enumerate(turns)]
        forms = {"whole": (chat, False), "prompt": (chat[:-1], True)}
        rendered, ids = {}, {}
        for form, (messages, prompts) in forms.items():
            settings = {"add_generation_prompt": prompts}
            rendered[form] = tokenizer.apply_chat_template(messages, tokenize=False, **settings)
            ids[form] = tokenizer.apply_chat_template(messages, **settings)["input_ids"]
            for special in (True, False):
                texts[f"{int(special)}{rendered[form]}"] = tokenizer.encode(rendered[form], add_special_tokens=special)
        start = common_prefix_length(ids["prompt"], ids["whole"])
        chats.append({"messages": chat, "rendered": rendered, "ids": ids, "start": start})
    return {"eos": tokenizer.eos_token_id, "chats": chats, "encode": texts}


if __name__ == "__main__":
    expected = {"versions": {"transformers": tf.__version__, "trl": trl.__version__}}
    expected["tokenizers"] = {name: record(name) for name in TEMPLATES}
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")
