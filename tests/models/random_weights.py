"""A llama model of random weights, written in a moment: a real server, real tokens, nonsense words.

`write_caller` writes one that knows tools: its chat template does, and its weights make it begin a call after each line
break and end its turn after the call. What stands in between is up to the server's grammar.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

WIDTH, LAYERS, HEADS, INNER = 256, 4, 4, 512
CONTEXT = 4096
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
# As those of Qwen and Hermes: instructions and tools first, calls in tags, results as a user's words.
TOOL_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == "system" %}{{ messages[0].content }}
{% endif %}You may call these functions:
<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>
Return each call as JSON within tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% elif messages[0].role == "system" %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "user" %}<|im_start|>user
{{ message.content }}<|im_end|>
{% elif message.role == "assistant" %}<|im_start|>assistant
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
END, LINE, CLOSES, CALL = 2, 3 + 0x0A, 3 + ord(">"), 512
"""Tokens: the end of a turn, a line break, the last letter of a tag, and the tag that begins a call."""


def write_caller(path: Path) -> None:
    write_weights(path, template=TOOL_TEMPLATE, follows={LINE: CALL, CALL: LINE, CLOSES: END})


def write_weights(path: Path, *, template: str = TEMPLATE, follows: Mapping[int, int] | None = None) -> None:
    """`follows` says which token comes after which; without it every next one is left to chance."""
    import gguf
    import numpy

    writer: Any = gguf.GGUFWriter(str(path), "llama")  # Any: its methods are typed by halves
    words = ["\u2581" + "".join(chr(97 + number // 26**place % 26) for place in range(3)) for number in range(253)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, "<tool_call>"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(words), 4]
    for add, value in (
        (writer.add_context_length, CONTEXT),
        (writer.add_embedding_length, WIDTH),
        (writer.add_block_count, LAYERS),
        (writer.add_feed_forward_length, INNER),
        (writer.add_head_count, HEADS),
        (writer.add_head_count_kv, HEADS),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_rope_dimension_count, WIDTH // HEADS),
        (writer.add_vocab_size, len(tokens)),
        (writer.add_tokenizer_model, "llama"),
        (writer.add_token_list, tokens),
        (writer.add_token_scores, [0.0] * len(tokens)),
        (writer.add_token_types, kinds),
        (writer.add_bos_token_id, 1),
        (writer.add_eos_token_id, 2),
        (writer.add_unk_token_id, 0),
        (writer.add_add_space_prefix, False),  # a grammar that begins with the template's own words would not fit
        (writer.add_chat_template, template),
    ):
        add(value)
    random: Any = numpy.random.default_rng(0)  # Any: as above

    def matrix(rows: int, columns: int) -> Any:  # Any: an array
        return (random.standard_normal((rows, columns)) * 0.05).astype(numpy.float32)

    ones = numpy.ones(WIDTH, numpy.float32)
    tensors: dict[str, Any] = {  # Any: arrays
        "token_embd": matrix(len(tokens), WIDTH),
        "output_norm": ones,
        "output": matrix(len(tokens), WIDTH),
    }
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[f"blk.{layer}.{name}"] = matrix(WIDTH, WIDTH)
        tensors |= {f"blk.{layer}.attn_norm": ones, f"blk.{layer}.ffn_norm": ones}
        tensors |= {f"blk.{layer}.{name}": matrix(INNER, WIDTH) for name in ("ffn_gate", "ffn_up")}
        tensors[f"blk.{layer}.ffn_down"] = matrix(WIDTH, INNER)
    if follows is not None:
        for layer in range(LAYERS):  # what a layer adds would drown the token itself
            tensors[f"blk.{layer}.attn_output"] *= 0
            tensors[f"blk.{layer}.ffn_down"] *= 0
        for token, following in follows.items():
            tensors["output"][following] += 20 * tensors["token_embd"][token]
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
