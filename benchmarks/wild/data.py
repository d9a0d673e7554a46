"""Synthetic data and models with random weights for the scripts: nothing is downloaded, and the same bytes come out everywhere.

python benchmarks/wild/data.py FOLDER
"""

from __future__ import annotations

import gzip
import json
import struct
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np

WORDS = [first + vowel + last for first in "bdkl" for vowel in "aeiou" for last in "nrstlm"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|> {{ message['content'] }} </s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)


def _sentence(rng: np.random.Generator, words: int) -> str:
    return " ".join(rng.choice(WORDS, words))


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_texts(root: Path) -> None:
    """Texts of every form that trainers take; lengths differ, so that batches are padded."""
    rng = np.random.default_rng(0)

    def several(make: Any, count: int = 64) -> list[dict[str, Any]]:
        return [make(int(rng.integers(40, 200))) for _ in range(count)]

    def chat(words: int, answer: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": _sentence(rng, words)}, {"role": "assistant", "content": _sentence(rng, answer)}]

    forms = {
        "plain": lambda n: {"text": _sentence(rng, n)},
        "chat": lambda n: {"messages": chat(n // 2, n)},
        "preference": lambda n: {"chosen": (turns := chat(n // 2, n)), "rejected": [turns[0], chat(1, n)[1]]},
        "prompts": lambda n: {"prompt": [{"role": "user", "content": _sentence(rng, n // 4)}]},
        "judged": lambda n: {"prompt": _sentence(rng, n // 4), "completion": " " + _sentence(rng, n), "label": bool(n % 2)},
        "pairs": lambda n: {"sentence1": _sentence(rng, n // 4), "sentence2": _sentence(rng, n // 4), "label": n % 2},
        "summaries": lambda n: {"text": _sentence(rng, n), "summary": _sentence(rng, n // 8)},
        "translations": lambda n: {"translation": {"en": _sentence(rng, n // 4), "ro": _sentence(rng, n // 4)}},
        "entities": lambda n: {"tokens": (words := _sentence(rng, n // 4).split()), "ner_tags": [f"T{len(w) % 3}" for w in words]},
        "instructions": lambda n: {"instruction": _sentence(rng, n // 4), "input": "", "output": _sentence(rng, n)},
    }
    for name, make in forms.items():
        for split in ("train", "test"):
            _write_rows(root / name / f"{split}.json", several(make))
    questions = []
    for number in range(64):
        context = _sentence(rng, 120)
        answer = context.split()[10]
        questions.append(
            {
                "id": str(number),
                "question": _sentence(rng, 8),
                "context": context,
                "answers": {"text": [answer], "answer_start": [context.index(answer)]},
            }
        )
    (root / "questions").mkdir(parents=True, exist_ok=True)
    (root / "questions" / "train.json").write_text(json.dumps({"data": questions}))
    (root / "more.txt").write_text("\n".join(_sentence(rng, 120) for _ in range(200)))
    (root / "plain.txt").write_text("\n".join(_sentence(rng, 120) for _ in range(3000)))
    for split in ("train", "valid", "test"):
        (root / "words").mkdir(exist_ok=True)
        (root / "words" / f"{split}.txt").write_text("\n".join(_sentence(rng, 40) for _ in range(500)))
    (root / "alpaca.json").write_text(json.dumps(several(forms["instructions"])))


def make_images(root: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(1)
    for split in ("train", "val"):
        for kind in range(10):
            folder = root / split / f"kind{kind}"
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(16):
                Image.fromarray(rng.integers(0, 255, (256, 256, 3), dtype=np.uint8)).save(folder / f"{number}.jpg")
    pets = root.parent / "pets"
    pets.mkdir(parents=True, exist_ok=True)
    for number in range(64):
        Image.fromarray(rng.integers(0, 255, (256, 256, 3), dtype=np.uint8)).save(
            pets / f"{('cat', 'dog')[number % 2]}_{number}.jpg"
        )
    rows = []
    captioned = root.parent / "captioned" / "train"
    captioned.mkdir(parents=True, exist_ok=True)
    for number in range(64):
        Image.fromarray(rng.integers(0, 255, (256, 256, 3), dtype=np.uint8)).save(captioned / f"{number}.jpg")
        rows.append({"file_name": f"{number}.jpg", "text": _sentence(rng, 12)})
    _write_rows(captioned / "metadata.jsonl", rows)


def make_sounds(root: Path) -> None:
    rng = np.random.default_rng(2)
    for split in ("train", "test"):
        for kind in ("yes", "no"):
            folder = root / split / kind
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(16):
                samples = (rng.standard_normal(16_000 * int(rng.integers(2, 5))) * 3000).astype("<i2")
                with wave.open(str(folder / f"{number}.wav"), "wb") as out:
                    out.setnchannels(1)
                    out.setsampwidth(2)
                    out.setframerate(16_000)
                    out.writeframes(samples.tobytes())


def make_digits(root: Path) -> None:
    """As torchvision's MNIST finds it on disk."""
    rng = np.random.default_rng(3)
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", 60_000), ("t10k", 10_000)):
        images = struct.pack(">IIII", 0x803, count, 28, 28) + rng.integers(0, 255, count * 784, dtype=np.uint8).tobytes()
        labels = struct.pack(">II", 0x801, count) + rng.integers(0, 10, count, dtype=np.uint8).tobytes()
        for name, content in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
            (raw / name).write_bytes(content)
            with gzip.open(raw / f"{name}.gz", "wb", compresslevel=1) as packed:
                packed.write(content)


def make_tokens(root: Path) -> None:
    """As nanoGPT's prepare.py leaves it."""
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(4)
    for split in ("train", "val"):
        rng.integers(0, 50_000, 2_000_000, dtype=np.uint16).tofile(root / f"{split}.bin")


def make_hub(root: Path, texts: Path) -> None:
    """What scripts name on the Hub: a folder of that name beside a script is taken in its place."""
    rng = np.random.default_rng(5)
    glue = root / "nyu-mll" / "glue"
    for split in ("train", "validation", "test"):
        rows = [
            {"idx": number, "sentence1": _sentence(rng, 20), "sentence2": _sentence(rng, 20), "label": number % 2}
            for number in range(128)
        ]
        _write_rows(glue / "mrpc" / f"{split}.json", rows)
    (glue / "README.md").write_text("---\nconfigs:\n- config_name: mrpc\n  data_dir: mrpc\n---\n")
    _write_rows(root / "roneneldan" / "TinyStories" / "train.json", [{"text": _sentence(rng, 200)} for _ in range(400)])
    _write_rows(root / "tests" / "assets" / "c4_test" / "data.json", [{"text": _sentence(rng, 400)} for _ in range(2000)])
    for name, model in (("bert-base-cased", "bert"), ("bert-base-uncased", "bert")):
        place = root / name
        if not place.is_symlink():
            place.symlink_to(texts.parent / "models" / model)


METRIC = """
import datasets
import evaluate


class Metric(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"score": 0.0}
"""
"""In the place of those that a script would download; none is computed before the memory has settled."""


def make_metrics(root: Path) -> None:
    for name in ("accuracy", "sacrebleu", "rouge", "seqeval", "wer", "squad", "glue", "f1"):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / f"{name}.py").write_text(METRIC)
    (root / "nltk" / "tokenizers" / "punkt").mkdir(parents=True, exist_ok=True)


# -- models with random weights --------------------------------------------------------------------------------------------------


def _tokenizer(root: Path) -> Any:
    """A word is a token: tokenizers that are trained come out differently from one machine to the next."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<s>", "</s>", "<pad>", "<mask>", "<|user|>", "<|assistant|>", "<image>"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS, "en", "ro", "summarize", ":"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    known = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **known,
        cls_token="<s>",
        sep_token="</s>",
        model_max_length=512,
        padding_side="right",
    )
    made.chat_template = CHAT_TEMPLATE
    made.save_pretrained(root)
    return made


def make_models(root: Path) -> None:
    import torch
    import transformers as hf

    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8}
    vision = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 6, "image_size": 224}
    llama = hf.LlamaConfig(
        vocab_size=32_000, num_key_value_heads=4, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, **sizes
    )
    seq2seq = {"d_model": 512, "d_ff": 1024, "d_kv": 64, "num_layers": 4, "num_heads": 8}
    sound = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 6}
    with_text: dict[str, Any] = {
        "llama": hf.LlamaForCausalLM(llama),
        "qwen2": hf.Qwen2ForCausalLM(
            hf.Qwen2Config(vocab_size=32_000, num_key_value_heads=2, bos_token_id=1, eos_token_id=2, **sizes)
        ),
        "gpt2": hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=32_000, n_embd=512, n_layer=8, n_head=8, bos_token_id=1, eos_token_id=2)
        ),
        "bert": hf.BertForMaskedLM(hf.BertConfig(vocab_size=30_000, **sizes)),
        "reward": hf.LlamaForSequenceClassification(hf.LlamaConfig(**{**llama.to_diff_dict(), "num_labels": 1, "pad_token_id": 3})),
        "t5": hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=32_000, decoder_start_token_id=3, eos_token_id=2, **seq2seq)),
    }
    for name, model in with_text.items():
        model.save_pretrained(root / name)
        _tokenizer(root / name)
    hf.ViTForImageClassification(hf.ViTConfig(**vision)).save_pretrained(root / "vit")
    hf.ViTImageProcessor().save_pretrained(root / "vit")
    hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config(vocab_size=40, mask_time_length=2, **sound)).save_pretrained(root / "wav2vec2")
    hf.Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(root / "wav2vec2")
    _make_vision_language(hf, root / "llava", llama, vision)


def _make_vision_language(hf: Any, root: Path, language: Any, vision: dict[str, Any]) -> None:
    clip = hf.CLIPVisionConfig(patch_size=14, projection_dim=384, **vision)
    tokenizer = _tokenizer(root)
    config = hf.LlavaConfig(vision_config=clip, text_config=language, image_token_index=tokenizer.convert_tokens_to_ids("<image>"))
    hf.LlavaForConditionalGeneration(config).save_pretrained(root)
    processor = hf.LlavaProcessor(
        image_processor=hf.CLIPImageProcessor(size={"shortest_edge": 224}, crop_size={"height": 224, "width": 224}),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
        chat_template=(
            "{% for message in messages %}<|{{ message['role'] }}|> {% for part in message['content'] %}"
            "{% if part['type'] == 'image' %}<image> {% else %}{{ part['text'] }} {% endif %}{% endfor %}</s>{% endfor %}"
        ),
    )
    processor.save_pretrained(root)


def make_all(root: Path) -> None:
    """Once: a folder that is complete is left as it is."""
    done = root / "complete"
    if done.exists():
        return
    make_texts(root / "texts")
    make_images(root / "images")
    make_sounds(root / "sounds")
    make_digits(root / "digits")
    make_tokens(root / "tokens")
    make_metrics(root / "metrics")
    make_hub(root / "hub", root / "texts")
    make_models(root / "models")
    done.touch()


if __name__ == "__main__":
    make_all(Path(sys.argv[1]).absolute())
